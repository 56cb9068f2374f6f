//! The fakes themselves: what the providers' own documentation shows works against them, and their quotas and faults are real.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use flyball_fakes::{
    Events, Fake, FakeOptions, Fate, Fault, Latency, Rule, RuleMatch, SecondTotals, Speaks,
    WindowQuota,
};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::eventually;

const LONG: Duration = Duration::from_secs(30);
const SID: &str = "AC00000000000000000000000000000001";

fn client() -> Client {
    Client::builder().no_proxy().timeout(LONG).build().unwrap()
}

fn http2() -> Client {
    Client::builder()
        .no_proxy()
        .timeout(LONG)
        .http2_prior_knowledge()
        .build()
        .unwrap()
}

fn secrets(account: &str, secret: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(account.to_owned(), secret.to_owned())])
}

async fn fake(speaks: Speaks, account: &str, secret: &str) -> Fake {
    let options = FakeOptions {
        secrets: secrets(account, secret),
        tells_delay: true,
        ..FakeOptions::default()
    };
    Fake::start(speaks, options).await.unwrap()
}

fn token(head: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!(
        "{}.{}.{}",
        part(head),
        part(claims),
        URL_SAFE_NO_PAD.encode("signature")
    )
}

fn now_s() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

fn twilio(client: &Client, fake: &Fake, password: &str) -> RequestBuilder {
    let form = [
        ("To", "+15005550006"),
        ("From", "+15005550001"),
        ("Body", "hello"),
    ];
    let url = format!("{}/2010-04-01/Accounts/{SID}/Messages.json", fake.url());
    client.post(url).basic_auth(SID, Some(password)).form(&form)
}

async fn json_of(response: Response) -> Value {
    response.json().await.unwrap()
}

#[tokio::test]
async fn twilio_queues_a_message_and_says_what_is_wrong_with_another() {
    let (fake, client) = (fake(Speaks::Twilio, SID, "right").await, client());
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
    let sendgrid = fake(Speaks::Sendgrid, "SG.key", "").await;
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

    let telegram = fake(Speaks::Telegram, "1:abc", "").await;
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

    let slack = fake(Speaks::Slack, "/services/T1/B1/x", "").await;
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

    let mailgun = fake(Speaks::Mailgun, "mg.example.com", "key").await;
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

#[tokio::test]
async fn a_quota_lets_exactly_its_limit_through_each_second_and_can_change_silently() {
    let (fake, client) = (fake(Speaks::Twilio, SID, "right").await, client());
    fake.set_quota(SID, Some(WindowQuota::per_second(5.0)));
    for _ in 0..40 {
        twilio(&client, &fake, "right").send().await.unwrap();
    }
    fake.set_quota(SID, Some(WindowQuota::per_second(1.0)));
    for _ in 0..10 {
        twilio(&client, &fake, "right").send().await.unwrap();
    }
    let (seconds, totals) = (fake.per_second(SID), fake.totals(SID));
    assert!(
        seconds.iter().all(|second| second.accepted <= 5),
        "{seconds:?}"
    );
    let sum = |of: fn(&SecondTotals) -> u32| {
        seconds
            .iter()
            .map(|second| u64::from(of(second)))
            .sum::<u64>()
    };
    assert_eq!(
        (sum(|one| one.accepted), sum(|one| one.refused)),
        (totals.accepted, totals.refused)
    );
    assert_eq!(totals.requests, 50);
    assert!(
        totals.refused > 0 && totals.duplicates == totals.accepted - 1,
        "{totals:?}"
    );
}

#[tokio::test]
async fn faults_come_by_the_plan_and_a_reset_counts_as_accepted() {
    let rule = |nth, fault| Rule {
        account: None,
        when: RuleMatch::Nth(nth, nth),
        fault,
    };
    let plan = vec![
        rule(1, Fault::Status(503)),
        rule(2, Fault::ResetAfterWrite),
        rule(3, Fault::CloseBeforeRead),
        rule(4, Fault::Garbage),
        rule(5, Fault::Hang),
        rule(6, Fault::Suspend),
    ];
    let fake = Fake::start(
        Speaks::Twilio,
        FakeOptions {
            plan,
            ..FakeOptions::default()
        },
    )
    .await
    .unwrap();
    // A client that asks again by itself where a kept connection was closed would hide a fault.
    let send = || async {
        let client = Client::builder()
            .no_proxy()
            .pool_max_idle_per_host(0)
            .timeout(LONG)
            .build()
            .unwrap();
        twilio(&client, &fake, "any").send().await
    };
    assert_eq!(send().await.unwrap().status(), 503);
    assert!(send().await.is_err());
    assert_eq!(fake.totals(SID).accepted, 1);
    assert!(send().await.is_err());
    assert_eq!(fake.totals(SID).accepted, 1);
    assert!(
        send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
            .starts_with("<html>")
    );
    assert!(
        tokio::time::timeout(Duration::from_millis(300), send())
            .await
            .is_err(),
        "it hangs"
    );
    assert_eq!(json_of(send().await.unwrap()).await["code"], 20005);
    assert_eq!(send().await.unwrap().status(), 201);
    assert_eq!(fake.totals(SID).requests, 7);
}

fn push(client: &Client, fake: &Fake, device: &str) -> RequestBuilder {
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
    let (fake, client) = (fake(Speaks::Apns, "TEAM", "").await, http2());
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
async fn latency_grows_with_what_is_under_way() {
    let latency = Latency {
        base: Duration::from_millis(20),
        at_once: 2,
    };
    let fake = Fake::start(
        Speaks::Apns,
        FakeOptions {
            latency: Some(latency),
            ..FakeOptions::default()
        },
    )
    .await
    .unwrap();
    let client = http2();
    let started = tokio::time::Instant::now();
    let all = (0..20).map(|_| push(&client, &fake, "00ff").send());
    for answer in futures_util::future::join_all(all).await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    assert!(
        started.elapsed() >= latency.expected(20),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn fcm_wants_a_token_that_it_gave_out() {
    let (fake, client) = (fake(Speaks::Fcm, "project", "").await, client());
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
    let fake = fake(Speaks::Smtp, "user", "password").await;
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

/// A request as it was posted: headers and bytes.
pub type Posted = (axum::http::HeaderMap, Vec<u8>);

/// The URL of a server that keeps what is posted to it.
pub async fn mailbox() -> (String, Arc<Mutex<Vec<Posted>>>) {
    let kept: Arc<Mutex<Vec<Posted>>> = Arc::default();
    let keep = kept.clone();
    let router = axum::Router::new().fallback(
        move |headers: axum::http::HeaderMap, body: axum::body::Bytes| async move {
            keep.lock().unwrap().push((headers, body.to_vec()));
        },
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/events?a=b", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, kept)
}

fn told(callback: &str) -> Events {
    let delay = Duration::from_millis(10);
    let shares = vec![(Fate::Delivered, 1.0)];
    Events {
        callback: callback.to_owned(),
        shares,
        delay,
        duplicates: 1.0,
        secret: "secret".to_owned(),
        ..Events::default()
    }
}

#[tokio::test]
async fn events_come_back_signed_and_twice_where_the_plan_says_so() {
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
    let (url, kept) = mailbox().await;
    let options = FakeOptions {
        secrets: secrets(SID, "right"),
        events: Some(told(&url)),
        ..FakeOptions::default()
    };
    let fake = Fake::start(Speaks::Twilio, options).await.unwrap();
    twilio(&client(), &fake, "right").send().await.unwrap();
    let two = || async {
        let mut kept = kept.lock().unwrap();
        (kept.len() >= 2).then(|| std::mem::take(&mut *kept))
    };
    let posted = eventually("both events", LONG, two).await;
    assert_eq!(posted[0].1, posted[1].1, "a duplicate is the same event");
    let form: BTreeMap<String, String> = url::form_urlencoded::parse(&posted[0].1)
        .into_owned()
        .collect();
    assert_eq!(
        (form["MessageStatus"].as_str(), &form["MessageSid"]),
        ("delivered", &fake.received(SID)[0].id)
    );
    let text = form
        .iter()
        .fold(url.clone(), |text, (name, value)| text + name + value);
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, b"right");
    let signature = STANDARD.decode(&posted[0].0["x-twilio-signature"]).unwrap();
    aws_lc_rs::hmac::verify(&key, text.as_bytes(), &signature).unwrap();

    let fake = Fake::start(
        Speaks::Sendgrid,
        FakeOptions {
            events: Some(told(&url)),
            ..FakeOptions::default()
        },
    )
    .await
    .unwrap();
    let mail = json!({
        "personalizations": [{ "to": [{ "email": "a@example.com" }] }], "from": { "email": "b@example.com" }, "content": [],
    });
    client()
        .post(format!("{}/v3/mail/send", fake.url()))
        .bearer_auth("k")
        .json(&mail)
        .send()
        .await
        .unwrap();
    let posted = eventually("both events", LONG, two).await;
    let (headers, body) = &posted[0];
    let at = headers["x-twilio-email-event-webhook-timestamp"].as_bytes();
    let signature = STANDARD
        .decode(&headers["x-twilio-email-event-webhook-signature"])
        .unwrap();
    let key = UnparsedPublicKey::new(
        &ECDSA_P256_SHA256_ASN1,
        STANDARD.decode(fake.event_key()).unwrap(),
    );
    key.verify(&[at, body].concat(), &signature).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(body).unwrap()[0]["event"],
        "delivered"
    );
    eventually("both are counted", LONG, || async {
        (fake.events() == (2, 0)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn sns_asks_first_and_signs_with_the_key_of_the_certificate_that_it_serves() {
    let (url, kept) = mailbox().await;
    let fake = Fake::start(Speaks::Ses, FakeOptions::default())
        .await
        .unwrap();
    assert_eq!(fake.subscribe("AKIA1", &url).await, Some(200));
    let (headers, body) = kept.lock().unwrap().remove(0);
    assert_eq!(
        headers["x-amz-sns-message-type"],
        "SubscriptionConfirmation"
    );
    let asked: Value = serde_json::from_slice(&body).unwrap();
    let field = |name: &str| asked[name].as_str().unwrap();
    let names = [
        "Message",
        "MessageId",
        "SubscribeURL",
        "Timestamp",
        "Token",
        "TopicArn",
        "Type",
    ];
    let text: String = names
        .iter()
        .map(|name| format!("{name}\n{}\n", field(name)))
        .collect();
    let pem = client()
        .get(field("SigningCertURL"))
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
    let certificate = pem.parse_x509().unwrap();
    let key = &certificate.public_key().subject_public_key.data;
    let key = aws_lc_rs::signature::UnparsedPublicKey::new(
        &aws_lc_rs::signature::RSA_PKCS1_2048_8192_SHA256,
        key,
    );
    key.verify(
        text.as_bytes(),
        &STANDARD.decode(field("Signature")).unwrap(),
    )
    .unwrap();
    assert!(!fake.is_subscribed("AKIA1"));
    assert_eq!(
        client()
            .get(field("SubscribeURL"))
            .send()
            .await
            .unwrap()
            .status(),
        200
    );
    assert!(fake.is_subscribed("AKIA1"));
}
