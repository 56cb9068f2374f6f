//! The live workers.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::Serialize;

use super::postgres;
use super::problem::Problem;
use super::state::App;
use super::within::{ONE, within};
use crate::jobs::serving::differences;

/// A worker process that has shown a sign of life within its TTL.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Worker {
    /// A fresh number per process start.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// When it started.
    pub started_at: Timestamp,
    /// Its last sign of life.
    pub heartbeat_at: Timestamp,
    /// Jobs that it runs now.
    pub running: i64,
    /// Kinds that it runs.
    pub kinds: Vec<String>,
    /// What it can run of them, such as `channel sms`, each with a digest of the settings behind it.
    pub offers: BTreeMap<String, String>,
}

/// What attempts of a kind cost.
#[derive(Serialize, utoipa::ToSchema)]
pub struct KindCost {
    /// The kind.
    kind: String,
    /// Attempts that have ended, in all workers there ever were.
    attempts: i64,
    /// Tokens that one of the last thousand or so cost in the mean, by the word of their handlers or else as enqueued.
    mean_cost: f64,
}

/// The live workers.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Workers {
    /// In the order of their ids.
    workers: Vec<Worker>,
    /// Where they differ in what they run, one sentence each. A job waits for a worker that can run it.
    differences: Vec<String>,
    /// What attempts of each kind cost, as far as any have ended; a few seconds old.
    costs: Vec<KindCost>,
}

/// Lists the live workers, and what attempts cost.
#[utoipa::path(get, path = "/api/v1/workers", operation_id = "list_workers", tag = "workers", responses((status = 200, body = Workers)))]
pub async fn list(State(app): State<App>) -> Result<Json<Workers>, Problem> {
    let workers = within(ONE, postgres::read_workers(&app.deps.queue.pool)).await?;
    let costs = within(ONE, app.deps.queue.kind_costs()).await?;
    let costs = costs.into_iter().map(|one| KindCost {
        kind: one.kind,
        attempts: one.attempts,
        mean_cost: one.mean,
    });
    let differences = differences(&within(ONE, app.deps.queue.serving()).await?);
    Ok(Json(Workers {
        workers,
        differences,
        costs: costs.collect(),
    }))
}
