use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_SHA256};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::super::examples::{self, NOW_S};
use super::super::super::{EventKind, Provider, Tools};
use super::*;

const TOPIC: &str = "arn:aws:sns:eu-central-1:123456789012:mail";

/// A certificate that openssl made, and its key's SHA-1 signature of the notice below, which our
/// library cannot create.
const OLD_CERT: &str = "\
-----BEGIN CERTIFICATE-----
MIIDGzCCAgOgAwIBAgIUWENHmtAExH8l26EsWq20s9cygR0wDQYJKoZIhvcNAQEL
BQAwHDEaMBgGA1UEAwwRc25zLmFtYXpvbmF3cy5jb20wIBcNMjYxMTIyMTQwNzQ5
WhgPMjEyNjEwMjkxNDA3NDlaMBwxGjAYBgNVBAMMEXNucy5hbWF6b25hd3MuY29t
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA1d541X5aGxZX4zRdWGLv
V/iQpgpQn5uZyHPgcafzUd/KDFptM3Mqg2sfAQi/O7oH1ofG2UQLt9j8RrqLE0ll
VRHhsZkUyrPLjcH0k5Gq+wPrqqqCo+PNugqsQRsEzl6n9tv/dHCmIiFnZ94b6mkX
57nKKrvHpDbkbh1z3aoP+h0JpK6QoZ1AOrytNlmEzkjPbi5ohOmOwrR6XXvVUWLS
A9Dz/NN0n9cW/7mRO7f+vU/IyiwSrCX1r72q2pVbZRS1Rffs4BOyiURlDZS/YFdL
RcBBHt7AN0mBi95vdmVL8T3I3Wjd0g4M17cOBrJFPeI3K+Awtu5n7/OxZ3VmG+Jq
DQIDAQABo1MwUTAdBgNVHQ4EFgQUM7hOntbSYsBC/aDqCC24jEGzl2kwHwYDVR0j
BBgwFoAUM7hOntbSYsBC/aDqCC24jEGzl2kwDwYDVR0TAQH/BAUwAwEB/zANBgkq
hkiG9w0BAQsFAAOCAQEAnpzPu6Z1zYdjsNQwdM5//SW3L/DBVI3Xcd9UTuCGLfMF
UGS+Chbl2PpJn8aQ+CUFZy+XumXBUteqFLMQl61AolYn057tmJ4LcSDiMXhzP+6U
xe3XoDvdRrg9J9X6JP58bFCqPs8XtrvMG2DiXCRCX2kE8WodNNxUB+bzU9O6YR/e
l7rqIYtvrN0hSFOwMnEPgsNFf+odKzbNExMIXcULVUMIOj31U0nUnSo2t3bBc1Rc
ve8J2pXJYlm+6yMHiQPiew3P8REq4Jn9KKtaGBtgn5ZEbFOK2dTBaZ/m1ArkudJ/
nwy8hsGtP5MnPiiuzi9cG4ZTOynC694tJjjTFFwGgg==
-----END CERTIFICATE-----
";
const OLD_SIGNATURE: &str = "yznK634BoiHerfJok3hJI5ONOimxgHxiC6Ezkg469jMhpkLlew7LH9ZtZWc3/ajg6Hbe+Ixe0vFy8SBzsumNrQYk74n4aGANqHN8wNmctyMvMUxTtT5+ds3wqhSSmQ3CD9yfmwCP0A61bBxaXNqx18bFUvyMGH1f1qqWv4aEyRjn6HdlF4EXE8VPXKxvV4ex4KOJRycTIzNr8cHrpmeg0shtQlW/0TsqgHjcoON49RmdtehiY4/Yrbe+LnB0ex8ukedCFVNSA9FO6LdhkVYVd4ZC9bDlXXcREUCvX3kxxNxIQx7JrhMVE42BgfCeLqBb7c4F6ZBN7e3R5htNZiL4Eg==";

fn old_notice() -> Value {
    json!({
        "Type": "Notification", "MessageId": "id-1", "TopicArn": TOPIC, "Subject": "Greeting", "Message": "hello",
        "Timestamp": "2027-01-15T08:00:00.000Z", "SignatureVersion": "1", "Signature": OLD_SIGNATURE,
        "SigningCertURL": "https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem"
    })
}

fn envelope(notice: &Value) -> Result<Envelope, RejectedWebhook> {
    Envelope::read(
        &examples::account(&[("sns_topic_arn", TOPIC)], &[]),
        notice.to_string().as_bytes(),
    )
}

#[test]
fn version_1_is_believed_and_every_change_is_not() {
    let now_s = 1_800_000_000;
    let verify = |notice: &Value| {
        envelope(notice).and_then(|envelope| envelope.verify(OLD_CERT.as_bytes(), now_s))
    };
    assert_eq!(verify(&old_notice()), Ok(()));
    for key in [
        "MessageId",
        "Subject",
        "Message",
        "Timestamp",
        "Type",
        "TopicArn",
        "Signature",
    ] {
        let mut other = old_notice();
        other[key] = format!("x{}", other[key].as_str().unwrap()).into();
        assert!(
            matches!(verify(&other), Err(RejectedWebhook::Signature(_))),
            "{key}"
        );
    }
    for (key, value) in [
        ("Subject", Value::Null),
        ("SignatureVersion", json!("2")),
        ("SignatureVersion", json!("3")),
    ] {
        let mut other = old_notice();
        other[key] = value;
        assert!(
            matches!(verify(&other), Err(RejectedWebhook::Signature(_))),
            "{key}"
        );
    }
    for bad in ["", "-----BEGIN CERTIFICATE-----", "<html>"] {
        assert!(
            envelope(&old_notice())
                .unwrap()
                .verify(bad.as_bytes(), now_s)
                .is_err(),
            "{bad}"
        );
    }
    for other_time in [0, 5_000_000_000] {
        assert!(
            envelope(&old_notice())
                .unwrap()
                .verify(OLD_CERT.as_bytes(), other_time)
                .is_err(),
            "{other_time}"
        );
    }
}

#[test]
fn a_certificate_comes_from_one_place_and_no_other_address_is_fetched() {
    const NAME: &str = "SimpleNotificationService-0123456789abcdef0123456789abcdef.pem";
    let at = "https://sns.eu-central-1.amazonaws.com";
    for url in [
        format!("http://sns.eu-central-1.amazonaws.com/{NAME}"),
        format!("https://sns.eu-central-1.amazonaws.com.evil.example/{NAME}"),
        format!("https://evil.example/sns.eu-central-1.amazonaws.com/{NAME}"),
        format!("https://sns.a.b.amazonaws.com/{NAME}"),
        format!("https://sns..amazonaws.com/{NAME}"),
        format!("https://bucket.s3.amazonaws.com/{NAME}"),
        // A bucket may be called sns, and its host looks like a region's.
        format!("https://sns.s3.amazonaws.com/{NAME}"),
        format!("https://sns.s3-ap-southeast-2.amazonaws.com/{NAME}"),
        // A region other than the topic's, and another partition of Amazon.
        format!("https://sns.eu-west-1.amazonaws.com/{NAME}"),
        format!("https://sns.eu-central-1.amazonaws.com.cn/{NAME}"),
        format!("https://sns.eu-central-1.amazonaws.com:8443/{NAME}"),
        format!("https://sns.eu-central-1.amazonaws.com:443/{NAME}"),
        format!("https://me@sns.eu-central-1.amazonaws.com/{NAME}"),
        format!("https://:x@sns.eu-central-1.amazonaws.com/{NAME}"),
        format!("https://sns.eu-central-1.amazonaws.com@evil.example/{NAME}"),
        // Amazon's API answers with the caller's own text from Amazon's host.
        format!("{at}/?Action=GetEndpointAttributes&EndpointArn=x&x=.pem"),
        format!("{at}/{NAME}?Action=ListTopics"),
        format!("{at}/{NAME}?"),
        format!("{at}/{NAME}#x"),
        format!("{at}/?/{NAME}"),
        format!("{at}/x/{NAME}"),
        format!("{at}/x/../{NAME}"),
        format!("{at}//{NAME}"),
        format!("{at}/%2e/{NAME}"),
        format!("{at}/SimpleNotificationService-0123.pem"),
        format!("{at}/SimpleNotificationService-0123456789abcdef0123456789abcdeg.pem"),
        format!("{at}/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem/"),
        format!("{at}/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem.txt"),
        format!("{at}/SimpleNotificationService-.pem"),
        format!("{at}/a.pem"),
        "nonsense".to_owned(),
        String::new(),
    ] {
        let mut notice = old_notice();
        notice["SigningCertURL"] = url.clone().into();
        assert!(
            matches!(envelope(&notice), Err(RejectedWebhook::Signature(_))),
            "{url}"
        );
    }
    assert!(envelope(&old_notice()).is_ok());

    let of = |arn: &str| host(&examples::account(&[("sns_topic_arn", arn)], &[]));
    assert_eq!(
        of("arn:aws-cn:sns:cn-north-1:123456789012:mail").as_deref(),
        Some("sns.cn-north-1.amazonaws.com.cn")
    );
    assert_eq!(
        of("arn:aws-us-gov:sns:us-gov-west-1:1:m").as_deref(),
        Some("sns.us-gov-west-1.amazonaws.com")
    );
    for arn in [
        "arn:aws:sns:s3:1:m",
        "arn:aws:sns::1:m",
        "arn:aws:sns:eu-central-1.evil:1:m",
        "arn:aws:sns:a/b-c-1:1:m",
        "arn",
    ] {
        assert_eq!(of(arn), None, "{arn}");
    }
    let local = examples::account(&[("sns_cert_host", "http://127.0.0.1:99")], &[]);
    assert!(is_amazons(&local, "http://127.0.0.1:99/a.pem").is_some());
    for other in [
        "http://127.0.0.1:999/a.pem",
        "http://127.0.0.1:99@evil.example/",
        "https://sns.eu-west-1.amazonaws.com/a.pem",
    ] {
        assert!(is_amazons(&local, other).is_none(), "{other}");
    }
}

#[test]
fn certificates_of_tests_come_from_loopback_alone() {
    let check = |host: &str| {
        check_settings(&examples::account(
            &[("sns_topic_arn", TOPIC), ("sns_cert_host", host)],
            &[],
        ))
    };
    assert_eq!(check("http://127.0.0.1:8080"), Ok(()));
    assert_eq!(check("http://[::1]:8080"), Ok(()));
    for host in [
        "http://10.0.0.1:80",
        "https://evil.example",
        "http://localhost.evil.example",
        "http://127.0.0.1:80/x",
    ] {
        assert!(check(host).is_err(), "{host}");
    }
}

#[tokio::test]
async fn a_notice_is_believed_for_an_hour() {
    let amazon = Amazon::start().await;
    let read = async |options: &[(&str, &str)], now_s: i64| {
        let (body, headers) = (amazon.notice().to_string(), BTreeMap::new());
        let mut account = amazon.account.clone();
        account.options.extend(
            options
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let posted = Posted {
            url: "",
            headers: &headers,
            body: body.as_bytes(),
            now_s,
        };
        super::read(&account, &posted, &amazon.tools.http, &Certs::new()).await
    };
    assert!(read(&[], NOW_S + 3600).await.is_ok());
    for late in [NOW_S + 3601, NOW_S + 10 * 365 * 86_400, NOW_S - 3600] {
        assert!(
            matches!(read(&[], late).await, Err(RejectedWebhook::Signature(_))),
            "{late}"
        );
    }
    assert!(
        read(&[("webhook_max_age_s", "86400")], NOW_S + 86_400)
            .await
            .is_ok()
    );
    assert_eq!(
        amazon.certs_fetched.load(Ordering::SeqCst),
        2,
        "nothing is fetched for a notice that is too old"
    );
}

#[tokio::test]
async fn requests_that_nobody_signed_make_few_fetches() {
    let amazon = Amazon::start().await;
    let certs = Certs::new();
    let mut later = 0;
    for n in 0..200 {
        let mut notice = amazon.notice();
        // The same bad certificate twice, then another.
        notice["SigningCertURL"] = format!(
            "{}/SimpleNotificationService-{:032x}.pem",
            amazon.base,
            n / 2
        )
        .into();
        match amazon.read(&notice, &certs).await {
            Err(RejectedWebhook::Later(_)) => later += 1,
            Err(RejectedWebhook::Signature(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(later, 160, "twenty were fetched");
    let mut good = amazon.notice();
    assert!(
        matches!(
            amazon.read(&good, &certs).await,
            Err(RejectedWebhook::Later(_))
        ),
        "a good one is told to come again"
    );
    good["MessageId"] = "id-3".into();
    assert!(certs.known.lock().len() <= MAX_CERTIFICATES);
}

#[test]
fn notices_of_other_topics_are_not_believed() {
    let read = |options: &[(&str, &str)]| {
        Envelope::read(
            &examples::account(options, &[]),
            old_notice().to_string().as_bytes(),
        )
        .err()
    };
    assert_eq!(
        read(&[]),
        Some(RejectedWebhook::NoSecret {
            account: "main".into(),
            field: "sns_topic_arn"
        })
    );
    assert!(matches!(
        read(&[(
            "sns_topic_arn",
            "arn:aws:sns:eu-central-1:666666666666:mail"
        )]),
        Some(RejectedWebhook::Signature(_))
    ));
}

/// Builds a certificate for a key, without a valid signature.
fn certificate(key: &KeyPair) -> String {
    fn part(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        let head: &[u8] = if body.len() < 128 {
            &[length[1]]
        } else {
            &[0x82, length[0], length[1]]
        };
        [&[tag], head, &body].concat()
    }
    let algorithm = part(
        0x30,
        &[
            &part(0x06, &[&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 0x0b]]),
            &[5, 0],
        ],
    );
    let name = part(0x30, &[]);
    let validity = part(
        0x30,
        &[
            &part(0x17, &[b"200101000000Z"]),
            &part(0x17, &[b"400101000000Z"]),
        ],
    );
    let public: PublicKeyX509Der<'_> = key.public_key().as_der().unwrap();
    let version = part(0xa0, &[&part(2, &[&[2]])]);
    let inner = part(
        0x30,
        &[
            &version,
            &part(2, &[&[1]]),
            &algorithm,
            &name,
            &validity,
            &name,
            public.as_ref(),
        ],
    );
    let der = part(0x30, &[&inner, &algorithm, &part(3, &[&[0, 0]])]);
    let lines: Vec<String> = STANDARD
        .encode(der)
        .as_bytes()
        .chunks(64)
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    )
}

/// A minimal Amazon: a topic's key, and a server for its certificate and confirmations.
struct Amazon {
    key: KeyPair,
    pem: String,
    base: String,
    account: Account,
    tools: Tools,
    certs_fetched: Arc<AtomicUsize>,
    confirmed: Arc<AtomicUsize>,
}

impl Amazon {
    async fn start() -> Self {
        let key = KeyPair::generate(KeySize::Rsa2048).unwrap();
        let pem = certificate(&key);
        let served = pem.clone();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (certs_fetched, confirmed) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (Arc::clone(&certs_fetched), Arc::clone(&confirmed));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.windows(4).any(|end| end == b"\r\n\r\n")
                    && stream.read_buf(&mut head).await.is_ok_and(|read| read > 0)
                {}
                let (status, body) = match head {
                    head if head.starts_with(
                        b"GET /SimpleNotificationService-0123456789abcdef0123456789abcdef.pem ",
                    ) =>
                    {
                        counts.0.fetch_add(1, Ordering::SeqCst);
                        ("200 OK", served.as_str())
                    }
                    head if head.starts_with(b"GET /?Action=ConfirmSubscription ") => {
                        counts.1.fetch_add(1, Ordering::SeqCst);
                        ("200 OK", "<ConfirmSubscriptionResponse/>")
                    }
                    _ => ("404 Not Found", ""),
                };
                let answer = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let account = examples::account(&[("sns_topic_arn", TOPIC), ("sns_cert_host", &base)], &[]);
        Self {
            key,
            pem,
            base,
            account,
            tools: examples::tools(),
            certs_fetched,
            confirmed,
        }
    }

    /// Builds a signed envelope with these fields, in the order of their names.
    fn signed(&self, fields: &[(&str, &str)]) -> Value {
        let mut fields: Vec<_> = [
            ("MessageId", "id-2"),
            ("Timestamp", "2023-11-14T22:13:20.000Z"),
            ("TopicArn", TOPIC),
        ]
        .into_iter()
        .chain(fields.iter().copied())
        .collect();
        fields.sort_unstable();
        let text: String = fields
            .iter()
            .map(|(name, value)| format!("{name}\n{value}\n"))
            .collect();
        let mut signature = vec![0; self.key.public_modulus_len()];
        self.key
            .sign(
                &RSA_PKCS1_SHA256,
                &SystemRandom::new(),
                text.as_bytes(),
                &mut signature,
            )
            .unwrap();
        let mut envelope: Value = fields
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Value::from(value)))
            .collect();
        envelope["SignatureVersion"] = "2".into();
        envelope["Signature"] = STANDARD.encode(signature).into();
        envelope["SigningCertURL"] = format!(
            "{}/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem",
            self.base
        )
        .into();
        envelope
    }

    fn notice(&self) -> Value {
        let message = json!({
            "eventType": "Delivery", "mail": { "messageId": "m1", "destination": ["ann@example.com"] }, "delivery": {}
        });
        self.signed(&[("Type", "Notification"), ("Message", &message.to_string())])
    }

    async fn read(&self, envelope: &Value, certs: &Certs) -> Result<SnsRead, RejectedWebhook> {
        let (body, headers) = (envelope.to_string(), BTreeMap::new());
        let posted = Posted {
            url: "",
            headers: &headers,
            body: body.as_bytes(),
            now_s: NOW_S,
        };
        read(&self.account, &posted, &self.tools.http, certs).await
    }
}

#[tokio::test]
async fn version_2_is_believed_and_its_certificate_is_fetched_once() {
    let amazon = Amazon::start().await;
    let certs = Certs::new();
    for _ in 0..3 {
        let SnsRead::Events(events) = amazon.read(&amazon.notice(), &certs).await.unwrap() else {
            panic!("no events")
        };
        assert_eq!(events.len(), 1);
        assert_eq!(
            (
                events[0].provider_id.as_str(),
                events[0].event_type,
                events[0].at_s
            ),
            ("m1", EventKind::Delivered, NOW_S)
        );
        assert_eq!(
            (events[0].event_id.as_str(), events[0].recipient.as_deref()),
            ("id-2:0", Some("ann@example.com"))
        );
    }
    assert_eq!(amazon.certs_fetched.load(Ordering::SeqCst), 1);
    let good = amazon.notice();
    let signature = STANDARD
        .decode(good["Signature"].as_str().unwrap())
        .unwrap();
    for bit in 0..signature.len() * 8 {
        let mut other = signature.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        let mut notice = good.clone();
        notice["Signature"] = STANDARD.encode(other).into();
        let envelope = Envelope::read(&amazon.account, notice.to_string().as_bytes()).unwrap();
        assert!(
            matches!(
                envelope.verify(amazon.pem.as_bytes(), NOW_S),
                Err(RejectedWebhook::Signature(_))
            ),
            "bit {bit}"
        );
    }
    let mut notice = amazon.notice();
    notice["Message"] = notice["Message"]
        .as_str()
        .unwrap()
        .replace("m1", "m2")
        .into();
    assert!(matches!(
        amazon.read(&notice, &certs).await,
        Err(RejectedWebhook::Signature(_))
    ));
    let mut notice = amazon.notice();
    notice["SigningCertURL"] = format!(
        "{}/SimpleNotificationService-ffffffffffffffffffffffffffffffff.pem",
        amazon.base
    )
    .into();
    assert!(matches!(
        amazon.read(&notice, &certs).await,
        Err(RejectedWebhook::Signature(_))
    ));
    let other = Amazon::start().await;
    let mut notice = other.notice();
    notice["SigningCertURL"] = format!(
        "{}/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem",
        amazon.base
    )
    .into();
    assert!(matches!(
        amazon.read(&notice, &certs).await,
        Err(RejectedWebhook::Signature(_))
    ));
}

#[tokio::test]
async fn a_subscription_is_confirmed_by_the_door_once_its_signature_fits() {
    let amazon = Amazon::start().await;
    let url = format!("{}/?Action=ConfirmSubscription", amazon.base);
    let asked = |kind: &'static str, url: &str| {
        amazon.signed(&[
            ("Type", kind),
            ("Message", "You have chosen"),
            ("Token", "t"),
            ("SubscribeURL", url),
        ])
    };
    let through_the_door = async |envelope: &Value| {
        let (body, headers) = (envelope.to_string(), BTreeMap::new());
        let posted = Posted {
            url: "",
            headers: &headers,
            body: body.as_bytes(),
            now_s: NOW_S,
        };
        super::super::read(Provider::Ses, &amazon.account, &posted, &amazon.tools).await
    };
    let mut forged = asked("SubscriptionConfirmation", &url);
    forged["Token"] = "u".into();
    assert!(matches!(
        through_the_door(&forged).await,
        Err(RejectedWebhook::Signature(_))
    ));
    let elsewhere = asked("SubscriptionConfirmation", "https://evil.example/");
    assert!(matches!(
        through_the_door(&elsewhere).await,
        Err(RejectedWebhook::Signature(_))
    ));
    assert_eq!(
        through_the_door(&asked("UnsubscribeConfirmation", &url)).await,
        Ok(vec![])
    );
    assert_eq!(amazon.confirmed.load(Ordering::SeqCst), 0);
    assert_eq!(
        through_the_door(&asked("SubscriptionConfirmation", &url)).await,
        Ok(vec![])
    );
    assert_eq!(amazon.confirmed.load(Ordering::SeqCst), 1);
    let gone = asked("SubscriptionConfirmation", &format!("{}/gone", amazon.base));
    assert!(matches!(
        through_the_door(&gone).await,
        Err(RejectedWebhook::Unreadable(_))
    ));
}

#[tokio::test]
async fn providers_without_events_are_refused() {
    let posted = Posted {
        url: "",
        headers: &BTreeMap::new(),
        body: b"",
        now_s: NOW_S,
    };
    let tools = examples::tools();
    for provider in [
        Provider::Smtp,
        Provider::Apns,
        Provider::Fcm,
        Provider::Telegram,
        Provider::Slack,
        Provider::Webhook,
    ] {
        let read = super::super::read(provider, &Account::default(), &posted, &tools).await;
        assert!(
            matches!(read, Err(RejectedWebhook::Unreadable(_))),
            "{provider}"
        );
    }
    for provider in [
        Provider::Twilio,
        Provider::Sendgrid,
        Provider::Mailgun,
        Provider::Ses,
    ] {
        let read = super::super::read(provider, &Account::default(), &posted, &tools).await;
        assert!(
            matches!(read, Err(RejectedWebhook::NoSecret { .. })),
            "{provider}"
        );
    }
}
