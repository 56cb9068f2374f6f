//! The live workers.

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use crate::api::http::problem::Problem;
use crate::api::postgres::{self, Worker};

use crate::api::http::timeout::{LIST_TIMEOUT, ROW_TIMEOUT, with_timeout};
use crate::jobs::Queue;
use crate::jobs::serving::{UnservedJobs, differences};

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
    /// Ready jobs that no live worker serves, the most first. Those of throttles that nobody serves
    /// are as recent as the depths; others are counted within some seconds.
    unserved: Vec<UnservedJobs>,
    /// The cost of the attempts of each kind with any ended attempt; a few seconds old.
    costs: Vec<KindCost>,
}

/// Lists the live workers, and the cost of attempts.
#[utoipa::path(get, path = "/api/v1/workers", operation_id = "list_workers", tag = "workers", responses((status = 200, body = Workers)))]
pub async fn list(State(queue): State<Queue>) -> Result<Json<Workers>, Problem> {
    let workers = with_timeout(ROW_TIMEOUT, postgres::read_workers(&queue.pool)).await?;
    let costs = with_timeout(ROW_TIMEOUT, queue.kind_costs()).await?;
    let costs = costs.into_iter().map(|one| KindCost {
        kind: one.kind,
        attempts: one.attempts,
        mean_cost: one.mean,
    });
    let differences = differences(&with_timeout(ROW_TIMEOUT, queue.serving()).await?);
    let unserved = with_timeout(LIST_TIMEOUT, queue.unserved()).await?;
    Ok(Json(Workers {
        workers,
        differences,
        unserved,
        costs: costs.collect(),
    }))
}
