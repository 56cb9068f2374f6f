//! The jobs that a webhook secret signs: those of its tenants, to its origins.

use std::time::Duration;

use flyball::jobs::{NewJob, State};
use jiff::{SignedDuration, Timestamp};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};

use super::outcomes::SECRET;
use super::server::Server;
use crate::support::eventually;
use crate::support::process::ProcessFixture;

const SOON: Duration = Duration::from_secs(60);

const TOKENS: &str = r#"
[api_tokens.acme]
tenant = "acme"
secret_env = "ACME_TOKEN"
scopes = ["jobs:enqueue", "jobs:read", "ops:write"]

[api_tokens.evil]
tenant = "evil"
secret_env = "EVIL_TOKEN"
scopes = ["jobs:enqueue", "jobs:read", "ops:write"]
"#;

const ACME: &str = "0123456789-acme-token";
const EVIL: &str = "0123456789-evil-token";

/// Enqueues a job by SQL in the name of a tenant, empty for none.
async fn enqueue(fixture: &ProcessFixture, tenant: &str, args: &Value) -> i64 {
    let mut transaction = fixture.pool().begin().await.unwrap();
    sqlx::query("select flyball.as_tenant($1)")
        .bind(tenant)
        .execute(&mut *transaction)
        .await
        .unwrap();
    let id = sqlx::query_scalar("select job_id from flyball.enqueue('http', $1)")
        .bind(sqlx::types::Json(args))
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    id
}

/// Waits until a job is dead, and returns its last error.
async fn dead(fixture: &ProcessFixture, id: i64) -> String {
    eventually("the job is dead", SOON, || async {
        let detail = fixture.queue.get(id).await.unwrap().unwrap();
        assert_ne!(detail.summary.state, State::Completed);
        (detail.summary.state == State::Dead).then(|| detail.summary.last_error.unwrap_or_default())
    })
    .await
}

#[tokio::test]
async fn a_tenant_signs_with_no_secret_of_another_by_any_interface() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let server = Server::start().await;
    fixture.settings_file(TOKENS);
    let process = fixture.serve_with(
        &[],
        &[
            ("FLYBALL_WEBHOOK_SECRET_ACME", SECRET),
            ("FLYBALL_WEBHOOK_SECRET_ACME_TENANTS", "acme"),
            ("ACME_TOKEN", ACME),
            ("EVIL_TOKEN", EVIL),
        ],
    );
    process.worker_started().await;
    let (client, api) = (Client::new(), process.url().await);
    let url = |name: &str| format!("{}/ok?by={name}", server.url);
    let args =
        |name: &str| json!({"method": "POST", "url": url(name), "secret": "acme", "body": "x"});
    let send = |request: reqwest::RequestBuilder, token: &str, body: &Value| {
        let request = request.bearer_auth(token).json(body);
        async move { request.send().await.unwrap() }
    };

    #[expect(
        clippy::disallowed_methods,
        reason = "a day from now, whichever clock says so"
    )]
    let tomorrow = Timestamp::now() + SignedDuration::from_hours(24);
    let plain =
        json!({"kind": "http", "args": {"url": url("plain")}, "run_at": tomorrow.to_string()});
    let waiting = send(client.post(format!("{api}/api/v1/jobs")), EVIL, &plain).await;
    let status = waiting.status();
    let waiting: Value = waiting.json().await.unwrap();
    assert_eq!(status, StatusCode::CREATED, "{waiting}");
    let job = json!({"kind": "http", "args": args("evil")});
    let hook = json!({"kind": "http", "args": {"url": url("plain")}, "on_complete": url("evil"), "webhook_secret": "acme"});
    let (jobs, one) = (
        format!("{api}/api/v1/jobs"),
        format!("{api}/api/v1/jobs/{}", waiting["id"]),
    );
    for (request, body, pointer) in [
        (client.post(&jobs), job.clone(), "/args/secret"),
        (
            client.post(format!("{jobs}/batch")),
            json!([plain, job]),
            "/1/args/secret",
        ),
        (client.post(&jobs), hook, "/webhook_secret"),
        (
            client.patch(&one),
            json!({"args": args("evil"), "by": "evil", "why": "a test"}),
            "/args/secret",
        ),
    ] {
        let answer = send(request, EVIL, &body).await;
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{body}");
        let problem: Value = answer.json().await.unwrap();
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
        let message = problem["errors"][0]["message"].as_str().unwrap();
        assert!(
            message.contains("FLYBALL_WEBHOOK_SECRET_ACME_TENANTS"),
            "{message}"
        );
    }

    let id = enqueue(&fixture, "evil", &args("evil")).await;
    let error = dead(&fixture, id).await;
    assert!(
        error.contains("args/secret: names \"acme\", which jobs of this tenant may not use"),
        "{error}"
    );

    let own = json!({"kind": "http", "args": args("acme")});
    let accepted = send(client.post(&jobs), ACME, &own).await;
    assert_eq!(accepted.status(), StatusCode::CREATED);
    let accepted: Value = accepted.json().await.unwrap();
    let own = accepted["id"].as_i64().unwrap();
    let operators = enqueue(&fixture, "", &args("operators")).await;
    fixture.until_completed(&[own, operators], SOON).await;
    let received = server.received();
    assert_eq!(received.len(), 2, "{received:?}");
    for one in received {
        assert!(one.headers.contains_key("webhook-signature"), "{one:?}");
    }
}

#[tokio::test]
async fn a_bound_secret_signs_requests_to_its_origins_alone() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let (home, away) = (Server::start().await, Server::start().await);
    let process = fixture.serve_with(
        &[],
        &[
            ("FLYBALL_WEBHOOK_SECRET_ACME", SECRET),
            ("FLYBALL_WEBHOOK_SECRET_ACME_ORIGINS", &home.url),
        ],
    );
    process.worker_started().await;
    let args = |server: &Server| json!({"method": "POST", "url": format!("{}/ok", server.url), "secret": "acme", "body": "bound"});

    let foreign = json!({"kind": "http", "args": args(&away)});
    let answer = Client::new()
        .post(format!("{}/api/v1/jobs", process.url().await))
        .json(&foreign)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let id = enqueue(&fixture, "", &args(&away)).await;
    let error = dead(&fixture, id).await;
    assert!(
        error.contains("args/url: must begin with an origin"),
        "{error}"
    );
    let own = fixture
        .enqueue_as(1, |_| NewJob::new("http", args(&home)))
        .await;
    fixture.until_completed(&own, SOON).await;

    assert!(away.received().is_empty());
    // Another test's request may come to a port that was its server's before.
    let received = home.received();
    let mut own = received.iter().filter(|one| one.body == "bound");
    assert!(
        own.next()
            .is_some_and(|one| one.headers.contains_key("webhook-signature")),
        "{received:?}"
    );
}
