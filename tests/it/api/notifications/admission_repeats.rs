//! Repeated requests of tenants: keys, bodies, and clients that repeat until they are told 2xx.

use flyball::throttle::admission::TenantLimits;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::admission::*;
use crate::support::eventually;

#[tokio::test]
async fn a_bad_key_is_refused_by_its_name_and_nothing_is_sent() {
    let served = admission_server(TenantLimits::default()).await;
    let long = "k".repeat(256);
    for keys in [
        &[""][..],
        &["\"\""],
        &["a\"b"],
        &["clé"],
        &[&long],
        &["one", "two"],
        &["one", "one"],
    ] {
        let headers: Vec<(&str, &str)> = keys.iter().map(|key| ("idempotency-key", *key)).collect();
        let refused = served.send_with("web", &message(0), &headers).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{keys:?}");
        let body: Value = refused.json().await.unwrap();
        assert_eq!(body["code"], "invalid_header");
        let said = body["errors"].to_string();
        assert!(
            said.contains("Idempotency-Key") && said.contains("1 to 255"),
            "{said}"
        );
    }
    assert_eq!(served.count("select count(*) from flyball.job").await, 0);
    let longest = "k".repeat(255);
    let sent = served
        .send_with("web", &message(0), &[("idempotency-key", &longest)])
        .await;
    assert_eq!(sent.status(), StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_key_belongs_to_its_tenant_its_module_and_its_route() {
    let served = admission_server(TenantLimits::default()).await;
    let key = [("idempotency-key", "order-7")];
    for who in ["web", "shop", "else"] {
        let sent = served.send_with(who, &message(0), &key).await;
        assert_eq!(sent.status(), StatusCode::ACCEPTED, "{who}");
        let again = served.send_with(who, &message(0), &key).await;
        assert_eq!(again.status(), StatusCode::OK, "{who}");
    }
    let body = json!({"channel": "email", "body": "x", "recipients": ["ada0@example.com"]});
    let path = "/api/v1/notifications/batch";
    let request = served
        .server
        .request(Method::POST, path)
        .header(key[0].0, key[0].1);
    let batch = request.bearer_auth(secret("web")).json(&body);
    assert_eq!(
        batch.send().await.unwrap().status(),
        StatusCode::ACCEPTED,
        "a batch is another request"
    );
    assert_eq!(served.count("select count(*) from flyball.job").await, 4);
    // The order of a body's fields is no other body; what was said about it is.
    let text = r#"{"body": "x", "to": "ada0@example.com", "channel": "email"}"#;
    let reordered: Value = serde_json::from_str(text).unwrap();
    let same = served.send_with("web", &reordered, &key).await;
    assert_eq!(same.status(), StatusCode::OK);
    let mut other = message(0);
    other["subject"] = json!("s");
    let other = served.send_with("web", &other, &key).await;
    assert_eq!(other.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(served.count("select count(*) from flyball.job").await, 4);
}

#[tokio::test]
async fn fifty_requests_at_once_over_the_limit_are_one_message() {
    for key in [None, Some("once")] {
        let served = at_its_limit().await;
        let body = message(1);
        let headers = key.map(|key| ("idempotency-key", key));
        let all = (0..50).map(|_| served.send_with("web", &body, headers.as_slice()));
        let answers = futures_util::future::join_all(all).await;
        let mut ids = Vec::new();
        for answer in answers {
            let status = answer.status().as_u16();
            let body: Value = answer.json().await.unwrap();
            match status {
                429 => ids.push(body["notificationId"].clone()),
                409 if key.is_some() => {}
                _ => panic!("{key:?}: {status} {body}"),
            }
        }
        assert!(
            !ids.is_empty() && ids.iter().all(|id| *id == ids[0]),
            "{ids:?}"
        );
        assert_eq!(served.count("select count(*) from flyball.job").await, 2);
        served.pass(60);
        let worker = served.deliver(2).await;
        worker.stop().await;
    }
}

#[tokio::test]
async fn a_client_that_comes_back_when_it_was_told_to_has_sent_one_message() {
    for key in [None, Some("order-7")] {
        let served = at_its_limit().await;
        let body = message(1);
        let headers = key.map(|key| ("idempotency-key", key));
        let first = served.send_with("web", &body, headers.as_slice()).await;
        assert_eq!(first.status(), StatusCode::TOO_MANY_REQUESTS);
        let wait: i64 = header(&first, "retry-after").parse().unwrap();
        let id = first.json::<Value>().await.unwrap()["notificationId"].clone();
        // By then the message has gone.
        served.pass(wait);
        let worker = served.deliver(2).await;

        let again = served.send_with("web", &body, headers.as_slice()).await;

        assert_eq!(again.status(), StatusCode::OK, "{key:?}");
        assert_eq!(header(&again, "idempotent-replayed"), "true");
        let state: Value = again.json().await.unwrap();
        assert_eq!(state["id"].to_string(), id.as_str().unwrap());
        assert_eq!(
            served
                .count("select count(*) from flyball.job where kind = 'notification'")
                .await,
            2
        );
        // With a key it stays that message; without one an equal body is now another.
        served.pass(60);
        let third = served.send_with("web", &body, headers.as_slice()).await;
        let expected = if key.is_some() { 200 } else { 202 };
        assert_eq!(third.status().as_u16(), expected, "{key:?}");
        worker.stop().await;
    }
}

#[tokio::test]
async fn a_cancelled_message_may_be_sent_again() {
    let served = at_its_limit().await;
    let first = served.send("web", &message(1)).await;
    let id = first.json::<Value>().await.unwrap()["notificationId"].clone();
    let id: i64 = id.as_str().unwrap().parse().unwrap();
    let path = format!("/api/v1/notifications/{id}/cancel");
    for (who, status) in [
        ("watcher", 403),
        ("else", 404),
        // A module of its tenant, and again.
        ("shop", 200),
        ("web", 200),
    ] {
        let answer = served.ask(who, Method::POST, &path).await;
        assert_eq!(answer.status().as_u16(), status, "{who}");
    }
    let again = served.send("web", &message(1)).await;
    assert_eq!(again.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&again, "idempotent-replayed"), "absent");
    let other = again.json::<Value>().await.unwrap()["notificationId"].clone();
    assert_ne!(other.as_str().unwrap(), id.to_string());
}

#[tokio::test]
async fn a_message_that_waits_is_answered_as_each_request_prefers() {
    let served = at_its_limit().await;
    for (prefer, status) in [
        ("respond-async", 202),
        ("return=minimal", 429),
        ("wait=5, Respond-Async", 202),
    ] {
        let answer = served
            .send_with("web", &message(1), &[("prefer", prefer)])
            .await;
        assert_eq!(answer.status().as_u16(), status, "{prefer}");
        assert_eq!(header(&answer, "notification-status"), "queued");
        let applied = if status == 202 {
            "respond-async"
        } else {
            "absent"
        };
        assert_eq!(header(&answer, "preference-applied"), applied);
        assert_eq!(header(&answer, "retry-after"), "60");
    }
    assert_eq!(served.count("select count(*) from flyball.job").await, 2);
    let worker = served.deliver(1).await;
    eventually("it waits alone", SOON, || async {
        let waiting = served.count("select count(*) from flyball.ready").await;
        (waiting == 1).then_some(())
    })
    .await;
    worker.stop().await;
}
