//! The health of the process: liveness and readiness.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use serde::Serialize;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::api::http::problem::{Code, Problem};
use crate::jobs::Queue;
use crate::jobs::postgres::READ_ONLY;
use crate::service::Batcher;
use crate::throttle;

/// The longest time in which a store must answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// The most calls that share one check of the stores.
const SHARED_BY: usize = 1_000;

/// The token that is cancelled when the process begins to stop: what runs still ends, and the API
/// still answers.
#[derive(Clone)]
pub struct Draining(pub CancellationToken);

/// The check of the stores. Calls that come during one share the next, so that any number of
/// strangers costs each store one statement at a time. Cheap to clone.
#[derive(Clone)]
pub struct StoresCheck(Batcher<(), Result<(), String>>);

impl StoresCheck {
    /// Creates the check of these stores.
    pub fn new(queue: Queue, throttles: Arc<dyn throttle::Store>) -> Self {
        Self(Batcher::new(SHARED_BY, move |calls: Vec<()>| {
            let (queue, throttles) = (queue.clone(), throttles.clone());
            let check = async move {
                let found = check_stores(&queue, &*throttles).await;
                vec![found; calls.len()]
            };
            check.boxed()
        }))
    }

    /// Fails with the reason if a store does not answer, or accepts no writes.
    async fn find(&self) -> Result<(), String> {
        let found = self.0.submit(()).await;
        found.unwrap_or_else(|broken| Err(format!("the check of the stores failed: {broken}")))
    }
}

/// The health of a process.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Health {
    /// The state: `alive` or `ready`.
    status: &'static str,
    /// The checks made, with `ok` for each; `unused` for a replica that cannot be reached or lags
    /// too much.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    checks: BTreeMap<&'static str, &'static str>,
}

/// Reports that the process is alive; checks nothing else.
#[utoipa::path(get, path = "/healthz", operation_id = "show_liveness", tag = "health", security(()), responses((status = 200, body = Health)))]
pub async fn alive() -> Json<Health> {
    Json(Health {
        status: "alive",
        checks: BTreeMap::new(),
    })
}

/// Reports whether Postgres and Redis accept writes and the process is not stopping.
#[utoipa::path(get, path = "/readyz", operation_id = "show_readiness", tag = "health", security(()), responses((status = 200, body = Health)))]
pub async fn ready(
    State(queue): State<Queue>,
    State(stores): State<StoresCheck>,
    State(cancel): State<CancellationToken>,
    State(draining): State<Draining>,
) -> Response {
    if draining.0.is_cancelled() || cancel.is_cancelled() {
        return Problem::new(Code::NotReady, "the process is stopping").into_response();
    }
    if let Err(reason) = stores.find().await {
        return Problem::new(Code::NotReady, reason)
            .retry_after(1)
            .into_response();
    }
    let mut checks = BTreeMap::from([("postgres", "ok"), ("redis", "ok")]);
    // Without its replica a process reads lists from the primary, so it is ready all the same.
    if let Some(replica) = queue.replica() {
        let is_used = replica.usable().is_some();
        checks.insert("replica", if is_used { "ok" } else { "unused" });
    }
    let status = "ready";
    (StatusCode::OK, Json(Health { status, checks })).into_response()
}

async fn check_stores(queue: &Queue, throttles: &dyn throttle::Store) -> Result<(), String> {
    let (postgres, redis) = tokio::join!(
        timeout(ANSWER_WITHIN, queue.status()),
        timeout(ANSWER_WITHIN, throttles.takes_writes()),
    );
    if let Ok(Err(throttle::Error::Lost(reason))) = &redis
        && let Some(answer) = throttle::reason_meaning(reason)
    {
        return Err(format!("Redis refuses: {answer}"));
    }
    if matches!(&postgres, Ok(Ok(status)) if status.is_read_only) {
        return Err(READ_ONLY.to_owned());
    }
    let lost: Vec<&str> = [
        ("Postgres", matches!(postgres, Ok(Ok(_)))),
        ("Redis", matches!(redis, Ok(Ok(())))),
    ]
    .iter()
    .filter(|(_, ok)| !ok)
    .map(|(name, _)| *name)
    .collect();
    if lost.is_empty() {
        return Ok(());
    }
    let verb = if lost.len() == 1 { "does" } else { "do" };
    Err(format!(
        "{} {verb} not answer within {} s",
        lost.join(" and "),
        ANSWER_WITHIN.as_secs()
    ))
}
