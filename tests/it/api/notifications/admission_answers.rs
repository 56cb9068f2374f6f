//! The limits of a tenant on every answer about its messages, whatever the status.

use flyball::throttle::admission::TenantLimits;
use reqwest::{Method, Response};
use serde_json::{Value, json};

use super::admission::*;
use crate::support::eventually;

/// Asserts the status and the code of an answer, and that it tells the limits in both forms.
async fn told(answer: Response, status: u16, code: &str) {
    let all: Vec<&str> = limits_of(&answer)
        .into_iter()
        .chain(["ratelimit", "ratelimit-policy"].map(|name| header(&answer, name)))
        .collect();
    assert!(!all.contains(&"absent"), "{status} {code}: {all:?}");
    assert!(all[6].starts_with("\"tenant\";q="), "{all:?}");
    let got = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    let body: Value = serde_json::from_str(&text).unwrap_or_default();
    let said = body["code"].as_str().unwrap_or_default();
    assert_eq!((got, said), (status, code), "{text}");
}

impl AdmissionServer {
    /// Sends a body that need not be JSON.
    async fn post(&self, who: &str, path: &str, content_type: &str, body: String) -> Response {
        let request = self.server.request(Method::POST, path);
        let request = request.header("content-type", content_type);
        request
            .bearer_auth(secret(who))
            .body(body)
            .send()
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn every_status_tells_the_limits() {
    let served = admission_server(TenantLimits {
        per_module: 2,
        ..TenantLimits::default()
    })
    .await;
    let (one, many) = ("/api/v1/notifications", "/api/v1/notifications/batch");
    let json_type = "application/json";
    let key = [("idempotency-key", "k")];
    told(served.send_with("web", &message(0), &key).await, 202, "").await;
    told(served.send_with("web", &message(0), &key).await, 200, "").await;
    told(served.ask("web", Method::GET, one).await, 200, "").await;
    told(
        served.send_with("web", &message(1), &key).await,
        422,
        "idempotency_key_reused",
    )
    .await;
    let bad_key = [("idempotency-key", "")];
    told(
        served.send_with("web", &message(1), &bad_key).await,
        400,
        "invalid_header",
    )
    .await;
    told(
        served.post("web", one, json_type, "{".to_owned()).await,
        400,
        "malformed_json",
    )
    .await;
    let all: Vec<String> = (0..501).map(|n| format!("a{n}@b.c")).collect();
    let body = json!({"channel": "email", "body": "x", "recipients": all}).to_string();
    told(
        served.post("web", many, json_type, body).await,
        400,
        "BATCH_LIMIT_EXCEEDED",
    )
    .await;
    let mut critical = message(2);
    critical["priority"] = json!("critical");
    told(served.send("web", &critical).await, 403, "not_allowed").await;
    let unknown = format!("{one}/99999999");
    told(
        served.ask("web", Method::GET, &unknown).await,
        404,
        "notification_not_found",
    )
    .await;
    let unknown = format!("{one}/batches/999");
    told(
        served.ask("web", Method::GET, &unknown).await,
        404,
        "batch_not_found",
    )
    .await;
    let no_route = format!("{one}/1/2/3");
    told(
        served.ask("tenant-admin", Method::GET, &no_route).await,
        404,
        "route_not_found",
    )
    .await;
    told(
        served.ask("tenant-admin", Method::PUT, one).await,
        405,
        "method_not_allowed",
    )
    .await;
    let large = format!("{{\"body\": \"{}\"}}", "x".repeat(2 * 1024 * 1024));
    told(
        served.post("web", one, json_type, large).await,
        413,
        "too_large",
    )
    .await;
    told(
        served.send("web", &json!({"channel": "fax"})).await,
        422,
        "invalid_fields",
    )
    .await;
    told(served.send("web", &message(3)).await, 202, "").await;
    told(
        served.send("web", &message(4)).await,
        429,
        "RATE_LIMIT_EXCEEDED",
    )
    .await;
    served.queue_max(3).await;
    told(served.send("web", &message(5)).await, 503, "QUEUE_FULL").await;
}

#[tokio::test]
async fn a_request_that_runs_already_tells_the_limits_and_when_to_come_back() {
    let served = admission_server(TenantLimits::default()).await;
    let key = [("idempotency-key", "slow")];
    // The first request decides, and waits to write down its key.
    let mut blocking = served.server.queue.pool.begin().await.unwrap();
    sqlx::query("lock table flyball.idempotency in exclusive mode")
        .execute(&mut *blocking)
        .await
        .unwrap();
    let body = message(0);
    let first = served.send_with("web", &body, &key);
    let second = async {
        eventually("the first waits", SOON, || async {
            let waiting = served
                .count("select count(*) from pg_locks where not granted and relation = 'flyball.idempotency'::regclass")
                .await;
            (waiting > 0).then_some(())
        })
        .await;
        let second = served.send_with("web", &body, &key).await;
        assert_eq!(header(&second, "retry-after"), "1");
        told(second, 409, "request_running").await;
        blocking.rollback().await.unwrap();
    };
    let (first, ()) = tokio::join!(first, second);
    told(first, 202, "").await;
    assert_eq!(served.count("select count(*) from flyball.job").await, 1);
}

#[tokio::test]
async fn the_apis_own_429_says_no_and_that_of_the_limits_says_later() {
    let served = at_its_limit().await;
    let later = served.send("web", &message(1)).await;
    assert_eq!(header(&later, "notification-status"), "queued");
    told(later, 429, "RATE_LIMIT_EXCEEDED").await;
    served
        .server
        .turn("api:enqueue:acme", &[("rps", "0.001"), ("burst", "1")])
        .await;
    let jobs = served.count("select count(*) from flyball.job").await;
    let no = eventually("the API refuses", SOON, || async {
        let answer = served.send("shop", &json!({})).await;
        (answer.status() == 429).then_some(answer)
    })
    .await;
    assert_eq!(header(&no, "notification-status"), "absent");
    assert_eq!(header(&no, "location"), "absent");
    told(no, 429, "too_many_requests").await;
    assert_eq!(served.count("select count(*) from flyball.job").await, jobs);
}
