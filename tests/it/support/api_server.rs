//! An API in this process, on a port of its own.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use flyball::api::{self, Deps, Live, NoDecisions};
use flyball::gateway::limits::GatewayLimits;
use flyball::gateway::service::Gateway;
use flyball::jobs::{Kinds, Tuning};
use flyball::notify::Deliveries;
use flyball::runner::{Brokers, Config, WorkerMetrics};
use flyball::throttle::Knobs;
use prometheus_client::registry::Registry;
use reqwest::{Method, RequestBuilder};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::fixture::Fixture;
use super::tools;

/// An API that is served until it is dropped.
pub struct ApiServer {
    pub base: String,
    pub client: reqwest::Client,
    pub cancel: CancellationToken,
    pub served: JoinHandle<std::io::Result<()>>,
    pub gateway: Gateway,
    fixture: Fixture,
}

impl Deref for ApiServer {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Starts the service for workers in other programs, which ends with the server. The kind `hasty`
/// has a timeout of 3 s, and the kind `single` one attempt.
fn brokers(fixture: &Fixture, cancel: &CancellationToken) -> Arc<Brokers> {
    let hasty = Tuning {
        timeout: Some(Duration::from_secs(3)),
        ..Tuning::default()
    };
    let single = Tuning {
        max_attempts: Some(1),
        ..Tuning::default()
    };
    let brokers = Brokers::new(
        Config {
            ttl: Duration::from_secs(5),
            ..Config::default()
        },
        (fixture.queue.clone(), fixture.store.clone()),
        WorkerMetrics::register(&mut Registry::default()),
        BTreeMap::from([("hasty".to_owned(), hasty), ("single".to_owned(), single)]),
        vec!["http".to_owned()],
        cancel.clone(),
    );
    tokio::spawn(brokers.clone().run());
    brokers
}

impl ApiServer {
    /// Serves the API on these stores, with no kinds, pools or tokens except those that `change`
    /// adds.
    pub async fn start(fixture: Fixture, change: impl FnOnce(&mut Deps)) -> Self {
        let cancel = CancellationToken::new();
        let mut deps = Deps {
            queue: fixture.queue.clone(),
            throttles: fixture.store.clone(),
            throttles_created_max: 1000,
            tenant_limits: flyball::throttle::admission::TenantLimits::default(),
            implicit_idempotency: true,
            problem_types: "https://api.septemcore.com/problems/".to_owned(),
            key_metrics: Arc::default(),
            prometheus: Arc::new(flyball::signals::Prometheus::new("http://127.0.0.1:9").unwrap()),
            api_limits: Arc::default(),
            check_knobs: Knobs::check,
            kinds: Kinds::default(),
            remote: brokers(&fixture, &cancel),
            pools: Arc::default(),
            account_pools: Vec::new(),
            deliveries: Deliveries::new(fixture.queue.pool.clone()),
            gates: crate::recipient::gates(&fixture.queue),
            gateway: Gateway::new(
                fixture.queue.clone(),
                fixture.store.clone(),
                GatewayLimits::default(),
                api::DEFAULT_TENANT,
                flyball::service::DueWork::default(),
            ),
            tools: tools(),
            public_url: String::new(),
            decisions: Arc::new(NoDecisions),
            live: Live::default(),
            tokens: Arc::default(),
            jwt: None,
            registry: Arc::default(),
            tracer: flyball::trace::Tracer::default(),
            cancel: cancel.clone(),
            draining: CancellationToken::new(),
        };
        change(&mut deps);
        let gateway = deps.gateway.clone();
        let listener = api::bind("FLYBALL_LISTEN", "127.0.0.1:0", !deps.tokens.is_empty())
            .await
            .expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("its address"));
        let served = tokio::spawn(api::serve(deps, listener));
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .expect("a client");
        Self {
            base,
            client,
            cancel,
            served,
            gateway,
            fixture,
        }
    }

    /// Starts building a request to a path.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }
}
