use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

use super::super::examples::{self, NOW_S, answer, is};
use super::super::{Channel, Scope, Sent};
use super::*;

fn account(more: &[(&str, &str)]) -> Account {
    let options = [("region", "eu-central-1"), ("access_key_id", "AKIDEXAMPLE")];
    let options: Vec<_> = options.into_iter().chain(more.iter().copied()).collect();
    examples::account(
        &options,
        &[(
            "secret_access_key",
            "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        )],
    )
}

fn driver(more: &[(&str, &str)]) -> Ses {
    Ses::new(&account(more), examples::tools().http).unwrap()
}

fn message(extra: Value) -> Message {
    examples::message(Channel::Email, "ann@example.com", extra)
}

#[test]
fn every_row_of_the_table_is_what_its_answer_becomes() {
    let driver = driver(&[]);
    for (row, status) in examples::rows(CODES) {
        let id = if row.class == Class::Accepted {
            json!("0102-1")
        } else {
            Value::Null
        };
        let in_words = WORDS.contains(&row.code);
        let text = if in_words {
            format!("{}. It says so.", row.code.to_lowercase())
        } else {
            "it says so".to_owned()
        };
        let kind = if in_words {
            "BadRequestException"
        } else {
            row.code
        };
        let by_header = answer(
            status,
            &[(
                "x-amzn-errortype",
                &format!("{kind}:http://internal.amazon.com/coral/"),
            )],
            &json!({ "message": text, "MessageId": id }).to_string(),
        );
        let by_body = answer(
            status,
            &[],
            &json!({ "__type": format!("com.amazon.ses#{kind}"), "Message": text, "MessageId": id }).to_string(),
        );
        for wire in [by_header, by_body] {
            let judged = driver.judge(&wire, NOW_S);
            assert!(is(&judged.sent, row.class), "{row:?}: {judged:?}");
        }
    }
}

#[test]
fn words_of_the_message_that_an_error_repeats_say_nothing() {
    for name in [
        "Daily message quota exceeded",
        "Maximum sending rate exceeded",
        "Address blacklisted",
        "Throttling failure",
    ] {
        let text = format!(
            "Email address is not verified. The following identities failed the check in region \
             EU-WEST-1: {name} <eve@example.net>, eve@example.net"
        );
        let wire = answer(
            400,
            &[("x-amzn-errortype", "MessageRejected")],
            &json!({ "message": text }).to_string(),
        );
        let judged = driver(&[]).judge(&wire, NOW_S);
        assert!(is(&judged.sent, Class::Request), "{judged:?}");
    }
}

#[test]
fn a_days_quota_waits_longer_than_a_seconds_rate() {
    let delay = |status, kind: &str, text: &str| {
        let wire = answer(
            status,
            &[("x-amzn-errortype", kind)],
            &json!({ "message": text }).to_string(),
        );
        match driver(&[]).judge(&wire, NOW_S).sent {
            Sent::Throttled {
                scope: Scope::Account,
                delay,
                ..
            } => delay.map(|delay| delay.as_secs()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        delay(
            429,
            "TooManyRequestsException",
            "Daily message quota exceeded."
        ),
        Some(3600)
    );
    assert_eq!(
        delay(
            400,
            "Throttling",
            "Throttling failure: Daily message quota exceeded."
        ),
        Some(3600)
    );
    assert_eq!(
        delay(
            429,
            "TooManyRequestsException",
            "Maximum sending rate exceeded."
        ),
        None
    );
    assert_eq!(delay(429, "", ""), None);
    assert_eq!(
        delay(
            400,
            "LimitExceededException",
            "Maximum sending rate exceeded"
        ),
        None
    );
}

#[test]
fn success_reports_the_id_and_garbage_is_no_success() {
    let judge = |status, body: &str| driver(&[]).judge(&answer(status, &[], body), NOW_S).sent;
    assert_eq!(
        judge(200, r#"{"MessageId":"0102"}"#),
        Sent::Accepted {
            provider_id: Some("0102".into())
        }
    );
    for (status, body) in [(200, "{}"), (200, "<html>"), (204, "")] {
        assert_eq!(judge(status, body).as_str(), "ambiguous", "{status} {body}");
    }
    assert_eq!(
        judge(502, "<html>"),
        Sent::Transient {
            reason: "answered 502: the answer is not SES's".into()
        }
    );
}

#[test]
fn the_request_is_json() {
    let driver = driver(&[
        ("from", "News <news@example.com>"),
        ("configuration_set", "main"),
    ]);
    let extra = json!({ "reply_to": "help@example.com", "tags": { "week": "7" }, "headers": { "X-A": "1" } });
    let message = Message {
        html: Some("<b>".into()),
        ..message(extra)
    };
    assert_eq!(driver.check(&message), []);
    let call = driver
        .request(&message, NOW_S, Duration::from_secs(3))
        .unwrap();
    assert_eq!(
        (call.method, call.url.as_str()),
        (
            "POST",
            "https://email.eu-central-1.amazonaws.com/v2/email/outbound-emails"
        )
    );
    let body: Value = serde_json::from_str(&call.body).unwrap();
    let expected = json!({
        "FromEmailAddress": "News <news@example.com>",
        "Destination": { "ToAddresses": ["ann@example.com"] },
        "ReplyToAddresses": ["help@example.com"],
        "Content": { "Simple": {
            "Subject": { "Data": "Hello", "Charset": "UTF-8" },
            "Body": { "Text": { "Data": "Good day", "Charset": "UTF-8" }, "Html": { "Data": "<b>", "Charset": "UTF-8" } },
            "Headers": [{ "Name": "X-A", "Value": "1" }],
        } },
        "EmailTags": [{ "Name": "week", "Value": "7" }, { "Name": "flyball_id", "Value": "job_1_2" }],
        "ConfigurationSetName": "main",
    });
    assert_eq!(body, expected);
    let template = Message {
        extra: json!({ "template": "t", "template_data": { "n": 1 } })
            .as_object()
            .unwrap()
            .clone(),
        ..message
    };
    let body: Value = serde_json::from_str(
        &driver
            .request(&template, NOW_S, Duration::from_secs(3))
            .unwrap()
            .body,
    )
    .unwrap();
    assert_eq!(
        body["Content"],
        json!({ "Template": { "TemplateName": "t", "TemplateData": "{\"n\":1}" } })
    );
}

/// Computes the signature after Amazon's description of Signature Version 4, independently of the
/// library that the driver uses.
fn signature(secret: &str, host: &str, path: &str, time: &str, body: &str) -> String {
    use aws_lc_rs::{digest, hmac};
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let hash = |text: &str| hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
    let mac = |key: &[u8], text: &str| {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
            .as_ref()
            .to_vec()
    };
    let canonical = format!(
        "POST\n{path}\n\ncontent-type:application/json\nhost:{host}\nx-amz-date:{time}\n\ncontent-type;host;x-amz-date\n{}",
        hash(body)
    );
    let day = &time[..8];
    let to_sign = format!(
        "AWS4-HMAC-SHA256\n{time}\n{day}/eu-central-1/ses/aws4_request\n{}",
        hash(&canonical)
    );
    let key = ["eu-central-1", "ses", "aws4_request"]
        .iter()
        .fold(mac(format!("AWS4{secret}").as_bytes(), day), |key, text| {
            mac(&key, text)
        });
    hex(&mac(&key, &to_sign))
}

#[test]
fn the_signature_covers_host_with_port_path_and_body() {
    let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
    for (base, host, path) in [
        (
            None,
            "email.eu-central-1.amazonaws.com",
            "/v2/email/outbound-emails",
        ),
        (
            Some("http://127.0.0.1:4010/"),
            "127.0.0.1:4010",
            "/v2/email/outbound-emails",
        ),
        (
            Some("http://localhost:80/ses"),
            "localhost",
            "/ses/v2/email/outbound-emails",
        ),
        (
            Some("https://Gate.Example:443"),
            "gate.example",
            "/v2/email/outbound-emails",
        ),
    ] {
        let mut account = account(&[("from", "news@example.com")]);
        account.base_url = base.map(str::to_owned);
        account
            .headers
            .push(("x-team".into(), super::super::AccountSecret::new("growth")));
        let driver = Ses::new(&account, examples::tools().http).unwrap();
        let call = driver
            .request(&message(json!({})), NOW_S, Duration::from_secs(3))
            .unwrap();
        let header = |name: &str| {
            call.headers
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.clone())
        };
        let time = "20231114T221320Z";
        assert_eq!(header("x-amz-date").as_deref(), Some(time));
        assert_eq!(
            (header("x-team").as_deref(), header("x-amz-security-token")),
            (Some("growth"), None)
        );
        let expected = format!(
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20231114/eu-central-1/ses/aws4_request, \
             SignedHeaders=content-type;host;x-amz-date, Signature={}",
            signature(secret, host, path, time, &call.body)
        );
        assert_eq!(header("authorization"), Some(expected), "{base:?}");
        assert_eq!(url::Url::parse(&call.url).unwrap().path(), path);
    }
}

#[test]
fn temporary_credentials_bring_their_token() {
    let mut account = account(&[("from", "news@example.com")]);
    account.secrets.insert(
        "session_token".into(),
        super::super::AccountSecret::new("the-token"),
    );
    let driver = Ses::new(&account, examples::tools().http).unwrap();
    let call = driver
        .request(&message(json!({})), NOW_S, Duration::from_secs(3))
        .unwrap();
    let header = |name: &str| {
        call.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    };
    assert_eq!(header("x-amz-security-token"), Some("the-token"));
    assert!(
        header("authorization")
            .unwrap()
            .contains("x-amz-date;x-amz-security-token")
    );
}

/// Answers one request and returns it.
async fn serve(listener: tokio::net::TcpListener, answer: &'static str) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut request = vec![0; 16_384];
    let mut read = 0;
    while !request[..read].windows(4).any(|end| end == b"\r\n\r\n") {
        read += stream.read(&mut request[read..]).await.unwrap();
    }
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
        answer.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    String::from_utf8_lossy(&request[..read]).into_owned()
}

#[tokio::test]
async fn the_account_says_what_it_may_send() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let body = r#"{"SendQuota":{"Max24HourSend":200.0,"MaxSendRate":14.0,"SentLast24Hours":0.0}}"#;
    let served = tokio::spawn(serve(listener, body));
    let account = Account {
        base_url: Some(format!("http://{address}")),
        ..account(&[])
    };
    let driver = build(&account, &examples::tools()).unwrap();
    let context = SendContext {
        now_s: NOW_S,
        timeout: Duration::from_secs(30),
        stop: CancellationToken::new(),
    };
    assert_eq!(driver.quota(&context).await, Some(14.0));
    let request = served.await.unwrap().to_lowercase();
    assert!(
        request.starts_with("get /v2/email/account http/1.1\r\n"),
        "{request}"
    );
    assert!(
        request.contains(&format!("host: {address}\r\n"))
            && request.contains("authorization: aws4-hmac-sha256"),
        "{request}"
    );
    for (status, body) in [
        (200, "{}"),
        (403, body),
        (200, r#"{"SendQuota":{"MaxSendRate":-1}}"#),
    ] {
        assert_eq!(
            max_send_rate(&answer(status, &[], body)),
            None,
            "{status} {body}"
        );
    }
}

#[test]
fn messages_are_checked_field_by_field() {
    let pointers = |driver: &Ses, message: &Message| {
        driver
            .check(message)
            .into_iter()
            .map(|i| i.pointer)
            .collect::<Vec<_>>()
    };
    let bad = Message {
        subject: None,
        body: String::new(),
        ..message(json!({ "cc": 1, "tags": { "a b": "c" }, "reply_to": ["x"] }))
    };
    let expected = [
        "/extra/cc",
        "/from",
        "/extra/reply_to/0",
        "/subject",
        "/body",
        "/extra/tags",
    ];
    assert_eq!(pointers(&driver(&[]), &bad), expected);
}

#[test]
fn settings_that_cannot_be_used_are_named() {
    let refused = |account: Account| {
        build(&account, &examples::tools())
            .err()
            .map(|refused| refused.field)
    };
    let secret = [("secret_access_key", "x")];
    assert_eq!(refused(account(&[])), None);
    assert_eq!(
        refused(examples::account(
            &[("region", "eu-west-1")],
            &[("secret_access_key", "x"), ("access_key_id", "AKID")]
        )),
        None
    );
    assert_eq!(
        refused(examples::account(&[("access_key_id", "A")], &secret)),
        Some("region".into())
    );
    assert_eq!(
        refused(examples::account(
            &[("access_key_id", "A"), ("region", "evil.host/")],
            &secret
        )),
        Some("region".into())
    );
    assert_eq!(
        refused(examples::account(&[("region", "eu-west-1")], &secret)),
        Some("access_key_id".into())
    );
    let without = examples::account(&[("access_key_id", "A"), ("region", "eu-west-1")], &[]);
    assert_eq!(refused(without), Some("secret_access_key".into()));
    assert_eq!(refused(account(&[("from", "nobody")])), Some("from".into()));
    assert_eq!(
        refused(account(&[("sns_cert_host", "nowhere")])),
        Some("sns_cert_host".into())
    );
    assert_eq!(
        refused(account(&[("sns_topic_arn", "topic")])),
        Some("sns_topic_arn".into())
    );
}
