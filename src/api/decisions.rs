//! The governor's decisions and the failed attempts: the first things to read when something looks
//! wrong.

use std::sync::Arc;

use axum::extract::{Query as Pairs, State};
use axum::{Extension, Json};
use serde::Serialize;

use crate::api::http::caller::Caller;
use crate::api::http::lagging::read_list;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::{PAGE_MAX, Query};
use crate::api::http::timeout::{LIST_TIMEOUT, with_timeout};
use crate::api::journal::Decisions;
use crate::governor::Decision;
use crate::jobs::{FailedAttempt, Queue};
use crate::throttle;

/// The last decisions.
#[derive(Serialize, utoipa::ToSchema)]
pub struct DecisionPage {
    /// The decisions, newest first.
    decisions: Vec<Decision>,
}

/// The last failed attempts.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Failures {
    /// The failures, newest first.
    failures: Vec<FailedAttempt>,
}

/// Lists the last decisions of the governors.
#[utoipa::path(get, path = "/api/v1/decisions", operation_id = "list_decisions", tag = "throttles",
    params(
        ("throttle" = Option<String>, Query, description = "Only decisions for this throttle."),
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 1000; 100 if absent.")),
    responses((status = 200, body = DecisionPage)))]
pub async fn list(
    State(journal): State<Arc<dyn Decisions>>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<DecisionPage>, Problem> {
    let mut query = Query::open(pairs, &["throttle", "limit"]);
    let limit = query.whole("limit", 1..=PAGE_MAX).unwrap_or(100);
    let throttle = query.text("throttle", throttle::name::MAX_BYTES);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let decisions = with_timeout(LIST_TIMEOUT, journal.recent(throttle.as_deref(), limit)).await?;
    Ok(Json(DecisionPage { decisions }))
}

/// Lists the last attempts that failed.
#[utoipa::path(get, path = "/api/v1/failures", operation_id = "list_failures", tag = "jobs",
    params(("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 1000; 100 if absent.")),
    responses((status = 200, body = Failures)))]
pub async fn failures(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<Failures>, Problem> {
    let mut query = Query::open(pairs, &["limit"]);
    let limit = query.whole("limit", 1..=PAGE_MAX).unwrap_or(100);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let tenant = caller.tenant.as_deref();
    let read = |queue: Queue| async move { queue.failures(tenant, limit).await };
    let failures = read_list(&queue, read).await?;
    Ok(Json(Failures { failures }))
}
