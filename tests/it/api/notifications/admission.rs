//! Messages of tenants over HTTP: limits, headers, repeats and full queues, on a clock of the
//! test's own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use flyball::api::{AuthToken, Permissions, TokenScope, TokenSecret};
use flyball::jobs::{Job, Outcome};
use flyball::providers::{Pools, Provider};
use flyball::runner::Config;
use flyball::throttle::admission::TenantLimits;
use flyball::throttle::seed::seed_patterns;
use flyball::throttle::{Name, PatternStore, RedisStore, Store};
use prometheus_client::registry::Registry;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::fixture::{Wants, pool};
use crate::support::api_server::ApiServer;
use crate::support::fixture::Fixture;
use crate::support::{eventually, redis_prefix, stack};

/// The unix time at which the seed's sample begins.
pub(super) const BEGIN_S: i64 = 1_744_714_200;

pub(super) const SOON: Duration = Duration::from_secs(60);

/// Tokens: name, tenant, and whether they may send critical messages.
const TOKENS: [(&str, &str, bool); 6] = [
    ("web", "acme", false),
    ("shop", "acme", false),
    ("blog", "acme", false),
    ("urgent", "acme", true),
    ("else", "other", true),
    (ADMIN, "acme", true),
];

/// Tokens that only read: name and tenant.
const READERS: [(&str, Option<&str>); 2] = [("operator", None), ("watcher", Some("acme"))];

/// The token with every scope within its tenant.
const ADMIN: &str = "tenant-admin";

pub(super) struct AdmissionServer {
    pub(super) server: ApiServer,
    pub(super) clock: Arc<AtomicI64>,
}

pub(super) async fn admission_server(limits: TenantLimits) -> AdmissionServer {
    admission_server_on(&stack().await.redis_url.clone(), limits).await
}

pub(super) async fn admission_server_on(redis_url: &str, limits: TenantLimits) -> AdmissionServer {
    let clock = Arc::new(AtomicI64::new(BEGIN_S * 1_000_000));
    let now = clock.clone();
    let redis = RedisStore::connect(redis_url, &redis_prefix())
        .unwrap()
        .with_bound(Duration::from_secs(10))
        .with_clock(Arc::new(move || now.load(Ordering::SeqCst)));
    let store: Arc<dyn Store> = Arc::new(PatternStore::new(Arc::new(redis), 0));
    let is_here = redis_url == stack().await.redis_url;
    if is_here {
        eventually("Redis answers", SOON, || async {
            seed_patterns(&*store, &limits).await.ok()
        })
        .await;
    }
    let fixture = Fixture::on(store).await;
    if is_here {
        fixture.turn("mail", &[("rps", "-1")]).await;
    }
    let server = ApiServer::start(fixture, |deps| {
        deps.kinds.register("notification", Wants);
        deps.pools = Arc::new(Pools(BTreeMap::from([pool(
            "mail",
            Provider::Mailgun,
            &["a1"],
        )])));
        deps.tenant_limits = limits;
        deps.tokens = TOKENS
            .iter()
            .map(|(name, tenant, may_be_critical)| {
                let mut leave = Permissions {
                    scopes: [TokenScope::NotifySend, TokenScope::NotifyRead].into(),
                    ..Permissions::default()
                };
                if *may_be_critical {
                    leave.scopes.insert(TokenScope::NotifyCritical);
                }
                if *name == ADMIN {
                    leave.scopes.insert(TokenScope::Admin);
                }
                AuthToken::of(name, Some(tenant), leave, TokenSecret::new(secret(name)))
            })
            .chain(READERS.map(|(name, tenant)| {
                let leave = Permissions {
                    scopes: [TokenScope::OpsRead, TokenScope::NotifyRead].into(),
                    ..Permissions::default()
                };
                AuthToken::of(name, tenant, leave, TokenSecret::new(secret(name)))
            }))
            .chain([AuthToken::of(
                "root",
                None,
                Permissions::admin(),
                TokenSecret::new(secret("root")),
            )])
            .collect();
    });
    AdmissionServer {
        server: server.await,
        clock,
    }
}

/// A server on which a module may send one message a minute, and has sent it.
pub(super) async fn at_its_limit() -> AdmissionServer {
    let served = admission_server(TenantLimits {
        per_module: 1,
        ..TenantLimits::default()
    })
    .await;
    served.admitted("web", 0..1).await;
    served
}

pub(super) fn secret(name: &str) -> String {
    format!("0123456789-{name}")
}

pub(super) fn message(n: usize) -> Value {
    json!({"channel": "email", "to": format!("ada{n}@example.com"), "body": "x"})
}

impl AdmissionServer {
    pub(super) fn pass(&self, seconds: i64) {
        self.clock.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }

    pub(super) async fn ask(&self, who: &str, method: Method, path: &str) -> Response {
        let request = self.server.request(method, path).bearer_auth(secret(who));
        request.send().await.unwrap()
    }

    pub(super) async fn send_with(
        &self,
        who: &str,
        body: &Value,
        headers: &[(&str, &str)],
    ) -> Response {
        let path = "/api/v1/notifications";
        let mut request = self.server.request(Method::POST, path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.bearer_auth(secret(who)).json(body);
        request.send().await.unwrap()
    }

    pub(super) async fn send(&self, who: &str, body: &Value) -> Response {
        self.send_with(who, body, &[]).await
    }

    /// Sends messages that are all admitted at once.
    pub(super) async fn admitted(&self, who: &str, numbers: std::ops::Range<usize>) {
        for n in numbers {
            let sent = self.send(who, &message(n)).await;
            assert_eq!(sent.status(), StatusCode::ACCEPTED, "{who} {n}");
        }
    }

    /// Runs messages that are admitted; returns the number that ran, once it is `count`.
    pub(super) async fn deliver(&self, count: i64) -> flyball::runner::Worker {
        let mut kinds = flyball::jobs::Kinds::default();
        kinds.register_fn("notification", |_: Job, _| async { Outcome::Done });
        let config = Config::default();
        let worker = self
            .server
            .start(config, kinds, &mut Registry::default())
            .await;
        eventually(&format!("{count} messages ran"), SOON, || async {
            (self.ran().await == count).then_some(())
        })
        .await;
        worker
    }

    pub(super) async fn ran(&self) -> i64 {
        self.count("select count(*) from flyball.attempt where outcome = 'completed'")
            .await
    }

    pub(super) async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(&self.server.queue.pool)
            .await
            .unwrap()
    }

    pub(super) async fn queue_max(&self, messages: u32) {
        self.server
            .queue
            .set_tenant_queue_max(messages)
            .await
            .unwrap();
    }
}

/// Checks the body of an answer that refuses a message because the queue of its tenant is full.
pub(super) async fn assert_body_of_a_full_queue(full: Response) {
    let body: Value = full.json().await.unwrap();
    assert_eq!(
        (
            &body["type"],
            &body["status"],
            &body["detail"],
            &body["code"]
        ),
        (
            &json!("https://api.septemcore.com/problems/queue-full"),
            &json!(503),
            &json!(
                "Notification queue is at capacity. Retry after existing notifications are processed."
            ),
            &json!("QUEUE_FULL")
        )
    );
}

pub(super) fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response
        .headers()
        .get(name)
        .map_or("absent", |value| value.to_str().unwrap())
}

/// The five headers of the seed: limit and remaining of the tenant, of the module, and the reset.
pub(super) fn limits_of(response: &Response) -> [&str; 5] {
    [
        "x-ratelimit-limit-tenant",
        "x-ratelimit-remaining-tenant",
        "x-ratelimit-limit-module",
        "x-ratelimit-remaining-module",
        "x-ratelimit-reset",
    ]
    .map(|name| header(response, name))
}

#[tokio::test]
async fn the_fifty_first_of_a_module_is_queued_as_the_seed_says() {
    let served = admission_server(TenantLimits::default()).await;
    served.admitted("web", 0..50).await;
    served.pass(42);

    let late = served.send("web", &message(50)).await;

    assert_eq!(late.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&late, "retry-after"), "18");
    assert_eq!(header(&late, "notification-status"), "queued");
    assert_eq!(limits_of(&late), ["100", "50", "50", "0", "1744714260"]);
    assert_eq!(
        header(&late, "ratelimit-policy"),
        r#""tenant";q=100;w=60, "module";q=50;w=60"#
    );
    assert_eq!(
        header(&late, "ratelimit"),
        r#""tenant";r=50;t=18, "module";r=0;t=18"#
    );
    let location = header(&late, "location").to_owned();
    let body: Value = late.json().await.unwrap();
    let id = body["notificationId"].as_str().unwrap();
    assert_eq!(location, format!("/api/v1/notifications/{id}"));
    assert_eq!(
        (
            &body["type"],
            &body["status"],
            &body["detail"],
            &body["code"]
        ),
        (
            &json!("https://api.septemcore.com/problems/rate-limit-exceeded"),
            &json!(429),
            &json!("Module rate limit exceeded. Notification queued with 18s delay."),
            &json!("RATE_LIMIT_EXCEEDED")
        )
    );
    let shown: Value = served
        .ask("web", Method::GET, &location)
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(
        (&shown["state"], &shown["held"]["by"]),
        (&json!("queued"), &json!("module"))
    );
    assert_eq!(shown["held"]["place"], 1);

    // The k-th over the limit waits a minute more for each fifty.
    for k in 2..=51 {
        let late = served.send("web", &message(49 + k)).await;
        let wait = (18 + 60 * ((k - 1) / 50)).to_string();
        assert_eq!(header(&late, "retry-after"), wait, "{k}");
    }
    // Another module of the tenant has its own fifty.
    assert_eq!(
        served.send("shop", &message(0)).await.status(),
        StatusCode::ACCEPTED
    );
    // Nobody has delivered or claimed anything; at second 60 fifty more go, and no more.
    served.pass(18);
    let worker = served.deliver(50 + 1 + 50).await;
    served.server.refusals.again("notify:acme", "web").await;
    assert_eq!(served.ran().await, 101);
    worker.stop().await;
}

#[tokio::test]
async fn every_answer_about_messages_tells_the_limits() {
    let served = admission_server(TenantLimits::default()).await;
    served.admitted("web", 0..3).await;
    served.pass(10);
    let told = ["100", "97", "50", "47", "1744714260"];
    for (method, path, status) in [
        (Method::GET, "/api/v1/notifications", 200),
        (Method::GET, "/api/v1/notifications/99999999", 404),
        (Method::GET, "/api/v1/notifications?state=nonsense", 400),
        (Method::DELETE, "/api/v1/notifications", 405),
    ] {
        let answer = served.ask("web", method.clone(), path).await;
        assert_eq!(answer.status(), status, "{method} {path}");
        assert_eq!(limits_of(&answer), told, "{method} {path}");
    }
    let wrong = served.send("web", &json!({"channel": "fax"})).await;
    assert_eq!(wrong.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(limits_of(&wrong), told);
    let forbidden = served
        .send(
            "web",
            &json!({"channel": "email", "to": "a@b.c", "body": "x", "priority": "critical"}),
        )
        .await;
    assert_eq!(forbidden.status(), StatusCode::FORBIDDEN);
    assert_eq!(limits_of(&forbidden), told);
    let elsewhere = served
        .ask("else", Method::GET, "/api/v1/notifications")
        .await;
    assert_eq!(
        limits_of(&elsewhere),
        ["100", "100", "50", "50", "1744714210"]
    );
    let stranger = served
        .ask("nobody", Method::GET, "/api/v1/notifications")
        .await;
    assert_eq!(stranger.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(limits_of(&stranger), ["absent"; 5]);
    let jobs = served.ask("web", Method::GET, "/api/v1/jobs").await;
    assert_eq!(limits_of(&jobs), ["absent"; 5]);
}

#[tokio::test]
async fn two_modules_use_up_their_tenant_and_critical_messages_go_all_the_same() {
    let served = admission_server(TenantLimits {
        critical_per_minute: 2,
        ..TenantLimits::default()
    })
    .await;
    served.admitted("web", 0..50).await;
    served.admitted("shop", 0..50).await;

    let third = served.send("blog", &message(0)).await;

    assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(limits_of(&third), ["100", "0", "50", "0", "1744714260"]);
    let body: Value = third.json().await.unwrap();
    assert_eq!(
        body["detail"],
        "Tenant rate limit exceeded. Notification queued with 60s delay."
    );
    assert_eq!(
        served.send("else", &message(0)).await.status(),
        StatusCode::ACCEPTED
    );

    let critical = |n| {
        let mut body = message(n);
        body["priority"] = json!("critical");
        body
    };
    for n in 0..2 {
        let sent = served.send("urgent", &critical(n)).await;
        assert_eq!(sent.status(), StatusCode::ACCEPTED);
        assert_eq!(
            limits_of(&sent)[1..4],
            ["0", "50", (49 - n).to_string().as_str()]
        );
        assert_eq!(sent.json::<Value>().await.unwrap()["priority"], "critical");
    }
    let beyond = served
        .send_with("urgent", &critical(2), &[("prefer", "respond-async")])
        .await;
    assert_eq!(beyond.status(), StatusCode::ACCEPTED);
    assert_eq!(header(&beyond, "notification-status"), "queued");
    assert_eq!(header(&beyond, "preference-applied"), "respond-async");
    let body: Value = beyond.json().await.unwrap();
    assert_eq!(
        (&body["priority"], &body["held"]["by"]),
        (&json!("high"), &json!("tenant"))
    );
    assert!(body["warnings"][0].as_str().unwrap().contains("critical"));
    // Only what was admitted runs: a hundred, one of another tenant, two critical ones.
    let worker = served.deliver(103).await;
    for module in ["blog", "urgent"] {
        served.server.refusals.again("notify:acme", module).await;
    }
    assert_eq!(served.ran().await, 103);
    worker.stop().await;
}

#[tokio::test]
async fn a_client_that_repeats_until_it_is_accepted_sends_one_message() {
    let limits = TenantLimits {
        per_module: 2,
        ..TenantLimits::default()
    };
    let served = admission_server(limits).await;
    served.admitted("web", 0..2).await;
    for (key, others) in [(None, 1), (Some("\"order-7\""), 2)] {
        let body = message(100 + others);
        let headers: Vec<(&str, &str)> = key
            .map(|key| ("idempotency-key", key))
            .into_iter()
            .collect();
        let first = served.send_with("web", &body, &headers).await;
        assert_eq!(first.status(), StatusCode::TOO_MANY_REQUESTS);
        let id = first.json::<Value>().await.unwrap()["notificationId"].clone();
        for _ in 0..3 {
            served.pass(1);
            let again = served.send_with("web", &body, &headers).await;
            assert_eq!(again.status(), StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(header(&again, "idempotent-replayed"), "true");
            assert_eq!(again.json::<Value>().await.unwrap()["notificationId"], id);
        }
    }
    assert_eq!(served.count("select count(*) from flyball.job").await, 4);
    served.pass(60);
    let worker = served.deliver(4).await;

    let headers = [("idempotency-key", "order-7")];
    let after = served.send_with("web", &message(102), &headers).await;
    assert_eq!(after.status(), StatusCode::OK);
    assert_eq!(header(&after, "idempotent-replayed"), "true");
    let other = served.send_with("web", &message(103), &headers).await;
    assert_eq!(other.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        other.json::<Value>().await.unwrap()["code"],
        "idempotency_key_reused"
    );
    // The key is the module's own.
    let elsewhere = served.send_with("shop", &message(103), &headers).await;
    assert_eq!(elsewhere.status(), StatusCode::ACCEPTED);
    worker.stop().await;
}

#[tokio::test]
async fn of_requests_at_once_with_one_key_one_is_handled() {
    let served = admission_server(TenantLimits::default()).await;
    let body = message(1);
    let headers = [("idempotency-key", "once")];
    let all =
        futures_util::future::join_all((0..8).map(|_| served.send_with("web", &body, &headers)));
    let statuses: Vec<u16> = all
        .await
        .iter()
        .map(|answer| answer.status().as_u16())
        .collect();
    assert_eq!(
        statuses.iter().filter(|status| **status == 202).count(),
        1,
        "{statuses:?}"
    );
    assert!(
        statuses
            .iter()
            .all(|status| [200, 202, 409].contains(status)),
        "{statuses:?}"
    );
    assert_eq!(served.count("select count(*) from flyball.job").await, 1);
    let answer = served
        .ask("web", Method::GET, "/api/v1/notifications")
        .await;
    assert_eq!(limits_of(&answer)[1], "99", "repeats take no slot");
}

#[tokio::test]
async fn a_full_queue_refuses_exactly_the_next_and_concerns_one_tenant() {
    let served = admission_server(TenantLimits {
        per_module: 3,
        ..TenantLimits::default()
    })
    .await;
    served.queue_max(10).await;
    for n in 0..10 {
        let sent = served.send("web", &message(n)).await;
        let expected = if n < 3 { 202 } else { 429 };
        assert_eq!(sent.status().as_u16(), expected, "{n}");
    }

    let full = served.send("web", &message(10)).await;

    assert_eq!(full.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(header(&full, "retry-after"), "300", "nothing has drained");
    assert_body_of_a_full_queue(full).await;
    assert_eq!(
        served.send("shop", &message(11)).await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(
        served.send("else", &message(0)).await.status(),
        StatusCode::ACCEPTED
    );
    // A tenth more for critical messages.
    let mut critical = message(12);
    critical["priority"] = json!("critical");
    assert_eq!(
        served.send("urgent", &critical).await.status(),
        StatusCode::ACCEPTED
    );
    critical["to"] = json!("b@example.com");
    assert_eq!(
        served.send("urgent", &critical).await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    // A refused message takes no slot.
    let answer = served
        .ask("shop", Method::GET, "/api/v1/notifications")
        .await;
    assert_eq!(limits_of(&answer)[3], "3");
    // What has ended frees its places.
    let worker = served.deliver(5).await;
    eventually("there is room", SOON, || async {
        let sent = served.send("shop", &message(13)).await;
        (sent.status() == StatusCode::ACCEPTED).then_some(())
    })
    .await;
    worker.stop().await;
}

#[tokio::test]
async fn without_redis_everything_is_accepted_and_waits_but_critical_messages() {
    let served = admission_server_on("redis://127.0.0.1:9", TenantLimits::default()).await;
    let sent = served.send("web", &message(0)).await;
    assert_eq!(sent.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&sent, "retry-after"), "5");
    let told = limits_of(&sent);
    assert_eq!(told[..4], ["100", "0", "50", "0"]);
    let mut critical = message(1);
    critical["priority"] = json!("critical");
    let sent = served.send("urgent", &critical).await;
    assert_eq!(sent.status(), StatusCode::ACCEPTED);
    assert_eq!(served.count("select count(*) from flyball.ready").await, 2);
    assert_eq!(
        served
            .count("select count(*) from flyball.job where admission_lane is not null")
            .await,
        1
    );
}

#[tokio::test]
async fn a_limit_of_one_tenant_is_a_knob_that_frees_who_waits() {
    let served = admission_server(TenantLimits {
        per_module: 2,
        ..TenantLimits::default()
    })
    .await;
    for n in 0..5 {
        served.send("web", &message(n)).await;
    }
    let worker = served.deliver(2).await;
    served
        .server
        .turn("notify:acme", &[("key_windows", "4/60")])
        .await;
    eventually("two more ran", SOON, || async {
        (served.ran().await == 4).then_some(())
    })
    .await;
    let name = Name::new("notify:acme").unwrap();
    let status = served.server.store.status(&name).await.unwrap().unwrap();
    assert_eq!(status.raw["made_from"], "notify:*");
    worker.stop().await;
}
