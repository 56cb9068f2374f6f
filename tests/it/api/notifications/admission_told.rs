//! Answers to senders about messages that wait: priority, time and reason.

use std::time::Duration;

use flyball::throttle::Name;
use flyball::throttle::admission::TenantLimits;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::admission::*;

/// The token with every scope within the tenant.
const ADMIN: &str = "tenant-admin";

impl AdmissionServer {
    async fn shown(&self, path: &str) -> Value {
        let shown = self.ask(ADMIN, Method::GET, path).await;
        assert_eq!(shown.status(), StatusCode::OK, "{path}");
        shown.json().await.unwrap()
    }

    async fn enqueue(&self, path: &str, body: &Value, key: Option<&str>) -> Response {
        let mut request = self.server.request(Method::POST, path);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.bearer_auth(secret(ADMIN)).json(body);
        request.send().await.unwrap()
    }
}

#[tokio::test]
async fn a_critical_message_that_waits_is_told_that_it_is_high() {
    let served = admission_server(TenantLimits {
        per_module: 1,
        critical_per_minute: 1,
        ..TenantLimits::default()
    })
    .await;
    let critical = |n| {
        let mut body = message(n);
        body["priority"] = json!("critical");
        body
    };
    served.admitted("urgent", 0..1).await;
    let sent = served.send("urgent", &critical(1)).await;
    assert_eq!(sent.status(), StatusCode::ACCEPTED);

    let late = served.send("urgent", &critical(2)).await;

    assert_eq!(late.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&late, "content-type"), "application/problem+json");
    let location = header(&late, "location").to_owned();
    let body: Value = late.json().await.unwrap();
    assert_eq!(
        (&body["code"], &body["priority"], &body["errors"]),
        (&json!("RATE_LIMIT_EXCEEDED"), &json!("high"), &json!([]))
    );
    let warning = body["warnings"][0].as_str().unwrap();
    assert!(warning.contains("has the priority high"), "{warning}");
    assert_eq!(served.shown(&location).await["priority"], "high");
    // A repeat is told the same priority.
    let again = served.send("urgent", &critical(2)).await;
    let again: Value = again.json().await.unwrap();
    assert_eq!(again["notificationId"], body["notificationId"]);
    assert_eq!(again["priority"], "high");
}

#[tokio::test]
async fn the_third_of_three_modules_is_told_the_window_that_its_own_limit_adds() {
    let served = admission_server(TenantLimits::default()).await;
    let mut told = Vec::new();
    for who in ["web", "shop", "blog"] {
        for n in 0..60 {
            let sent = served.send(who, &message(n)).await;
            told.push(header(&sent, "retry-after").to_owned());
        }
    }
    let of_blog: Vec<&str> = told[120..].iter().map(String::as_str).collect();
    assert_eq!((of_blog[0], of_blog[49]), ("60", "60"));
    assert_eq!(of_blog[50..], ["120"; 10]);
}

#[tokio::test]
async fn a_paused_tenant_is_told_no_time_and_only_operators_end_their_pause() {
    let served = admission_server(TenantLimits::default()).await;
    served.admitted("web", 0..1).await;
    served.server.turn("notify:acme", &[("paused", "1")]).await;

    let late = served.send("web", &message(1)).await;

    assert_eq!(late.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&late, "retry-after"), "60");
    let location = header(&late, "location").to_owned();
    let body: Value = late.json().await.unwrap();
    let why = "The notifications of this tenant are paused by operators. Notification queued \
               until they are resumed.";
    assert_eq!(body["detail"], why);
    let id = body["notificationId"].as_str().unwrap();
    assert_eq!(
        served.shown(&location).await["held"],
        json!({"until": null, "by": null, "place": 1, "why": why})
    );
    let waits = "waits for the limits of its tenant: paused by operators";
    let job = served.shown(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!(
        job["waiting"],
        json!({"reason": format!("it {waits}"), "until": null})
    );
    let explained = served.shown(&format!("{location}/explain")).await;
    assert_eq!(
        (&explained["sentence"], &explained["planned_at"]),
        (
            &json!(format!("message {id} has passed its gates and {waits}")),
            &Value::Null
        )
    );

    let turn = async |word: &str| {
        let path = format!("/api/v1/throttles/notify:acme/{word}");
        served.ask(ADMIN, Method::POST, &path).await
    };
    // Paused once more, it would be the tenant's own pause.
    for word in ["resume", "pause", "resume"] {
        let refused = turn(word).await;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN, "{word}");
        let refused: Value = refused.json().await.unwrap();
        assert_eq!(refused["code"], "not_allowed");
    }
    served.server.turn("notify:acme", &[("paused", "0")]).await;
    assert_eq!(turn("pause").await.status(), StatusCode::OK);
    let late = served.send("web", &message(2)).await;
    let body: Value = late.json().await.unwrap();
    let detail = body["detail"].as_str().unwrap();
    assert!(detail.contains("paused by the tenant"), "{detail}");
    assert_eq!(turn("resume").await.status(), StatusCode::OK);
    let shown = served.shown(&location).await;
    assert!(shown["held"]["until"].is_string(), "{shown}");
}

#[tokio::test]
async fn the_told_time_respects_rates_and_every_pause() {
    let served = at_its_limit().await;
    let late = served.send("web", &message(1)).await;
    assert_eq!(header(&late, "retry-after"), "60");
    let path = header(&late, "location").to_owned();
    let path = path.as_str();
    let held = async || served.shown(path).await["held"].clone();
    // Seconds from now to the told time; some may pass between the answer and the look.
    let wait_s = async || {
        let told: jiff::Timestamp = held().await["until"].as_str().unwrap().parse().unwrap();
        told.duration_since(flyball::api::clock::now()).as_secs()
    };

    served.server.turn("notify:acme", &[("rps", "0.005")]).await;
    assert!((180..=200).contains(&wait_s().await), "{}", held().await);
    served.server.turn("notify:acme", &[("rps", "-1")]).await;

    let name = Name::new("notify:acme").unwrap();
    let store = served.server.store.clone();
    let pause = Duration::from_secs(600);
    store
        .pause_key(&name, "web", pause, "a loop")
        .await
        .unwrap();
    assert!((580..=600).contains(&wait_s().await), "{}", held().await);
    assert_eq!(
        held().await["why"],
        "The notifications of this module are paused by operators. Notification queued with 600s delay."
    );

    let signed = flyball::jobs::Attribution::default();
    served.server.queue.pause_all(&signed).await.unwrap();
    assert_eq!(
        held().await,
        json!({"until": null, "by": null, "place": 1, "why": "The notifications of this tenant are paused by operators, \
            as all jobs are. Notification queued until they are resumed."})
    );
}

#[tokio::test]
async fn a_tenant_ends_no_pause_of_operators_of_one_of_its_modules() {
    let served = admission_server(TenantLimits::default()).await;
    served.admitted("web", 0..1).await;
    let store = served.server.store.clone();
    let name = Name::new("notify:acme").unwrap();
    let hour = Duration::from_secs(3600);
    let turn = async |who: &str, word: &str, seconds: u64| {
        let path = format!("/api/v1/throttles/notify:acme/keys/web/{word}");
        let body = match word {
            "pause" => json!({"seconds": seconds, "why": "a loop"}),
            _ => json!({}),
        };
        let request = served.server.request(Method::POST, &path);
        let answer = request.bearer_auth(secret(who)).json(&body).send().await;
        answer.unwrap()
    };

    store.pause_key(&name, "web", hour, "theirs").await.unwrap();
    // Made longer, it would be the tenant's own pause.
    for word in ["resume", "pause", "resume"] {
        let refused = turn(ADMIN, word, 7200).await;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN, "{word}");
        let refused: Value = refused.json().await.unwrap();
        assert_eq!(
            (&refused["code"], &refused["detail"]),
            (
                &json!("not_allowed"),
                &json!(
                    "key \"web\" of throttle notify:acme is paused by operators, and only they resume it"
                )
            )
        );
    }

    assert!(store.resume_key(&name, "web").await.unwrap());
    assert_eq!(turn(ADMIN, "pause", 7200).await.status(), StatusCode::OK);
    let keys = ["web".to_owned()];
    let paused = store.look(&name, &keys).await.unwrap().remove(0);
    assert_eq!(paused.why, "tenant:acme a loop");
    let resumed = turn(ADMIN, "resume", 0).await;
    assert_eq!(resumed.status(), StatusCode::OK);
    assert_eq!(resumed.json::<Value>().await.unwrap()["resumed"], true);

    // A shorter pause of operators makes the tenant's own theirs, with its end.
    assert_eq!(turn(ADMIN, "pause", 7200).await.status(), StatusCode::OK);
    assert_eq!(turn("root", "pause", 60).await.status(), StatusCode::OK);
    let theirs = store.look(&name, &keys).await.unwrap().remove(0);
    assert_eq!(theirs.why, "a loop");
    assert!(theirs.paused_until_ms >= paused.paused_until_ms);
    let refused = turn(ADMIN, "resume", 0).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn changes_of_a_tenant_that_meet_are_no_conflict() {
    let served = admission_server(TenantLimits::default()).await;
    served.admitted("web", 0..1).await;
    let turn = async |word: &str| {
        let path = format!("/api/v1/throttles/notify:acme/{word}");
        served.ask(ADMIN, Method::POST, &path).await.status()
    };
    for _ in 0..20 {
        let both = tokio::join!(turn("pause"), turn("resume"));
        assert_eq!(both, (StatusCode::OK, StatusCode::OK));
    }
}

#[tokio::test]
async fn a_message_is_explained_although_its_wait_cannot_be_read() {
    let served = admission_server(TenantLimits::default()).await;
    served.admitted("web", 0..1).await;
    served.server.turn("notify:acme", &[("paused", "1")]).await;
    let late = served.send("web", &message(1)).await;
    let location = header(&late, "location").to_owned();
    sqlx::query("alter function flyball.admission_places rename to places_away")
        .execute(&served.server.queue.pool)
        .await
        .unwrap();
    let explained = served.shown(&format!("{location}/explain")).await;
    assert_eq!(explained["state"], "queued");
}

#[expect(
    clippy::disallowed_methods,
    reason = "a day from now, whichever clock says so"
)]
fn tomorrow() -> String {
    let day = std::time::Duration::from_secs(86_400);
    (jiff::Timestamp::now() + day).to_string()
}

#[tokio::test]
async fn equal_messages_for_a_later_time_are_two_unless_they_have_a_key() {
    let served = admission_server(TenantLimits::default()).await;
    let mut later = message(0);
    later["run_at"] = json!(tomorrow());
    let mut ids = Vec::new();
    for _ in 0..2 {
        let sent = served.send("web", &later).await;
        assert_eq!(sent.status(), StatusCode::ACCEPTED);
        ids.push(sent.json::<Value>().await.unwrap()["id"].clone());
    }
    assert_ne!(ids[0], ids[1]);
    for status in [StatusCode::ACCEPTED, StatusCode::OK] {
        let key = [("idempotency-key", "order-7")];
        let sent = served.send_with("web", &later, &key).await;
        assert_eq!(sent.status(), status);
    }
    assert_eq!(served.count("select count(*) from flyball.job").await, 3);
}

#[tokio::test]
async fn messages_sent_as_jobs_take_no_idempotency_key_and_know_the_type_of_a_full_queue() {
    let served = admission_server(TenantLimits::default()).await;
    let job = |n| json!({"kind": "notification", "throttle": "mail", "args": message(n)});
    for (path, body) in [
        ("/api/v1/jobs", job(0)),
        ("/api/v1/jobs/batch", json!([job(0)])),
    ] {
        let refused = served.enqueue(path, &body, Some("order-7")).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{path}");
        let refused: Value = refused.json().await.unwrap();
        assert_eq!(refused["code"], "invalid_header");
        let said = refused["errors"].to_string();
        assert!(
            said.contains("Idempotency-Key") && said.contains("unique_key"),
            "{said}"
        );
    }
    assert_eq!(served.count("select count(*) from flyball.job").await, 0);

    served.queue_max(2).await;
    for n in 0..2 {
        let sent = served.enqueue("/api/v1/jobs", &job(n), None).await;
        assert_eq!(sent.status(), StatusCode::CREATED, "{n}");
    }
    let full = served.enqueue("/api/v1/jobs", &job(2), None).await;
    assert_eq!(full.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_body_of_a_full_queue(full).await;
}

#[tokio::test]
async fn a_batch_says_whose_unique_key_another_message_holds() {
    let served = admission_server(TenantLimits::default()).await;
    let batch =
        |recipients: Value| json!({"channel": "email", "body": "x", "recipients": recipients});
    let recipient =
        |n: usize, key: &str| json!({"to": format!("ada{n}@example.com"), "unique_key": key});
    let first = served
        .send_batch("web", &batch(json!([recipient(0, "k0")])))
        .await;
    let first: Value = first.json().await.unwrap();
    let holder = &first["results"][0]["id"];

    let all = json!([recipient(0, "k0"), recipient(1, "k1"), recipient(2, "k1")]);
    let second = served.send_batch("web", &batch(all)).await;

    assert_eq!(second.status(), StatusCode::ACCEPTED);
    let second: Value = second.json().await.unwrap();
    let of = |n: usize| &second["results"][n];
    assert_eq!(
        (&of(0)["status"], &of(0)["id"]),
        (&json!("duplicate"), holder)
    );
    assert_eq!(of(1)["status"], "queued");
    assert_eq!(
        (&of(2)["status"], &of(2)["id"]),
        (&json!("duplicate"), &of(1)["id"])
    );
    let shown = served.batch("web", second["id"].as_i64().unwrap()).await;
    assert_eq!(shown["counts"], json!({"duplicate": 2, "queued": 1}));
    // Duplicates take no slot.
    let answer = served
        .ask("web", Method::GET, "/api/v1/notifications")
        .await;
    assert_eq!(limits_of(&answer)[3], "48");
}
