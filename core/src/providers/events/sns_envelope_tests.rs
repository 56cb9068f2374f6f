//! Envelopes: their topic, the address of their certificate, and signatures of version 1.

use serde_json::{Value, json};

use super::fixture::TOPIC;
use super::*;
use crate::providers::examples;

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
