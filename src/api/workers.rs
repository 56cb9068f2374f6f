//! The live workers.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::Serialize;

use super::postgres;
use super::problem::Problem;
use super::state::ApiState;
use super::timeout::{ROW_TIMEOUT, with_timeout};
use crate::jobs::serving::differences;

/// A worker process that has sent a heartbeat within its TTL.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Worker {
    /// The number of the process, new at each start.
    pub id: i64,
    /// The name of the worker.
    pub name: String,
    /// The start of the process.
    pub started_at: Timestamp,
    /// The last heartbeat.
    pub heartbeat_at: Timestamp,
    /// Jobs that the worker runs now.
    pub running: i64,
    /// Kinds that the worker runs.
    pub kinds: Vec<String>,
    /// The capabilities of the worker, such as `channel sms`, each with a digest of its settings.
    pub offers: BTreeMap<String, String>,
}

/// The cost of the attempts of a kind.
#[derive(Serialize, utoipa::ToSchema)]
pub struct KindCost {
    /// The kind.
    kind: String,
    /// Attempts that have ended, in all workers so far.
    attempts: i64,
    /// Mean cost of the last thousand or so attempts, in tokens, as reported by their handlers or
    /// else as enqueued.
    mean_cost: f64,
}

/// The live workers.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Workers {
    /// The workers, by id.
    workers: Vec<Worker>,
    /// The differences between the workers' capabilities, one sentence each. A job waits for a
    /// worker that can run it.
    differences: Vec<String>,
    /// The cost of the attempts of each kind of which any have ended; a few seconds old.
    costs: Vec<KindCost>,
}

/// Lists the live workers, and the cost of attempts.
#[utoipa::path(get, path = "/api/v1/workers", operation_id = "list_workers", tag = "workers", responses((status = 200, body = Workers)))]
pub async fn list(State(app): State<ApiState>) -> Result<Json<Workers>, Problem> {
    let workers = with_timeout(ROW_TIMEOUT, postgres::read_workers(&app.deps.queue.pool)).await?;
    let costs = with_timeout(ROW_TIMEOUT, app.deps.queue.kind_costs()).await?;
    let costs = costs.into_iter().map(|one| KindCost {
        kind: one.kind,
        attempts: one.attempts,
        mean_cost: one.mean,
    });
    let differences = differences(&with_timeout(ROW_TIMEOUT, app.deps.queue.serving()).await?);
    Ok(Json(Workers {
        workers,
        differences,
        costs: costs.collect(),
    }))
}
