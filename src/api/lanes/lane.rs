//! One lane of a throttle: show, set its weight, empty.

use std::sync::Arc;

use axum::extract::{Path, Query as Pairs, Request, State};
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::Serialize;

use super::keys::key_of;
use super::list::{self, LanePause, LearnedPace};
use crate::api::clock;
use crate::api::http::caller::Caller;
use crate::api::http::fields::ObjectReader;
use crate::api::http::operate::{
    BulkChange, FIELDS, count_or_change, signed, signed_of_query, walk_of_query,
};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::Query;
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::throttles::knobs::name_of;
use crate::api::throttles::state::ThrottlesState;
use crate::api::throttles::view::since_s;
use crate::jobs::{Attribution, Count};
use crate::throttle::Name;

/// The highest weight of a lane.
pub(in crate::api) const WEIGHT_MAX: f64 = 1000.0;
/// The lowest weight of a lane.
pub(in crate::api) const WEIGHT_MIN: f64 = 0.001;

/// The current state of a lane.
#[derive(Serialize, utoipa::ToSchema)]
pub struct LaneDetail {
    /// The throttle of the lane.
    throttle: String,
    /// The key of the lane; empty for jobs without one.
    key: String,
    /// The share of the lane beside the other lanes of the throttle.
    weight: f64,
    /// Waiting jobs of the lane (ready, scheduled and retryable), counted for this answer up to
    /// 10,000.
    waiting: Count,
    /// Seconds for which the oldest ready job has waited, from its creation or from the time for
    /// which it was enqueued; `null` where none is ready.
    oldest_ready_s: Option<f64>,
    /// The time at which the lane was first seen; `null` if no worker has seen it yet.
    first_seen: Option<Timestamp>,
    /// The pause in force; `null` if there is none.
    paused: Option<LanePause>,
    /// The limits learned from the answers of the receiver; `null` if there are none. Resuming the
    /// key resets them.
    learned: Option<LearnedPace>,
}

/// A new weight.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct LaneWeight {
    /// The lane's share beside the other lanes of its throttle, 0.001 to 1000; 1 by default.
    weight: f64,
    /// The author of the change, for the audit log.
    by: Option<String>,
    /// The reason for the change, for the audit log.
    why: Option<String>,
}

/// Shows one lane.
#[utoipa::path(get, path = "/api/v1/throttles/{name}/keys/{key}", operation_id = "show_lane", tag = "lanes",
    params(("name" = String, Path, description = "The throttle."), ("key" = String, Path, description = "The key, percent-encoded; `-` stands for jobs without a key, and a key of only minuses, or of one or two dots and minuses, gets one more.")),
    responses((status = 200, body = LaneDetail)))]
pub async fn show(
    State(state): State<Arc<ThrottlesState>>,
    Path((name, key)): Path<(String, String)>,
) -> Result<Json<LaneDetail>, Problem> {
    let (name, key) = (name_of(name)?, key_of(key)?);
    Ok(Json(lane(&state, &name, &key).await?))
}

/// Sets the weight of a lane.
#[utoipa::path(patch, path = "/api/v1/throttles/{name}/keys/{key}", operation_id = "edit_lane", tag = "lanes",
    params(("name" = String, Path, description = "The throttle."), ("key" = String, Path, description = "The key, percent-encoded; `-` stands for jobs without a key, and a key of only minuses, or of one or two dots and minuses, gets one more.")),
    request_body = LaneWeight,
    responses((status = 200, body = LaneDetail)))]
pub async fn weigh(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path((name, key)): Path<(String, String)>,
    request: Request,
) -> Result<Json<LaneDetail>, Problem> {
    let (name, key) = (name_of(name)?, key_of(key)?);
    let read = |fields: &mut ObjectReader<'_>| match fields.take("weight") {
        Some(value) => {
            let weight = fields.positive_of("weight", &value, WEIGHT_MAX, "")?;
            if weight < WEIGHT_MIN {
                fields.wrong(
                    "weight",
                    format!("must be a number from {WEIGHT_MIN} to {WEIGHT_MAX}, not {weight}"),
                );
            }
            Some(weight)
        }
        None => {
            fields.wrong(
                "weight",
                format!("is missing: it must be a number from {WEIGHT_MIN} to {WEIGHT_MAX}"),
            );
            None
        }
    };
    let (weight, signed) = signed(request, &caller, &["weight"], read).await?;
    let Some(weight) = weight else {
        return Err(Problem::new(
            Code::Internal,
            "a weight was neither read nor refused",
        ));
    };
    with_timeout(
        ROW_TIMEOUT,
        state.queue.set_weight(name.as_str(), &key, weight, &signed),
    )
    .await?;
    Ok(Json(lane(&state, &name, &key).await?))
}

/// Empties a lane: cancels its waiting jobs, a bounded number at a time; running ones continue.
#[utoipa::path(delete, path = "/api/v1/throttles/{name}/keys/{key}/jobs", operation_id = "purge_lane", tag = "lanes",
    params(
        ("name" = String, Path, description = "The throttle."),
        ("key" = String, Path, description = "The key, percent-encoded; `-` stands for jobs without a key, and a key of only minuses, or of one or two dots and minuses, gets one more."),
        ("limit" = Option<i64>, Query, description = "The maximum number of jobs in this request, 1 to 10,000; 1000 if absent."),
        ("dry_run" = Option<bool>, Query, description = "`true` changes nothing and only counts the jobs, up to 10,000."),
        ("start" = Option<String>, Query, description = "The cursor: `next` of the previous response."),
        ("by" = Option<String>, Query, description = "The author of the change, for the audit log."),
        ("why" = Option<String>, Query, description = "The reason for the change, for the audit log.")),
    responses((status = 200, body = BulkChange)))]
pub async fn purge(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path((name, key)): Path<(String, String)>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<BulkChange>, Problem> {
    let (name, key) = (name_of(name)?, key_of(key)?);
    let mut query = Query::open(pairs, &FIELDS);
    let walk = walk_of_query(&mut query);
    let signed = signed_of_query(&mut query, &caller);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let queue = &state.queue;
    count_or_change(
        walk.dry_run,
        queue.count_lane(name.as_str(), &key, &signed),
        queue.purge_lane(name.as_str(), &key, &walk, &signed),
    )
    .await
}

async fn lane(state: &ThrottlesState, name: &Name, key: &str) -> Result<LaneDetail, Problem> {
    let queue = &state.queue;
    let found = with_timeout(ROW_TIMEOUT, queue.lane_of(name.as_str(), key)).await?;
    let waiting = with_timeout(
        ROW_TIMEOUT,
        queue.count_lane(name.as_str(), key, &Attribution::default()),
    )
    .await?;
    let hold = list::holds(state, name, vec![key.to_owned()])
        .await
        .remove(0);
    let oldest_due_at = found.as_ref().and_then(|lane| lane.oldest_due_at);
    Ok(LaneDetail {
        throttle: name.to_string(),
        key: key.to_owned(),
        weight: found.as_ref().map_or(1.0, |lane| lane.weight),
        waiting,
        oldest_ready_s: oldest_due_at.map(|due| since_s(due, clock::now())),
        first_seen: found.map(|lane| lane.first_seen),
        paused: hold.paused,
        learned: hold.learned,
    })
}
