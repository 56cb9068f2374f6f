//! A server whose tokens have permissions of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flyball::api::{
    self, AuthToken, DEFAULT_TENANT, Deps, Live, NoDecisions, Permissions, TokenScope, TokenSecret,
};
use flyball::jobs::{Handler, Issue, Job, Kinds, Outcome, PreparedJob, Queue};
use flyball::throttle::{Change, Knobs, Name, Store};

use reqwest::{Method, Response};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::support::{Database, database, patient_store, redis_prefix};

pub const SOON: Duration = Duration::from_secs(20);

pub const ADMIN: &str = "0123456789-admin";

/// An API with tokens, on a database and a prefix of its own.
pub struct House {
    pub base: String,
    pub client: reqwest::Client,
    pub queue: Queue,
    pub cancel: CancellationToken,
    pub database: Database,
}

/// A kind whose handler says that it is not public.
pub struct Private;

impl Handler for Private {
    fn prepare(&self, _: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        Ok(PreparedJob::new(|_, _| async { Outcome::Done }))
    }

    fn public(&self) -> bool {
        false
    }
}

/// A token's name, tenant and leave; its secret is made from its name.
pub type Given<'a> = (&'a str, Option<&'a str>, Permissions);

pub fn secret(name: &str) -> String {
    format!("0123456789-{name}")
}

pub fn leave(scopes: &[TokenScope]) -> Permissions {
    Permissions {
        scopes: scopes.iter().copied().collect(),
        ..Permissions::default()
    }
}

pub async fn house(given: Vec<Given<'_>>, public_url: &str) -> House {
    let database = database().await;
    let store: Arc<dyn Store> = Arc::new(patient_store(&redis_prefix()).await);
    let tenants: BTreeSet<&str> = given
        .iter()
        .filter_map(|(_, tenant, _)| *tenant)
        .chain([DEFAULT_TENANT])
        .collect();
    api::seed_limits(&*store, &tenants.into_iter().collect::<Vec<_>>())
        .await
        .unwrap();
    for name in ["mail", "shop:eu"] {
        let fields = BTreeMap::from([("rps".to_owned(), Some("100".to_owned()))]);
        let change = Change {
            fields,
            by: "test".into(),
            create: true,
            ..Change::default()
        };
        store.set(&Name::new(name).unwrap(), &change).await.unwrap();
    }
    // Many requests without a token are refused faster than they are judged.
    let unlimited = ["rps", "key_rps"].map(|knob| (knob.to_owned(), Some("-1".to_owned())));
    let change = Change {
        fields: BTreeMap::from(unlimited),
        by: "test".into(),
        ..Change::default()
    };
    store
        .set(&Name::new("api:denied").unwrap(), &change)
        .await
        .unwrap();

    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
    let mut kinds = Kinds::default();
    kinds.register_fn("http", |_: Job, _| async { Outcome::Done });
    kinds.register("reindex", Private);
    let cancel = CancellationToken::new();
    let admin = AuthToken::new(DEFAULT_TENANT, TokenSecret::new(ADMIN));
    let others = given.into_iter().map(|(name, tenant, leave)| {
        AuthToken::of(name, tenant, leave, TokenSecret::new(secret(name)))
    });
    let deps = Deps {
        queue: queue.clone(),
        pools: Arc::default(),
        deliveries: flyball::notify::Deliveries::new(queue.pool.clone()),
        tools: crate::support::tools(),
        public_url: public_url.to_owned(),
        throttles: store,
        check_knobs: Knobs::check,
        kinds,
        account_pools: Vec::new(),
        decisions: Arc::new(NoDecisions),
        live: Live::default(),
        tokens: std::iter::once(admin).chain(others).collect(),
        registry: Arc::default(),
        cancel: cancel.clone(),
    };
    let listener = api::bind("127.0.0.1:0", true).await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(api::serve(deps, listener));
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    House {
        base,
        client,
        queue,
        cancel,
        database,
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl House {
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        secret: Option<&str>,
        body: &Value,
    ) -> Response {
        let mut request = self
            .client
            .request(method.clone(), format!("{}{path}", self.base));
        if method != Method::GET {
            request = request.json(body);
        }
        if let Some(secret) = secret {
            request = request.bearer_auth(secret);
        }
        request.send().await.unwrap()
    }

    /// Status and body.
    pub async fn said(
        &self,
        method: Method,
        path: &str,
        secret: &str,
        body: Value,
    ) -> (u16, Value) {
        let response = self.ask(method, path, Some(secret), &body).await;
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or_default())
    }

    pub async fn refused(
        &self,
        method: Method,
        path: &str,
        secret: &str,
        body: Value,
        code: &str,
    ) -> String {
        let (status, problem) = self.said(method, path, secret, body).await;
        assert_eq!(
            (status, problem["code"].as_str()),
            (403, Some(code)),
            "{path}: {problem}"
        );
        problem["detail"].as_str().unwrap().to_owned()
    }
}
