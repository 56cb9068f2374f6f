//! The health of the process: liveness and readiness.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::api::http::problem::{Code, Problem};
use crate::jobs::Queue;
use crate::jobs::postgres::READ_ONLY;
use crate::throttle;

/// The longest time in which a store must answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The token that is cancelled when the process begins to stop: what runs still ends, and the API
/// still answers.
#[derive(Clone)]
pub struct Draining(pub CancellationToken);

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
    State(throttles): State<Arc<dyn throttle::Store>>,
    State(cancel): State<CancellationToken>,
    State(draining): State<Draining>,
) -> Response {
    if draining.0.is_cancelled() || cancel.is_cancelled() {
        return Problem::new(Code::NotReady, "the process is stopping").into_response();
    }
    let (postgres, redis) = tokio::join!(
        timeout(ANSWER_WITHIN, queue.status()),
        timeout(ANSWER_WITHIN, throttles.takes_writes()),
    );
    if let Ok(Err(throttle::Error::Lost(reason))) = &redis
        && let Some(answer) = throttle::reason_meaning(reason)
    {
        return Problem::new(Code::NotReady, format!("Redis refuses: {answer}"))
            .retry_after(1)
            .into_response();
    }
    if matches!(&postgres, Ok(Ok(status)) if status.is_read_only) {
        return Problem::new(Code::NotReady, READ_ONLY)
            .retry_after(1)
            .into_response();
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
        let mut checks = BTreeMap::from([("postgres", "ok"), ("redis", "ok")]);
        // Without its replica a process reads lists from the primary, so it is ready all the same.
        if let Some(replica) = queue.replica() {
            let is_used = replica.usable().is_some();
            checks.insert("replica", if is_used { "ok" } else { "unused" });
        }
        return (
            StatusCode::OK,
            Json(Health {
                status: "ready",
                checks,
            }),
        )
            .into_response();
    }
    let verb = if lost.len() == 1 { "does" } else { "do" };
    Problem::new(
        Code::NotReady,
        format!(
            "{} {verb} not answer within {} s",
            lost.join(" and "),
            ANSWER_WITHIN.as_secs()
        ),
    )
    .retry_after(1)
    .into_response()
}
