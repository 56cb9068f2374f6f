//! Events of providers and their signatures.

use aws_lc_rs::hmac;
use flyball::notify::{DeliveryState, DeliveryUpdate};
use flyball::providers::{Channel, Recipient};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::fixture::{Api, SIGNING_KEY, event, spawn};

#[tokio::test]
async fn events_need_the_providers_signature_and_no_token_and_count_once() {
    let api = spawn().await;
    let id = api.notified(json!({})).await;
    api.sent(id, "a1").await;
    let path = format!("/api/v1/notifications/{id}");

    let forged = api
        .post_event("mail/a1", "another key", event("e1", id, "delivered"))
        .await;
    assert_eq!(forged.status(), StatusCode::UNAUTHORIZED);
    let forged = forged.text().await.unwrap();
    assert!(
        !forged.contains("HMAC") && !forged.contains("match"),
        "no detail: {forged}"
    );
    for unknown in ["mail/a9", "male/a1"] {
        let response = api
            .post_event(unknown, SIGNING_KEY, event("e1", id, "delivered"))
            .await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{unknown}");
        assert_eq!(
            response.json::<Value>().await.unwrap()["code"],
            "account_not_found"
        );
    }
    assert_eq!(api.get(&path).await["state"], "sent");

    for _ in 0..2 {
        assert_eq!(
            api.post_event("mail/a1", SIGNING_KEY, event("e1", id, "delivered"))
                .await
                .status(),
            StatusCode::NO_CONTENT
        );
    }
    assert_eq!(api.get(&path).await["state"], "delivered");
    let delivered: i64 =
        sqlx::query_scalar("select delivered from flyball.account_tally where account = 'a1'")
            .fetch_one(api.database.pool())
            .await
            .unwrap();
    assert_eq!(delivered, 1);

    assert_eq!(
        api.post_event("mail/a1", SIGNING_KEY, event("e2", id, "complained"))
            .await
            .status(),
        StatusCode::NO_CONTENT
    );
    let shown = api.get(&path).await;
    assert_eq!(
        (&shown["state"], &shown["complained"]),
        (&json!("delivered"), &json!(true))
    );
    let listed = api
        .get("/api/v1/suppressions?channel=email&recipient=ADA@example.com")
        .await;
    let suppression = &listed["suppressions"][0];
    assert_eq!(
        (&suppression["reason"], &suppression["account"]),
        (&json!("complained"), &json!("a1"))
    );

    // All other routes still need the token.
    let open = api
        .client
        .get(format!("{}{path}", api.base))
        .send()
        .await
        .unwrap();
    assert_eq!(open.status(), StatusCode::UNAUTHORIZED);
    let large = api
        .client
        .post(format!("{}/api/v1/provider-events/mail/a1", api.base))
        .body(vec![b'x'; 1_100_000]);
    assert_eq!(
        large.send().await.unwrap().status(),
        StatusCode::PAYLOAD_TOO_LARGE
    );
}

/// Sends events with a wrong signature until their address must wait.
async fn deny(api: &Api, id: i64) {
    api.turn("api:denied", &[("key_rps", "0.0001"), ("rps", "-1")])
        .await;
    let mut forged = StatusCode::UNAUTHORIZED;
    // A full bucket holds a few.
    for _ in 0..9 {
        let delivered = event("e1", id, "delivered");
        let answer = api.post_event("mail/a1", "another key", delivered).await;
        forged = answer.status();
    }
    assert_eq!(forged, StatusCode::TOO_MANY_REQUESTS);
}

/// Behind a proxy a stranger has the address of everybody.
#[tokio::test]
async fn a_provider_is_heard_whatever_others_of_its_address_send() {
    let api = spawn().await;
    let id = api.notified(json!({})).await;
    api.sent(id, "a1").await;
    deny(&api, id).await;

    let delivered = event("e1", id, "delivered");
    let heard = api.post_event("mail/a1", SIGNING_KEY, delivered).await;
    assert_eq!(heard.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_provider_is_heard_while_bodies_of_others_of_its_address_do_not_end() {
    let api = spawn().await;
    let id = api.notified(json!({})).await;
    api.sent(id, "a1").await;
    deny(&api, id).await;
    let address = api.base.trim_start_matches("http://");
    let head = format!(
        "POST /api/v1/provider-events/mail/a1 HTTP/1.1\r\nhost: {address}\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n"
    );
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        // The body is waited for.
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 100");
        open.push(stream);
    }

    let delivered = event("e1", id, "delivered");
    let heard = api.post_event("mail/a1", SIGNING_KEY, delivered).await;
    assert_eq!(heard.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_signature_of_mailgun_is_good_for_one_body_however_often_that_comes() {
    let api = spawn().await;
    let id = api.notified(json!({})).await;
    api.sent(id, "a1").await;
    let (at_s, delivered) = (
        flyball::api::clock::now().as_second(),
        event("e1", id, "delivered"),
    );
    for _ in 0..2 {
        let again = api
            .post_event_with("mail/a1", SIGNING_KEY, (at_s, "once"), delivered.clone())
            .await;
        assert_eq!(again.status(), StatusCode::NO_CONTENT);
    }
    let mut forged = event("e2", id, "complained");
    forged["recipient"] = json!("ceo@bigcustomer.example");

    let refused = api
        .post_event_with("mail/a1", SIGNING_KEY, (at_s, "once"), forged.clone())
        .await;

    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    let listed = api
        .get("/api/v1/suppressions?channel=email&recipient=ceo@bigcustomer.example")
        .await;
    assert_eq!(listed["suppressions"], json!([]));
    // An event that is ignored uses its signature up as well.
    let opened = event("e3", id, "opened");
    for (body, status) in [
        (opened.clone(), StatusCode::NO_CONTENT),
        (opened, StatusCode::NO_CONTENT),
        (forged, StatusCode::UNAUTHORIZED),
    ] {
        let answer = api
            .post_event_with("mail/a1", SIGNING_KEY, (at_s, "opened"), body)
            .await;
        assert_eq!(answer.status(), status);
    }
    let listed = api
        .get("/api/v1/suppressions?channel=email&recipient=ceo@bigcustomer.example")
        .await;
    assert_eq!(listed["suppressions"], json!([]));
    // Eight at once, as from several processes: exactly one is accepted.
    let each = (0..8).map(|n| {
        api.post_event_with(
            "mail/a1",
            SIGNING_KEY,
            (at_s, "race"),
            event(&format!("r{n}"), id, "delivered"),
        )
    });
    let believed = futures_util::future::join_all(each)
        .await
        .iter()
        .filter(|answer| answer.status() == 204)
        .count();
    assert_eq!(believed, 1);
}

#[tokio::test]
async fn an_event_of_twilio_is_checked_against_the_address_that_the_outside_knows() {
    let api = spawn().await;
    let id = api
        .notified(json!({"channel": "sms", "to": "+15550100000"}))
        .await;
    let written = DeliveryUpdate {
        job_id: id,
        channel: Channel::Sms,
        pool: "texts".into(),
        provider: "twilio",
        account: Some("t1".into()),
        state: DeliveryState::Sent,
        provider_id: Some("SM1".into()),
        recipient: Some(Recipient::parse(Channel::Sms, "+15550100000").unwrap()),
        category: String::new(),
        attempts: Vec::new(),
        suppress: None,
        met: None,
    };
    api.deliveries().record(written).await.unwrap();
    let path = "/api/v1/provider-events/texts/t1";
    let post = async |public: &str| {
        let signed = format!("{public}{path}MessageSidSM1MessageStatusdeliveredTo+15550100000");
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, SIGNING_KEY.as_bytes());
        let signature = base64(hmac::sign(&key, signed.as_bytes()).as_ref());
        let body = "MessageSid=SM1&MessageStatus=delivered&To=%2B15550100000";
        let request = api
            .client
            .post(format!("{}{path}", api.base))
            .header("x-twilio-signature", signature);
        request
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body)
            .send()
            .await
            .unwrap()
            .status()
    };

    assert_eq!(post(&api.base).await, StatusCode::UNAUTHORIZED);
    assert_eq!(
        post("https://jobs.example.com").await,
        StatusCode::NO_CONTENT
    );
    assert_eq!(
        api.get(&format!("/api/v1/notifications/{id}")).await["state"],
        "delivered"
    );
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
