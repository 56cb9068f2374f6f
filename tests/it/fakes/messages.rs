//! The fakes answer as documented by the providers.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flyball_fakes::{Fake, FakeProvider, WindowQuota};
use reqwest::{Client, RequestBuilder};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixture::{LONG, SID, client, fake, http2, json_of, now_s, token, twilio};
use crate::support::eventually;

#[tokio::test]
async fn twilio_queues_a_message_and_says_what_is_wrong_with_another() {
    let (fake, client) = (fake(FakeProvider::Twilio, SID, "right").await, client());
    let answer = twilio(&client, &fake, "right").send().await.unwrap();
    assert_eq!(answer.status(), 201);
    let body = json_of(answer).await;
    assert_eq!(
        (
            body["status"].as_str().unwrap(),
            body["sid"].as_str().unwrap().len()
        ),
        ("queued", 34)
    );
    let answer = twilio(&client, &fake, "wrong").send().await.unwrap();
    assert_eq!(answer.status(), 401);
    assert_eq!(json_of(answer).await["code"], 20003);
    fake.set_quota(SID, Some(WindowQuota::per_second(0.0)));
    let answer = twilio(&client, &fake, "right").send().await.unwrap();
    assert_eq!(answer.headers()["retry-after"], "1");
    assert_eq!(json_of(answer).await["code"], 20429);
    let totals = fake.totals(SID);
    assert_eq!(
        (
            totals.requests,
            totals.accepted,
            totals.failed,
            totals.refused
        ),
        (3, 1, 1, 1)
    );
    assert_eq!(fake.received(SID)[0].to, "+15005550006");
    assert_eq!(fake.received(SID)[0].id, body["sid"]);
}

#[tokio::test]
async fn sendgrid_telegram_slack_and_mailgun_answer_as_their_documents_show() {
    let client = client();
    let sendgrid = fake(FakeProvider::Sendgrid, "SG.key", "").await;
    let mail = json!({
        "personalizations": [{ "to": [{ "email": "a@example.com" }] }], "from": { "email": "b@example.com" }, "subject": "s",
        "content": [{ "type": "text/plain", "value": "hello" }],
    });
    let send = |key: &str| {
        client
            .post(format!("{}/v3/mail/send", sendgrid.url()))
            .bearer_auth(key)
            .json(&mail)
            .send()
    };
    let answer = send("SG.key").await.unwrap();
    assert_eq!(answer.status(), 202);
    assert!(!answer.headers()["x-message-id"].is_empty());
    assert_eq!(answer.text().await.unwrap(), "");
    assert_eq!(send("SG.other").await.unwrap().status(), 401);
    sendgrid.set_quota("SG.key", Some(WindowQuota::per_second(0.0)));
    let answer = send("SG.key").await.unwrap();
    let reset: u64 = answer.headers()["x-ratelimit-reset"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(
        answer.status() == 429 && reset.abs_diff(now_s()) <= 30,
        "{reset}"
    );

    let telegram = fake(FakeProvider::Telegram, "1:abc", "").await;
    let url = format!("{}/bot1:abc/sendMessage", telegram.url());
    let answer = client
        .post(&url)
        .json(&json!({ "chat_id": 7, "text": "hello" }))
        .send()
        .await
        .unwrap();
    assert!(json_of(answer).await["result"]["message_id"].is_u64());
    telegram.set_quota(
        "1:abc",
        Some(WindowQuota {
            limit: 0.0,
            window: Duration::from_secs(60),
        }),
    );
    let answer = client
        .post(&url)
        .json(&json!({ "chat_id": 7, "text": "hello" }))
        .send()
        .await
        .unwrap();
    assert!(json_of(answer).await["parameters"]["retry_after"].is_u64());

    let slack = fake(FakeProvider::Slack, "/services/T1/B1/x", "").await;
    let url = format!("{}/services/T1/B1/x", slack.url());
    let answer = client
        .post(&url)
        .json(&json!({ "text": "hello" }))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.text().await.unwrap(), "ok");
    let url = format!("{}/api/chat.postMessage", slack.url());
    let answer = client
        .post(&url)
        .bearer_auth("xoxb-no")
        .json(&json!({ "text": "a", "channel": "C1" }))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(
        json_of(answer).await,
        json!({ "ok": false, "error": "invalid_auth" })
    );

    let mailgun = fake(FakeProvider::Mailgun, "mg.example.com", "key").await;
    let form = [
        ("from", "b@example.com"),
        ("to", "a@example.com"),
        ("text", "hello"),
    ];
    let url = format!("{}/v3/mg.example.com/messages", mailgun.url());
    let answer = client
        .post(&url)
        .basic_auth("api", Some("key"))
        .form(&form)
        .send()
        .await
        .unwrap();
    assert_eq!(json_of(answer).await["message"], "Queued. Thank you.");
}

pub fn push(client: &Client, fake: &Fake, device: &str) -> RequestBuilder {
    let token = token(
        &json!({ "alg": "ES256", "kid": "K1" }),
        &json!({ "iss": "TEAM", "iat": now_s() }),
    );
    let request = client
        .post(format!("{}/3/device/{device}", fake.url()))
        .bearer_auth(token);
    request
        .header("apns-topic", "com.example")
        .body(r#"{"aps":{"alert":"hello"}}"#)
}

#[tokio::test]
async fn apns_speaks_http2_checks_tokens_and_says_goodbye() {
    let (fake, client) = (fake(FakeProvider::Apns, "TEAM", "").await, http2());
    let answer = push(&client, &fake, "00ff")
        .header("apns-id", "11111111-2222-4333-8444-555555555555")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (answer.status().as_u16(), answer.version()),
        (200, reqwest::Version::HTTP_2)
    );
    assert_eq!(
        answer.headers()["apns-id"],
        "11111111-2222-4333-8444-555555555555"
    );
    fake.bury("00ff");
    let answer = push(&client, &fake, "00ff").send().await.unwrap();
    assert_eq!(answer.status(), 410);
    let body = json_of(answer).await;
    assert!(
        body["reason"] == "Unregistered" && body["timestamp"].is_u64(),
        "{body}"
    );
    let answer = push(&client, &fake, "zz").send().await.unwrap();
    assert_eq!(json_of(answer).await["reason"], "BadDeviceToken");
    let answer = client
        .post(format!("{}/3/device/00ff", fake.url()))
        .body("{}")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (
            answer.status().as_u16(),
            json_of(answer).await["reason"].as_str().unwrap()
        ),
        (403, "MissingProviderToken")
    );
    assert_eq!(fake.connections(), (1, 1));
    fake.say_goodbye();
    eventually("the connection is closed", LONG, || async {
        (fake.connections().0 == 0).then_some(())
    })
    .await;
    assert_eq!(
        push(&client, &fake, "00aa").send().await.unwrap().status(),
        200
    );
    assert_eq!(fake.connections(), (1, 2));
}

#[tokio::test]
async fn fcm_wants_a_token_that_it_gave_out() {
    let (fake, client) = (fake(FakeProvider::Fcm, "project", "").await, client());
    let url = format!("{}/v1/projects/project/messages:send", fake.url());
    let body = json!({ "message": { "token": "device" } });
    let answer = client
        .post(&url)
        .bearer_auth("made-up")
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(json_of(answer).await["error"]["status"], "UNAUTHENTICATED");
    let claims = json!({
        "iss": "a@project.iam.gserviceaccount.com", "aud": format!("{}/token", fake.url()), "iat": now_s(), "exp": now_s() + 3_600,
        "scope": "https://www.googleapis.com/auth/firebase.messaging",
    });
    let assertion = token(&json!({ "alg": "RS256" }), &claims);
    let form = [
        ("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
        ("assertion", &assertion),
    ];
    let given = json_of(
        client
            .post(format!("{}/token", fake.url()))
            .form(&form)
            .send()
            .await
            .unwrap(),
    )
    .await;
    let token = given["access_token"].as_str().unwrap();
    let answer = client
        .post(&url)
        .bearer_auth(token)
        .json(&body)
        .send()
        .await
        .unwrap();
    assert!(
        json_of(answer).await["name"]
            .as_str()
            .unwrap()
            .starts_with("projects/project/messages/")
    );
    fake.revoke_tokens();
    assert_eq!(
        client
            .post(&url)
            .bearer_auth(token)
            .json(&body)
            .send()
            .await
            .unwrap()
            .status(),
        401
    );
}

#[tokio::test]
async fn smtp_takes_a_mail_line_by_line() {
    let fake = fake(FakeProvider::Smtp, "user", "password").await;
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", fake.port()))
        .await
        .unwrap();
    let mut talk = async |line: &str, code: &str| {
        stream.write_all(line.as_bytes()).await.unwrap();
        let mut reply = vec![0; 4096];
        let read = tokio::time::timeout(LONG, stream.read(&mut reply))
            .await
            .unwrap()
            .unwrap();
        let reply = String::from_utf8_lossy(&reply[..read]).into_owned();
        assert!(reply.starts_with(code), "{line:?}: {reply}");
    };
    talk("", "220").await;
    talk("EHLO me\r\n", "250-").await;
    talk("MAIL FROM:<b@example.com>\r\n", "530 5.7.0").await;
    talk(
        &format!("AUTH PLAIN {}\r\n", STANDARD.encode("\0user\0wrong")),
        "535 5.7.8",
    )
    .await;
    talk(
        &format!("AUTH PLAIN {}\r\n", STANDARD.encode("\0user\0password")),
        "235",
    )
    .await;
    for (mail, code) in [
        ("hello", "250 2.0.0 OK queued as FAKE"),
        ("hello", "451 4.7.0"),
    ] {
        talk("MAIL FROM:<b@example.com>\r\n", "250").await;
        talk("RCPT TO:<a@example.com>\r\n", "250").await;
        talk("DATA\r\n", "354").await;
        talk(&format!("Subject: s\r\n\r\n{mail}\r\n.\r\n"), code).await;
        fake.set_quota("user", Some(WindowQuota::per_second(0.0)));
    }
    assert_eq!(
        (fake.totals("user").accepted, fake.totals("user").refused),
        (1, 1)
    );
}
