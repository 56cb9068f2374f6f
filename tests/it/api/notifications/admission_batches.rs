//! Batches of tenants' messages over HTTP.

use flyball::jobs::{Job, Outcome};
use flyball::runner::Config;
use flyball::throttle::admission::TenantLimits;
use prometheus_client::registry::Registry;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::admission::*;
use crate::support::eventually;
/// A batch to so many recipients.
fn batch(recipients: usize) -> Value {
    let all: Vec<String> = (0..recipients)
        .map(|n| format!("ada{n}@example.com"))
        .collect();
    json!({"channel": "email", "body": "x", "recipients": all})
}

impl AdmissionServer {
    pub(super) async fn send_batch(&self, who: &str, body: &Value) -> Response {
        let path = "/api/v1/notifications/batch";
        let request = self.server.request(Method::POST, path);
        request
            .bearer_auth(secret(who))
            .json(body)
            .send()
            .await
            .unwrap()
    }

    pub(super) async fn batch(&self, who: &str, id: i64) -> Value {
        let path = format!("/api/v1/notifications/batches/{id}");
        let shown = self.ask(who, Method::GET, &path).await;
        assert_eq!(shown.status(), StatusCode::OK);
        shown.json().await.unwrap()
    }

    pub(super) async fn change(&self, id: i64, change: &str) -> Value {
        let path = format!("/api/v1/notifications/batches/{id}/{change}");
        self.ask("web", Method::POST, &path)
            .await
            .json()
            .await
            .unwrap()
    }

    /// Accepts a batch, and returns its id.
    async fn batch_of(&self, recipients: usize) -> i64 {
        let sent = self.send_batch("web", &batch(recipients)).await;
        let status = sent.status();
        let body: Value = sent.json().await.unwrap();
        assert_eq!(status, StatusCode::ACCEPTED, "{body}");
        body["id"].as_i64().unwrap()
    }

    async fn worker(&self) -> flyball::runner::Worker {
        let mut kinds = flyball::jobs::Kinds::default();
        kinds.register_fn("notification", |_: Job, _| async { Outcome::Done });
        let batches = flyball::admission::Batches::new(self.server.queue.clone());
        kinds.register(
            flyball::admission::BATCH,
            flyball::admission::ExpandBatch::new(Some(batches)),
        );
        self.server.turn("default", &[("rps", "-1")]).await;
        self.server
            .start(Config::default(), kinds, &mut Registry::default())
            .await
    }

    /// Returns the numbers of messages and of jobs that enqueue them.
    async fn jobs(&self) -> (i64, i64) {
        let messages = "select count(*) from flyball.job where kind = 'notification'";
        let jobs = "select count(*) from flyball.job where kind = 'batch'";
        (self.count(messages).await, self.count(jobs).await)
    }

    async fn until_ran(&self, count: i64) {
        eventually(&format!("{count} messages ran"), SOON, || async {
            let ran = self.messages_ran().await;
            (ran == count).then_some(())
        })
        .await;
    }

    async fn messages_ran(&self) -> i64 {
        self.count(
            "select count(*) from flyball.attempt a join flyball.job j on j.id = a.job_id
             where a.outcome = 'completed' and j.kind = 'notification' and j.tenant = 'acme'",
        )
        .await
    }

    /// Sends two messages of another tenant through the worker, one after the other. What could go
    /// before them has gone.
    async fn markers(&self) {
        let ran = async || {
            self.count(
                "select count(*) from flyball.attempt a join flyball.job j on j.id = a.job_id
                 where a.outcome = 'completed' and j.tenant = 'other'",
            )
            .await
        };
        for _ in 0..2 {
            let before = ran().await;
            let number = before as usize;
            self.admitted("else", number..number + 1).await;
            eventually("the marker has run", SOON, || async {
                (ran().await > before).then_some(())
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_batch_of_a_hundred_is_enqueued_at_once_and_each_recipient_counts() {
    let served = admission_server(TenantLimits::default()).await;
    let sent = served.send_batch("web", &batch(100)).await;
    assert_eq!(sent.status(), StatusCode::ACCEPTED);
    assert_eq!(limits_of(&sent), ["100", "50", "50", "0", "1744714260"]);
    assert_eq!(header(&sent, "notification-status"), "queued");
    let body: Value = sent.json().await.unwrap();
    assert_eq!(
        (&body["state"], &body["recipients"]),
        (&json!("running"), &json!(100))
    );
    let results = body["results"].as_array().unwrap();
    let of = |status: &str| results.iter().filter(|one| one["status"] == status).count();
    assert_eq!((of("queued"), of("waiting")), (50, 50));
    let id = body["id"].as_i64().unwrap();
    let shown = served.batch("web", id).await;
    assert_eq!(shown["counts"], json!({"queued": 50, "waiting": 50}));
    assert_eq!(shown["estimate"], "2025-04-15T10:51:00Z");
    // Another tenant has no such batch.
    let path = format!("/api/v1/notifications/batches/{id}");
    let elsewhere = served.ask("else", Method::GET, &path).await;
    assert_eq!(elsewhere.status(), StatusCode::NOT_FOUND);
    let worker = served.worker().await;
    served.until_ran(50).await;
    served.pass(60);
    served.until_ran(100).await;
    worker.stop().await;
}

#[tokio::test]
async fn five_hundred_recipients_take_ten_minutes_of_a_module() {
    let served = admission_server(TenantLimits::default()).await;
    let over = served.send_batch("web", &batch(501)).await;
    assert_eq!(over.status(), StatusCode::BAD_REQUEST);
    let body: Value = over.json().await.unwrap();
    assert_eq!(
        (&body["code"], &body["type"]),
        (
            &json!("BATCH_LIMIT_EXCEEDED"),
            &json!("https://api.septemcore.com/problems/batch-limit-exceeded")
        )
    );
    let id = served.batch_of(500).await;
    let shown = served.batch("web", id).await;
    assert_eq!(
        (&shown["state"], &shown["counts"]),
        (&json!("expanding"), &json!({"expanding": 500}))
    );
    // The last fifty go nine minutes after the first.
    assert_eq!(shown["estimate"], "2025-04-15T10:59:00Z");
    let worker = served.worker().await;
    for minute in 1..=10 {
        served.until_ran(50 * minute).await;
        served.pass(60);
    }
    assert_eq!(
        served
            .count("select count(*) from flyball.job where kind = 'notification'")
            .await,
        500
    );
    worker.stop().await;
}

#[tokio::test]
async fn five_hundred_recipients_take_five_minutes_of_a_tenant() {
    let served = admission_server(TenantLimits {
        per_module: 100,
        ..TenantLimits::default()
    })
    .await;
    let id = served.batch_of(500).await;
    // The last hundred go four minutes after the first.
    let shown = served.batch("web", id).await;
    assert_eq!(shown["estimate"], "2025-04-15T10:54:00Z");
    let worker = served.worker().await;
    for minute in 1..=5 {
        served.until_ran(100 * minute).await;
        served.pass(60);
    }
    worker.stop().await;
}

#[tokio::test]
async fn a_hundred_recipients_are_enqueued_with_the_request_and_one_more_by_a_job() {
    let served = admission_server(TenantLimits::default()).await;
    for (recipients, state, messages, jobs) in [(100, "running", 100, 0), (101, "expanding", 0, 1)]
    {
        let before = served.jobs().await;
        let sent = served.send_batch("web", &batch(recipients)).await;
        assert_eq!(sent.status(), StatusCode::ACCEPTED);
        assert_eq!(sent.json::<Value>().await.unwrap()["state"], state);
        let after = served.jobs().await;
        assert_eq!(
            (after.0 - before.0, after.1 - before.1),
            (messages, jobs),
            "{recipients}"
        );
    }
}

#[tokio::test]
async fn a_batch_that_does_not_fit_into_the_queue_is_refused_as_a_whole() {
    let served = admission_server(TenantLimits::default()).await;
    served.queue_max(200).await;
    served.batch_of(150).await;
    for recipients in [51, 150] {
        let full = served.send_batch("shop", &batch(recipients)).await;
        assert_eq!(
            full.status(),
            StatusCode::SERVICE_UNAVAILABLE,
            "{recipients}"
        );
        assert_eq!(full.json::<Value>().await.unwrap()["code"], "QUEUE_FULL");
    }
    assert_eq!(
        served.send_batch("shop", &batch(50)).await.status(),
        StatusCode::ACCEPTED
    );
    let worker = served.worker().await;
    served.until_ran(100).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_batch_whose_messages_are_too_large_together_is_refused_before_they_are_made() {
    let served = admission_server(TenantLimits::default()).await;
    let with_text = |recipients: usize| {
        let mut body = batch(recipients);
        body["html"] = json!("x".repeat(100_000));
        body
    };
    let refused = served.send_batch("web", &with_text(500)).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let body: Value = refused.json().await.unwrap();
    assert_eq!(
        (&body["code"], &body["errors"][0]["pointer"]),
        (&json!("BATCH_LIMIT_EXCEEDED"), &json!("/recipients"))
    );
    let detail = body["detail"].as_str().unwrap();
    assert!(detail.contains("33554432 bytes (32 MiB)"), "{detail}");
    assert_eq!(served.count("select count(*) from flyball.batch").await, 0);
    assert_eq!(served.jobs().await, (0, 0));

    // Some of them fit, and are read apart from other requests.
    let sent = served.send_batch("web", &with_text(20)).await;
    assert_eq!(sent.status(), StatusCode::ACCEPTED);
    assert_eq!(served.jobs().await, (20, 0));
}

#[tokio::test]
async fn a_batch_is_paused_resumed_and_cancelled_and_its_numbers_add_up() {
    let served = admission_server(TenantLimits::default()).await;
    let id = served.batch_of(300).await;
    assert_eq!(served.change(id, "pause").await["state"], "paused");
    let worker = served.worker().await;
    served.markers().await;
    assert_eq!(served.messages_ran().await, 0);
    assert_eq!(served.change(id, "resume").await["state"], "expanding");
    served.until_ran(50).await;
    eventually("all is enqueued", SOON, || async {
        (served.batch("web", id).await["state"] == "running").then_some(())
    })
    .await;

    assert_eq!(served.change(id, "pause").await["state"], "paused");
    served.pass(60);
    served.markers().await;
    assert_eq!(served.messages_ran().await, 50);
    assert_eq!(served.batch("web", id).await["state"], "paused");
    assert_eq!(served.change(id, "resume").await["state"], "running");
    served.until_ran(100).await;

    let cancelled = served.change(id, "cancel").await;
    assert_eq!(
        cancelled,
        json!({"state": "cancelled", "sent": 100, "cancelled": 200, "too_late": 0, "ended": {}})
    );
    served.pass(600);
    served.markers().await;
    assert_eq!(served.messages_ran().await, 100);
    let shown = served.batch("web", id).await;
    assert_eq!(shown["counts"]["cancelled"], 200);
    assert_eq!(served.change(id, "resume").await["code"], "wrong_state");
    // Its places in the queue are free, once they are counted again, which is done once a second.
    served.queue_max(10).await;
    let next = eventually("there is room", SOON, || async {
        let sent = served.send_batch("web", &batch(10)).await;
        (sent.status() == StatusCode::ACCEPTED).then_some(sent)
    })
    .await;
    let next: Value = next.json().await.unwrap();
    assert!(next["id"].as_i64().unwrap() > id);
    worker.stop().await;
}

/// Whatever became of the job that enqueues its messages, a batch does not expand for ever.
#[tokio::test]
async fn a_batch_that_lost_its_job_ends_with_its_places_given_back_or_gets_another_job() {
    let served = admission_server(TenantLimits::default()).await;
    served.queue_max(200).await;
    let change = async |sql: &'static str| {
        let pool = &served.server.queue.pool;
        sqlx::query(sql).execute(pool).await.unwrap();
    };
    let settled = async |id: i64, state: &str| {
        change("update flyball.batch set updated_at = now() - interval '2 minutes'").await;
        served.server.queue.sweep_pending().await.unwrap();
        // A worker looks as well, and may be in the middle of it.
        eventually(&format!("batch {id} is {state}"), SOON, || async {
            let shown = served.batch("web", id).await;
            (shown["state"] == state).then_some(shown)
        })
        .await
    };
    let pending = "select count(*) from flyball.pending";
    let job = "select max(id) from flyball.job where kind = 'batch'";

    // The lane of the pool never has room for so many.
    change(
        r#"insert into flyball.knobs (throttle, fields) values ('mail', '{"max_backlog": "100", "on_backlog": "reject"}')
           on conflict (throttle) do update set fields = excluded.fields"#,
    )
    .await;
    let id = served.batch_of(200).await;
    change("update flyball.job set max_attempts = 1 where kind = 'batch'").await;
    let worker = served.worker().await;
    eventually("the job is a dead letter", SOON, || async {
        let dead = served.count("select count(*) from flyball.dead").await;
        (dead == 1).then_some(())
    })
    .await;
    assert_eq!(served.count(pending).await, 200);
    let shown = settled(id, "cancelled").await;
    assert_eq!(shown["counts"], json!({"cancelled": 200}));
    let problem = format!(
        "its messages could not be enqueued: job {} of the kind batch is a dead letter",
        served.count(job).await
    );
    assert_eq!(shown["problem"], json!(problem));
    let audited = "select count(*) from flyball.audit where action = 'batch.cancel'";
    assert_eq!(
        (served.count(pending).await, served.count(audited).await),
        (0, 1)
    );
    change("delete from flyball.knobs where throttle = 'mail'").await;
    worker.stop().await;

    // It met a pause that ended before the job did.
    let id = served.batch_of(150).await;
    assert_eq!(served.change(id, "pause").await["state"], "paused");
    let worker = served.worker().await;
    eventually("the job is over", SOON, || async {
        let over = "select count(*) from flyball.attempt a join flyball.job j on j.id = a.job_id
            where j.kind = 'batch' and a.outcome = 'completed'";
        (served.count(over).await == 1).then_some(())
    })
    .await;
    change("update flyball.batch set state = 'expanding' where state = 'paused'").await;
    let shown = settled(id, "running").await;
    assert_eq!(shown["problem"], json!(null));
    worker.stop().await;
    assert_eq!(served.jobs().await, (150, 3));
    served.change(id, "cancel").await;

    // Somebody cancelled it.
    let id = eventually("there is room", SOON, || async {
        let sent = served.send_batch("web", &batch(180)).await;
        let body: Value = sent.json().await.unwrap();
        body["id"].as_i64()
    })
    .await;
    let job = served.count(job).await;
    served.server.queue.cancel(job).await.unwrap();
    let shown = settled(id, "cancelled").await;
    assert_eq!(shown["counts"], json!({"cancelled": 180}));
    let problem = shown["problem"].as_str().unwrap();
    assert!(
        problem.contains(&job.to_string()) && problem.ends_with("was cancelled"),
        "{problem}"
    );
}

#[tokio::test]
async fn a_tenant_resumes_no_batch_that_operators_have_paused() {
    let served = admission_server(TenantLimits::default()).await;
    let id = served.batch_of(3).await;
    let operators = async |word: &str| {
        let path = format!("/api/v1/notifications/batches/{id}/{word}");
        let answer = served.ask("root", Method::POST, &path).await;
        answer.json::<Value>().await.unwrap()["state"].clone()
    };
    let is_overruled = async || served.batch("web", id).await["paused_by_operators"].clone();
    assert_eq!(served.change(id, "pause").await["state"], "paused");
    assert_eq!(is_overruled().await, false);
    assert_eq!(operators("pause").await, "paused");
    assert_eq!(is_overruled().await, true);
    // Paused once more, it would be the tenant's own pause.
    for (word, allowed) in [("resume", false), ("pause", true), ("resume", false)] {
        let answer = served.change(id, word).await;
        if allowed {
            assert_eq!(answer["state"], "paused");
        } else {
            assert_eq!(
                (&answer["code"], &answer["detail"]),
                (
                    &json!("not_allowed"),
                    &json!(format!(
                        "batch {id} is paused by operators, and only they resume it"
                    ))
                )
            );
        }
    }
    assert_eq!(served.batch("web", id).await["state"], "paused");
    let sql = "select count(*) from flyball.audit where action = 'batch.pause'";
    let recorded = served.count(sql).await;
    assert_eq!(recorded, 2, "the tenant's, and the operators'");
    assert_eq!(operators("resume").await, "running");
    assert_eq!(is_overruled().await, false);
    assert_eq!(served.change(id, "pause").await["state"], "paused");
    assert_eq!(served.change(id, "resume").await["state"], "running");
}

#[tokio::test]
async fn a_batch_that_is_sent_again_with_its_key_is_the_same() {
    let served = admission_server(TenantLimits::default()).await;
    let send = async |body: &Value| {
        let path = "/api/v1/notifications/batch";
        let request = served
            .server
            .request(Method::POST, path)
            .header("idempotency-key", "b");
        request
            .bearer_auth(secret("web"))
            .json(body)
            .send()
            .await
            .unwrap()
    };
    let first = send(&batch(20)).await;
    assert_eq!(first.status(), StatusCode::ACCEPTED);
    let again = send(&batch(20)).await;
    assert_eq!(again.status(), StatusCode::OK);
    assert_eq!(
        again.json::<Value>().await.unwrap()["id"],
        first.json::<Value>().await.unwrap()["id"]
    );
    assert_eq!(
        send(&batch(21)).await.status(),
        StatusCode::UNPROCESSABLE_ENTITY
    );
    assert_eq!(served.count("select count(*) from flyball.job").await, 20);
}
