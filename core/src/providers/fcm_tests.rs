use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::examples::{account, tools};
use super::fcm::{CODES, Fcm, body, judge};
use super::wire_tests::{class_of, example, extra, headers, message, pem, send_context, serve};
use super::{Account, Channel, Class, Driver, HttpAnswer, ProviderResponse, Scope, Sent};

fn key() -> &'static str {
    static KEY: OnceLock<String> = OnceLock::new();
    KEY.get_or_init(|| {
        pem(KeyPair::generate(KeySize::Rsa2048)
            .unwrap()
            .as_der()
            .unwrap()
            .as_ref())
    })
}

fn service() -> Value {
    json!({ "type": "service_account", "project_id": "shop-1", "private_key_id": "k1", "private_key": key(),
        "client_email": "flyball@shop-1.iam.gserviceaccount.com", "token_uri": "https://oauth2.googleapis.com/token" })
}

fn fcm_account(base: &str) -> Account {
    let token_uri = format!("{base}/token");
    let mut account = account(
        &[("token_uri", token_uri.as_str())],
        &[("service_account", &service().to_string())],
    );
    account.base_url = Some(base.to_owned());
    account
}

fn judged(status: u16, body: &str, pairs: &[(&str, &str)]) -> ProviderResponse {
    judge(
        &HttpAnswer {
            status,
            headers: headers(pairs),
            body: body.as_bytes().to_vec(),
        },
        0,
        "device",
    )
    .0
}

fn failure(status: u16, word: &str) -> String {
    let detail = json!({ "@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": word });
    json!({ "error": { "code": status, "message": "Something about it", "status": "ABORTED", "details": [detail] } }).to_string()
}

#[test]
fn every_row_is_what_its_answer_becomes() {
    for row in CODES {
        let status: u16 = example(row.status).parse().unwrap();
        let bodies = match row.code {
            "sent" => vec![json!({ "name": "projects/shop-1/messages/7" }).to_string()],
            "bad_token" => vec![
                json!({ "error": { "status": "INVALID_ARGUMENT", "details": [
                    { "errorCode": "INVALID_ARGUMENT" },
                    { "fieldViolations": [{ "field": "message.token", "description": "Invalid registration token" }] },
                ] } })
                .to_string(),
                json!({ "error": { "status": "INVALID_ARGUMENT",
                    "message": "The registration token is not a valid FCM registration token" } })
                .to_string(),
            ],
            "" => vec!["<html>502</html>".to_owned(), String::new()],
            word => vec![failure(status, word), json!({ "error": { "status": word } }).to_string()],
        };
        for body in bodies {
            assert_eq!(
                class_of(&judged(status, &body, &[]).sent),
                row.class,
                "{row:?} {body}"
            );
        }
    }
}

#[test]
fn a_spent_quota_lasts_as_long_as_is_said_or_a_minute() {
    let delay =
        |pairs: &[(&str, &str)]| match judged(429, &failure(429, "QUOTA_EXCEEDED"), pairs).sent {
            Sent::Throttled {
                scope: Scope::Account,
                key: None,
                delay,
                ..
            } => delay,
            other => panic!("{other:?}"),
        };
    assert_eq!(delay(&[]), Some(Duration::from_secs(60)));
    assert_eq!(delay(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
    let device = judged(429, &failure(429, "DEVICE_MESSAGE_RATE_EXCEEDED"), &[]).sent;
    assert!(
        matches!(device, Sent::Throttled { scope: Scope::Recipient, key: Some(key), .. } if key == "device")
    );
}

#[test]
fn the_message_is_built_from_what_is_there() {
    let mut sent = message(Channel::Push, "/topics/news");
    sent.subject = Some("Hi".to_owned());
    sent.expires_at_s = Some(1060);
    sent.extra = extra(
        json!({ "data": { "a": "1" }, "android": { "priority": "normal" }, "priority": "high", "collapse_key": "c" }),
    );
    let expected = json!({ "message": {
        "topic": "news",
        "notification": { "title": "Hi", "body": "Hello" },
        "data": { "a": "1" },
        "android": { "priority": "normal", "collapse_key": "c", "ttl": "60s" },
        "apns": { "headers": { "apns-expiration": "1060" } },
    } });
    assert_eq!(body(&sent, 1000), expected);
    let mut quiet = message(Channel::Push, "device");
    quiet.body = String::new();
    assert_eq!(body(&quiet, 0), json!({ "message": { "token": "device" } }));
    quiet.extra = extra(json!({ "apns": "no object" }));
    quiet.expires_at_s = Some(1);
    assert_eq!(
        body(&quiet, 0)["message"]["apns"],
        "no object",
        "check tells it"
    );
}

#[test]
fn wrong_messages_and_settings_are_reported() {
    let driver = Fcm::new(&fcm_account("http://127.0.0.1:9"), &tools()).unwrap();
    let mut sent = message(Channel::Push, "device");
    assert!(driver.check(&sent).is_empty());
    sent.to = message(Channel::Push, "/topics/a/b").to;
    sent.body = "x".repeat(4097);
    sent.extra = extra(json!({ "data": { "a/b": 1 }, "android": 1, "priority": 5 }));
    let pointers: Vec<String> = driver
        .check(&sent)
        .into_iter()
        .map(|issue| issue.pointer)
        .collect();
    assert_eq!(
        pointers,
        [
            "/to",
            "/extra/android",
            "/extra/data/a~1b",
            "/extra/priority",
            "/body"
        ]
    );

    let field = |options: &[(&str, &str)], json: &str| {
        let refused = Fcm::new(&account(options, &[("service_account", json)]), &tools())
            .err()
            .unwrap();
        assert!(!refused.message.contains("PRIVATE KEY"));
        refused.field
    };
    let mut keyless = service();
    keyless["private_key"] = json!("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----");
    assert_eq!(field(&[], ""), "service_account");
    assert_eq!(field(&[], "{}"), "service_account");
    assert_eq!(field(&[], &keyless.to_string()), "service_account");
    assert_eq!(
        field(&[("project_id", "../x")], &service().to_string()),
        "project_id"
    );
    assert_eq!(
        field(&[("token_uri", "ftp://x")], &service().to_string()),
        "token_uri"
    );
}

/// A server that withdraws token `t1` after the first message that it accepted.
#[derive(Default)]
struct Google {
    grants: AtomicUsize,
    messages: Mutex<Vec<String>>,
}

impl Google {
    fn answer(&self, request: &str) -> (u16, String) {
        if request.starts_with("POST /token ") {
            assert!(request.contains(
                "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=ey"
            ));
            let grant = self.grants.fetch_add(1, Ordering::SeqCst) + 1;
            return (
                200,
                json!({ "access_token": format!("t{grant}"), "expires_in": 3600 }).to_string(),
            );
        }
        assert!(request.starts_with("POST /v1/projects/shop-1/messages:send "));
        let mut messages = self.messages.lock();
        if request.contains("Bearer t1") && !messages.is_empty() {
            return (
                401,
                json!({ "error": { "code": 401, "status": "UNAUTHENTICATED" } }).to_string(),
            );
        }
        messages.push(request.to_owned());
        (
            200,
            json!({ "name": format!("projects/shop-1/messages/{}", messages.len()) }).to_string(),
        )
    }
}

#[tokio::test]
async fn a_token_is_asked_for_once_and_again_after_a_401() {
    let google = Arc::new(Google::default());
    let seen = google.clone();
    let base = serve(move |request| seen.answer(request)).await;
    let driver = Arc::new(Fcm::new(&fcm_account(&base), &tools()).unwrap());
    let sent = driver
        .send(&message(Channel::Push, "device"), &send_context(1000))
        .await
        .sent;
    assert_eq!(
        sent,
        Sent::Accepted {
            provider_id: Some("projects/shop-1/messages/1".to_owned())
        }
    );
    assert_eq!(google.grants.load(Ordering::SeqCst), 1);

    let sending = (0..8).map(|_| {
        let driver = driver.clone();
        tokio::spawn(async move {
            driver
                .send(&message(Channel::Push, "device"), &send_context(1000))
                .await
        })
    });
    for answer in futures_util::future::join_all(sending).await {
        assert_eq!(class_of(&answer.unwrap().sent), Class::Accepted);
    }
    assert_eq!(
        google.grants.load(Ordering::SeqCst),
        2,
        "all of them share the second token"
    );
    assert_eq!(google.messages.lock().len(), 9);

    let late = driver
        .send(
            &message(Channel::Push, "device"),
            &send_context(1000 + 3300),
        )
        .await;
    assert_eq!(class_of(&late.sent), Class::Accepted);
    assert_eq!(
        google.grants.load(Ordering::SeqCst),
        3,
        "five minutes before its end a token is renewed"
    );
}

#[tokio::test]
async fn a_second_401_is_the_accounts_fault() {
    let base = serve(|request| match request.starts_with("POST /token ") {
        true => (
            200,
            json!({ "access_token": "t", "expires_in": 3600 }).to_string(),
        ),
        false => (401, String::new()),
    });
    let driver = Fcm::new(&fcm_account(&base.await), &tools()).unwrap();
    let answer = driver
        .send(&message(Channel::Push, "device"), &send_context(0))
        .await;
    assert_eq!(class_of(&answer.sent), Class::Account, "{answer:?}");
}

#[test]
fn the_quota_of_a_device_or_a_topic_is_recognized_by_its_violation() {
    let of = |description: &str| {
        let details = json!([
            { "errorCode": "QUOTA_EXCEEDED" },
            { "violations": [{ "subject": "a", "description": description }] },
        ]);
        let body =
            json!({ "error": { "code": 429, "status": "RESOURCE_EXHAUSTED", "details": details } })
                .to_string();
        class_of(&judged(429, &body, &[]).sent)
    };
    assert_eq!(
        of("Device message rate exceeded"),
        Class::Throttled(Scope::Recipient)
    );
    assert_eq!(
        of("Topic message rate exceeded"),
        Class::Throttled(Scope::Recipient)
    );
    assert_eq!(of("Project quota"), Class::Throttled(Scope::Account));
}
