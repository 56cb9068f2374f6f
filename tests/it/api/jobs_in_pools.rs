//! Jobs in the throttles of pools, webhooks and alerts, where others have lanes: who may enqueue
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;

use flyball::api::{AuthToken, TokenScope, TokenSecret};
use flyball::jobs::{Job, Outcome};
use flyball::notify::NotificationHandler;
use flyball::providers::pool::AccountPool;
use flyball::providers::{Pools, Provider};
use flyball::throttle::{Notes, Store};
use reqwest::Method;
use serde_json::{Value, json};

use super::notifications::fixture::pool;
use super::tokens_fixture::{ADMIN, leave, secret};
use crate::support::api_server::ApiServer;
use crate::support::fixture::Fixture;
use crate::support::{patient_store, redis_prefix};

/// A server with the pool `mail`, an administrator, and the tokens `shop` of no tenant and `acme` of
/// a tenant.
async fn server() -> ApiServer {
    let store = Arc::new(patient_store(&redis_prefix()).await);
    let (as_store, notes): (Arc<dyn Store>, Arc<dyn Notes>) = (store.clone(), store.clone());
    let (sender, _changes) = tokio::sync::mpsc::unbounded_channel();
    let mail = || pool("mail", Provider::Mailgun, &["a1"]);
    let accounts = AccountPool::open(mail().1, as_store, notes, sender).unwrap();
    let pools = Arc::new(Pools(BTreeMap::from([mail()])));
    let fixture = Fixture::on(store).await;
    for kind in ["http", "notification"] {
        fixture.register(kind).await;
    }
    let scopes = leave(&[
        TokenScope::JobsEnqueue,
        TokenScope::NotifySend,
        TokenScope::OpsWrite,
    ]);
    let token = |name: &str, tenant| {
        AuthToken::of(name, tenant, scopes.clone(), TokenSecret::new(secret(name)))
    };
    let tokens = [
        AuthToken::new(TokenSecret::new(ADMIN)),
        token("shop", None),
        token("acme", Some("acme")),
    ];
    ApiServer::start(fixture, |deps| {
        deps.kinds
            .register_fn("http", |_: Job, _| async { Outcome::Done });
        deps.kinds.register(
            "notification",
            NotificationHandler::new(pools.clone(), None),
        );
        deps.account_pools = vec![accounts];
        deps.pools = pools;
        deps.tokens = tokens.into_iter().collect();
    })
    .await
}

async fn send(
    server: &ApiServer,
    token: &str,
    method: Method,
    path: &str,
    body: &Value,
) -> (u16, Value) {
    let request = server.request(method, path).bearer_auth(token).json(body);
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// Enqueues a job; returns its path.
async fn made(server: &ApiServer, token: &str, job: &Value) -> String {
    let (status, answer) = send(server, token, Method::POST, "/api/v1/jobs", job).await;
    assert_eq!(status, 201, "{answer}");
    format!("/api/v1/jobs/{}", answer["id"])
}

#[tokio::test]
async fn only_administrators_enqueue_other_jobs_than_messages_in_the_throttles_of_a_pool() {
    let server = server().await;
    let http = |throttle: &str| json!({"kind": "http", "throttle": throttle, "key": "a1"});
    for name in ["shop", "acme"] {
        let token = secret(name);
        let waiting = json!({"kind": "http", "throttle": "hooks"});
        let waiting = made(&server, &token, &waiting).await;
        for (throttle, told) in [
            ("mail", "belongs to a pool and takes its messages alone"),
            ("mail:accounts", "belongs to a pool and limits its accounts"),
        ] {
            let job = http(throttle);
            for (method, path, body, pointer) in [
                (Method::POST, "/api/v1/jobs", job.clone(), "/throttle"),
                (
                    Method::POST,
                    "/api/v1/jobs/batch",
                    json!([http("hooks"), job]),
                    "/1/throttle",
                ),
                (
                    Method::POST,
                    "/api/v1/groups",
                    json!({"callback": job}),
                    "/callback/throttle",
                ),
                (
                    Method::PATCH,
                    waiting.as_str(),
                    json!({"throttle": throttle}),
                    "/throttle",
                ),
            ] {
                let (status, answer) = send(&server, &token, method, path, &body).await;
                assert_eq!(
                    (status, &answer["code"], &answer["errors"][0]["pointer"]),
                    (403, &json!("not_allowed"), &json!(pointer)),
                    "{name}, {path}, {throttle}: {answer}"
                );
                let message = answer["errors"][0]["message"].as_str().unwrap();
                assert!(message.contains(told), "{message}");
            }
        }
    }

    let job = http("flyball:alerts");
    let (status, answer) = send(&server, &secret("shop"), Method::POST, "/api/v1/jobs", &job).await;
    assert_eq!(
        (status, &answer["errors"][0]["pointer"]),
        (403, &json!("/throttle")),
        "{answer}"
    );

    let message = json!({"kind": "notification", "throttle": "mail",
        "args": {"channel": "email", "to": "ada@example.com", "subject": "Hello", "body": "Hello"}});
    for (token, job) in [(secret("shop"), message), (ADMIN.to_owned(), http("mail"))] {
        made(&server, &token, &job).await;
    }
}

#[tokio::test]
async fn nobody_but_administrators_enters_the_lane_of_the_calls_of_others() {
    let server = server().await;
    let job = |key: &str| json!({"kind": "http", "throttle": "webhooks", "key": key});
    for token in [secret("shop"), secret("acme")] {
        let path = "/api/v1/jobs";
        let (status, answer) = send(&server, &token, Method::POST, path, &job("zeta")).await;
        assert_eq!(
            (status, &answer["errors"][0]["pointer"]),
            (403, &json!("/key")),
            "{answer}"
        );
        made(&server, &token, &job("")).await;
    }
    made(&server, ADMIN, &job("zeta")).await;

    let acme = secret("acme");
    let own = made(&server, &acme, &job("acme")).await;
    let other = json!({"kind": "http", "throttle": "hooks", "key": "zeta"});
    let other = made(&server, &acme, &other).await;
    for (path, change) in [
        (&own, json!({"key": "zeta"})),
        (&other, json!({"throttle": "webhooks"})),
    ] {
        let (status, answer) = send(&server, &acme, Method::PATCH, path, &change).await;
        assert_eq!(
            (status, &answer["errors"][0]["pointer"]),
            (422, &json!("/key")),
            "{answer}"
        );
    }
    let change = json!({"throttle": "webhooks", "key": "acme"});
    let (status, answer) = send(&server, &acme, Method::PATCH, &other, &change).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn a_message_takes_no_more_of_a_pool_than_its_limits_count() {
    let server = server().await;
    let message = |cost: f64| {
        json!({"kind": "notification", "throttle": "mail", "cost": cost,
            "args": {"channel": "email", "to": "ada@example.com", "subject": "Hello", "body": "Hello"}})
    };
    for token in [secret("shop"), secret("acme")] {
        let path = "/api/v1/jobs";
        let (status, answer) = send(&server, &token, Method::POST, path, &message(11.0)).await;
        assert_eq!(
            (status, &answer["errors"][0]["pointer"]),
            (403, &json!("/cost")),
            "{answer}"
        );
        let own = made(&server, &token, &message(10.0)).await;
        if token == secret("acme") {
            let change = json!({"cost": 11});
            let (status, answer) = send(&server, &token, Method::PATCH, &own, &change).await;
            assert_eq!(
                (status, &answer["errors"][0]["pointer"]),
                (422, &json!("/cost")),
                "{answer}"
            );
        }
    }
    made(&server, ADMIN, &message(500.0)).await;
}
