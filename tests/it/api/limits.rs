//! The API is limited by its own throttles: a real server with a private Redis.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use flyball::api::{self, AuthToken, DEFAULT_TENANT, Permissions, TokenSecret};
use flyball::throttle::{Change, Name, RedisStore, Store};
use reqwest::{Method, Response, StatusCode};
use serde_json::Value;

use crate::support::api_server::ApiServer;
use crate::support::fixture::Fixture;
use crate::support::redis_server::Server;
use crate::support::{connect_redis, eventually};

const SOON: Duration = Duration::from_secs(60);

/// An API whose private Redis can be stopped.
struct LimitedServer {
    redis: Server,
    server: ApiServer,
}

impl Deref for LimitedServer {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.server
    }
}

/// Tokens are given as pairs of tenant and secret.
async fn limited_server(tokens: &[(&str, &str)], bound: Option<Duration>) -> LimitedServer {
    let redis = Server::start();
    let store = RedisStore::connect(&redis.url(), "").unwrap();
    let store: Arc<dyn Store> = Arc::new(match bound {
        Some(bound) => store.with_bound(bound),
        None => store,
    });
    let tenants: Vec<&str> = tokens
        .iter()
        .map(|(tenant, _)| *tenant)
        .chain([DEFAULT_TENANT])
        .collect();
    eventually("Redis", SOON, || async {
        api::seed_limits(&*store, &tenants).await.ok()
    })
    .await;
    let server = ApiServer::start(Fixture::on(store).await, |deps| {
        deps.tokens = tokens
            .iter()
            .map(|(tenant, secret)| {
                let bound = Some(*tenant).filter(|tenant| *tenant != DEFAULT_TENANT);
                let secret = TokenSecret::new(*secret);
                AuthToken::of(tenant, bound, Permissions::admin(), secret)
            })
            .collect();
    });
    LimitedServer {
        server: server.await,
        redis,
    }
}

/// A timeout that no busy machine reaches, for tests that do not lose Redis.
const PATIENT: Option<Duration> = Some(Duration::from_secs(10));

impl LimitedServer {
    async fn turn(&self, throttle: &str, knobs: &[(&str, &str)]) {
        let fields: BTreeMap<_, _> = knobs
            .iter()
            .map(|(knob, value)| ((*knob).to_owned(), Some((*value).to_owned())))
            .collect();
        let change = Change {
            fields,
            by: "test".into(),
            ..Change::default()
        };
        let name = Name::new(throttle).unwrap();
        eventually("a turned knob", SOON, || async {
            self.store.set(&name, &change).await.ok()
        })
        .await;
    }

    async fn get(&self, path: &str, token: &str) -> Response {
        self.request(Method::GET, path)
            .bearer_auth(token)
            .send()
            .await
            .unwrap()
    }

    /// Returns the number of requests for tokens that reached Redis.
    async fn asked(&self) -> u64 {
        let mut connection = connect_redis(&self.redis.url()).await.unwrap();
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut connection)
            .await
            .unwrap();
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_fcall:calls="))
            .unwrap_or("0,");
        line.split(',').next().unwrap().parse().unwrap()
    }
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response
        .headers()
        .get(name)
        .map_or("", |value| value.to_str().unwrap())
}

async fn refused(response: Response) -> Value {
    let (status, kind) = (
        response.status(),
        header(&response, "content-type").to_owned(),
    );
    let problem: Value = response.json().await.unwrap();
    assert_eq!(
        (status, kind.as_str()),
        (StatusCode::TOO_MANY_REQUESTS, "application/problem+json"),
        "{problem}"
    );
    assert_eq!(problem["code"], "too_many_requests");
    problem
}

/// A rate so low that no token is refilled during a test; a full bucket holds two.
const TWO: &str = "0.0001";

#[tokio::test]
async fn a_request_asks_redis_once() {
    let server = limited_server(&[(DEFAULT_TENANT, "0123456789abcdef")], PATIENT).await;
    // The first request learns which keys the throttle needs.
    server.get("/openapi.json", "0123456789abcdef").await;
    let before = server.asked().await;

    for _ in 0..5 {
        let answer = server.get("/openapi.json", "0123456789abcdef").await;
        assert!(header(&answer, "ratelimit").starts_with("\"api:read\";r="));
    }

    assert_eq!(server.asked().await - before, 5);
}

#[tokio::test]
async fn a_token_learns_what_is_left_and_when_to_come_back() {
    let server = limited_server(&[(DEFAULT_TENANT, "0123456789abcdef")], PATIENT).await;
    server
        .turn("api:read", &[("key_rps", TWO), ("rps", "-1")])
        .await;

    let first = server.get("/api/v1/throttles", "0123456789abcdef").await;
    assert_eq!(first.status(), StatusCode::OK);
    assert_eq!(header(&first, "ratelimit"), "\"api:read\";r=1");
    assert_eq!(
        header(&first, "ratelimit-policy"),
        "\"api:read\";q=1;w=10000"
    );
    let second = server.get("/openapi.json", "0123456789abcdef").await;
    assert_eq!(
        (second.status(), header(&second, "ratelimit")),
        (StatusCode::OK, "\"api:read\";r=0")
    );

    let third = server.get("/api/v1/throttles", "0123456789abcdef").await;
    let wait_s: u64 = header(&third, "retry-after").parse().unwrap();
    assert!((9000..=10_000).contains(&wait_s), "{wait_s}");
    assert_eq!(
        header(&third, "ratelimit"),
        format!("\"api:read\";r=0;t={wait_s}")
    );
    let problem = refused(third).await;
    assert!(
        problem["detail"].as_str().unwrap().starts_with(
            "your token is at the request limit of one token (key_rps of throttle \
                          api:read)"
        ),
        "{problem}"
    );
    assert!(!problem.to_string().contains("0123456789abcdef"));

    // Each group of endpoints has its own throttle.
    let write = server
        .client
        .post(format!("{}/api/v1/pause", server.base))
        .bearer_auth("0123456789abcdef")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (
            write.status(),
            header(&write, "ratelimit").starts_with("\"api:write\"")
        ),
        (StatusCode::OK, true)
    );
    // A person raises the knob, and the next request passes.
    server.turn("api:read", &[("key_rps", "1000")]).await;
    eventually("the knob", SOON, || async {
        (server
            .get("/api/v1/throttles", "0123456789abcdef")
            .await
            .status()
            == StatusCode::OK)
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_tenant_that_rotates_its_tokens_gets_three_times_one_of_them_and_no_more() {
    let acme: Vec<String> = (0..5).map(|i| format!("0123456789-acme-{i}")).collect();
    let mut tokens: Vec<(&str, &str)> = acme.iter().map(|token| ("acme", token.as_str())).collect();
    tokens.push(("zeta", "0123456789-zeta-0"));
    let server = limited_server(&tokens, PATIENT).await;
    for tenant in ["acme", "zeta"] {
        // Each token has two requests, the tenant six.
        let knobs = [
            ("key_rps", "0.0001"),
            ("rps", "0.0003"),
            ("window", "10000"),
            ("burst", "2"),
            ("key_burst", "2"),
        ];
        let name = format!("api:read:{tenant}");
        server.turn(&name, &knobs).await;
        server
            .store
            .settle_many(&Name::new(name).unwrap(), &[("", -100.0)])
            .await
            .unwrap();
    }

    let (mut passed, mut last) = (0, None);
    for _ in 0..4 {
        for token in &acme {
            let answer = server.get("/api/v1/throttles", token).await;
            if answer.status() == StatusCode::OK {
                passed += 1
            } else {
                last = Some(answer)
            }
        }
    }

    assert_eq!(passed, 6);
    let last = last.unwrap();
    assert!(
        header(&last, "ratelimit").starts_with("\"api:read:acme/total\";r=0;t="),
        "{}",
        header(&last, "ratelimit")
    );
    assert_eq!(
        header(&last, "ratelimit-policy"),
        "\"api:read:acme\";q=1;w=10000, \"api:read:acme/total\";q=1;w=3334"
    );
    assert!(
        refused(last).await["detail"]
            .as_str()
            .unwrap()
            .contains("the tokens of tenant acme")
    );
    assert_eq!(
        server
            .get("/api/v1/throttles", "0123456789-zeta-0")
            .await
            .status(),
        StatusCode::OK,
        "others are not concerned"
    );
}

#[tokio::test]
async fn the_throttles_of_the_api_are_shown_like_all_others_and_reveal_no_token() {
    let server = limited_server(&[], PATIENT).await;
    // A key that is not full appears in the list.
    server
        .turn("api:read", &[("key_rps", TWO), ("rps", "0.0003")])
        .await;

    let all: Value = server
        .get("/api/v1/throttles", "")
        .await
        .json()
        .await
        .unwrap();

    let names: Vec<&str> = all["throttles"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "api:acquire",
            "api:dashboard",
            "api:denied",
            "api:enqueue",
            "api:read",
            "api:write"
        ]
    );
    for one in all["throttles"].as_array().unwrap() {
        let (rps, key_rps) = (
            one["knobs"]["rps"].as_f64().unwrap(),
            one["knobs"]["key_rps"].as_f64().unwrap(),
        );
        let times = if one["name"] == "api:denied" {
            20.0
        } else {
            3.0
        };
        assert!((rps / key_rps - times).abs() < 1e-6, "{one}");
        assert_eq!(
            (&one["knobs"]["on_store_loss"], &one["problems"]),
            (&"open".into(), &Value::Array(Vec::new()))
        );
    }
    let mut connection = connect_redis(&server.redis.url()).await.unwrap();
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*lane*")
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(keys, ["throttle:api:read:lane:local"]);
}

#[tokio::test]
async fn bad_credentials_get_401_then_429_and_then_cost_redis_nothing_while_good_ones_pass() {
    let server = limited_server(&[(DEFAULT_TENANT, "0123456789abcdef")], PATIENT).await;
    server
        .turn("api:denied", &[("key_rps", TWO), ("rps", "-1")])
        .await;

    for _ in 0..2 {
        assert_eq!(
            server.get("/api/v1/throttles", "wrong").await.status(),
            StatusCode::UNAUTHORIZED
        );
    }
    refused(server.get("/api/v1/throttles", "wrong").await).await;
    let asked = server.asked().await;
    assert!(asked >= 3, "{asked}");
    for _ in 0..20 {
        let answer = server.get("/api/v1/throttles", "other").await;
        assert!(header(&answer, "retry-after").parse::<u64>().unwrap() > 1);
        refused(answer).await;
    }
    let login = server
        .client
        .post(format!("{}/login", server.base))
        .form(&[("token", "wrong")])
        .send()
        .await
        .unwrap();
    refused(login).await;
    assert_eq!(
        server.asked().await,
        asked,
        "nobody asks Redis for who is known to be refused"
    );

    assert_eq!(
        server
            .get("/api/v1/throttles", "0123456789abcdef")
            .await
            .status(),
        StatusCode::OK
    );
    assert_eq!(
        server.get("/healthz", "wrong").await.status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn dashboards_health_and_metrics_are_not_starved_by_programs() {
    let server = limited_server(&[(DEFAULT_TENANT, "0123456789abcdef")], PATIENT).await;
    for group in ["read", "write", "enqueue", "acquire"] {
        server.turn(&format!("api:{group}"), &[("rps", "0")]).await;
    }
    let token = "0123456789abcdef";
    for path in ["/api/v1/throttles", "/openapi.json", "/api/v1/nowhere"] {
        refused(server.get(path, token).await).await;
    }
    for path in [
        "/healthz",
        "/readyz",
        "/metrics",
        "/",
        "/assets/app.js",
        "/api/v1/stream",
    ] {
        // The store may be slow on a busy machine; the test only requires that no request is
        // limited.
        assert_ne!(
            server.get(path, token).await.status(),
            StatusCode::TOO_MANY_REQUESTS,
            "{path}"
        );
    }

    let login = server
        .client
        .post(format!("{}/login", server.base))
        .form(&[("token", token)])
        .send()
        .await
        .unwrap();
    let cookie = header(&login, "set-cookie")
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    let answer = server
        .client
        .get(format!("{}/api/v1/throttles", server.base))
        .header("cookie", cookie)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(header(&answer, "ratelimit").starts_with("\"api:dashboard\";r="));
}

#[tokio::test]
async fn without_redis_the_api_goes_on_unless_a_person_has_said_otherwise() {
    let mut server = limited_server(&[], None).await;
    let ask = async |server: &LimitedServer, method: reqwest::Method| {
        server
            .client
            .request(method, format!("{}/api/v1/pause", server.base))
            .send()
            .await
            .unwrap()
            .status()
    };
    server
        .turn("api:write", &[("on_store_loss", "closed")])
        .await;
    // Redis reports both to this process.
    eventually("an answer that Redis has limited", SOON, || async {
        let limited = |answer: Response| answer.headers().contains_key("ratelimit").then_some(());
        let url = format!("{}/api/v1/pause", server.base);
        limited(server.client.get(&url).send().await.unwrap())?;
        limited(server.client.post(&url).send().await.unwrap())
    })
    .await;

    server.redis.freeze();
    assert_eq!(
        ask(&server, reqwest::Method::GET).await,
        StatusCode::OK,
        "a Redis that hangs"
    );
    assert_eq!(ask(&server, reqwest::Method::GET).await, StatusCode::OK);
    server.redis.thaw();
    server.redis.kill();

    for _ in 0..20 {
        assert_eq!(
            ask(&server, reqwest::Method::GET).await,
            StatusCode::OK,
            "a Redis that is gone"
        );
    }
    assert_eq!(
        ask(&server, reqwest::Method::POST).await,
        StatusCode::TOO_MANY_REQUESTS,
        "closed is closed"
    );
}
