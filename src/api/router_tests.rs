//! Tests of the HTTP interface through a real listener, with throttles in a map and a Postgres that
//! does not answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use sqlx::postgres::PgPoolOptions;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::api::journal::NoDecisions;
use crate::api::stream::live::{STREAMS_MAX, Tick};
use crate::api::{AuthToken, Live, TokenSecret};
use crate::jobs::{self, Handler, Issue, Outcome, PreparedJob};
use crate::throttle::KnobProblem;
use crate::throttle::{
    self, AcquireRequest, AcquireResponse, Change, Grant, Holder, KeyOutcomes, Knobs, Limit, Name,
    Refund, RefusalEffect, Status, Store, UpstreamRefusal,
};

#[path = "router_tests/authentication_tests.rs"]
mod authentication;
#[path = "router_tests/connections_tests.rs"]
mod connections;
#[path = "router_tests/map_store_tests.rs"]
mod map_store;
#[path = "router_tests/problems_tests.rs"]
mod problems;
#[path = "router_tests/stream_tests.rs"]
mod stream;
#[path = "router_tests/throttles_tests.rs"]
mod throttles;

use map_store::{MapStore, Noop, check_knobs, status_of};

struct RouterFixture {
    base: String,
    client: reqwest::Client,
    map_store: Arc<MapStore>,
    live: Live,
    cancel: CancellationToken,
    server: tokio::task::JoinHandle<std::io::Result<()>>,
}

async fn fixture(token: Option<&str>) -> RouterFixture {
    let map_store = Arc::new(MapStore::default());
    let name = Name::new("reindex").unwrap();
    map_store
        .throttles
        .lock()
        .insert(name.clone(), status_of(&name, 5.0, 17));
    let pool = PgPoolOptions::new()
        .acquire_timeout(Duration::from_millis(200))
        .connect_lazy("postgres://nobody@127.0.0.1:1/none")
        .unwrap();
    let mut kinds = jobs::Kinds::default();
    kinds.register("noop", Noop);
    let (live, cancel) = (Live::default(), CancellationToken::new());
    let queue = jobs::Queue::new(pool);
    let http = Arc::new(crate::providers::Http::new(crate::outbound::Guard::open()).unwrap());
    let deps = Deps {
        deliveries: crate::notify::Deliveries::new(queue.pool.clone()),
        gates: crate::recipient::service::Gates::new(
            queue.clone(),
            crate::recipient::live_rules::LiveRules::new(
                crate::recipient::rules::RecipientRules::parse("recipients.toml", "").unwrap(),
            ),
        ),
        gateway: crate::gateway::service::Gateway::new(
            queue.clone(),
            map_store.clone(),
            crate::gateway::limits::GatewayLimits::default(),
            crate::api::DEFAULT_TENANT,
            crate::service::DueWork::default(),
        ),
        queue: queue.clone(),
        pools: Arc::new(crate::api::notifications::events::example_pools()),
        tools: crate::providers::DriverClients {
            http: http.clone(),
            guarded: http,
        },
        public_url: String::new(),
        throttles: map_store.clone(),
        throttles_created_max: 1000,
        tenant_limits: crate::throttle::admission::TenantLimits::default(),
        implicit_idempotency: true,
        problem_types: "https://api.septemcore.com/problems/".to_owned(),
        key_metrics: Arc::default(),
        prometheus: Arc::new(crate::signals::Prometheus::new("http://127.0.0.1:9").unwrap()),
        api_limits: Arc::default(),
        check_knobs,
        remote: crate::runner::Brokers::new(
            crate::runner::Config::default(),
            (queue.clone(), map_store.clone()),
            crate::runner::WorkerMetrics::register(
                &mut prometheus_client::registry::Registry::default(),
            ),
            std::collections::BTreeMap::new(),
            kinds.names(),
            cancel.clone(),
        ),
        kinds,
        account_pools: Vec::new(),
        decisions: Arc::new(NoDecisions),
        live: live.clone(),
        tokens: token
            .map(|token| AuthToken::new(TokenSecret::new(token)))
            .into_iter()
            .collect(),
        jwt: None,
        registry: Arc::default(),
        tracer: crate::trace::Tracer::default(),
        cancel: cancel.clone(),
        draining: CancellationToken::new(),
    };
    let listener = crate::api::bind("FLYBALL_LISTEN", "127.0.0.1:0", token.is_some())
        .await
        .unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let ended = cancel.clone().cancelled_owned();
    let server = tokio::spawn(async move {
        axum::serve(listener, router(deps))
            .with_graceful_shutdown(ended)
            .await
    });
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .unwrap();
    RouterFixture {
        base,
        client,
        map_store,
        live,
        cancel,
        server,
    }
}

impl RouterFixture {
    fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.ask(Method::GET, path)
    }

    async fn document(&self) -> Value {
        let answer = self.get("/openapi.json").send().await.unwrap();
        answer.json().await.unwrap()
    }

    async fn send(&self, method: Method, path: &str, body: Value) -> Response {
        self.ask(method, path).json(&body).send().await.unwrap()
    }
}

/// Checks the shape of a problem and returns its body.
async fn problem(response: Response, status: u16, code: &str) -> Value {
    assert_eq!(response.status().as_u16(), status);
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    let body: Value = response.json().await.unwrap();
    assert_eq!(
        (body["status"].as_u64(), body["code"].as_str()),
        (Some(status.into()), Some(code)),
        "{body}"
    );
    assert_eq!(body["type"], format!("urn:flyball:problem:{code}"));
    assert!(
        body["title"].is_string() && body["detail"].is_string() && body["errors"].is_array(),
        "{body}"
    );
    body
}

fn pointers(problem: &Value) -> Vec<&str> {
    problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect()
}
