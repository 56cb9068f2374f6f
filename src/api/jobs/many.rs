//! Changes of many jobs at once: cancel the jobs of a filter, requeue or discard dead jobs.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::{Extension, Json};
use jiff::Timestamp;

use super::filters::{pattern_of_body, search_of_body};
use super::input::{KEY_BYTES_MAX, KIND_BYTES_MAX};
use super::state::JobsState;
use crate::api::http::caller::Caller;
use crate::api::http::fields::ObjectReader;
use crate::api::http::operate::{self, BulkChange, signed};
use crate::api::http::problem::Problem;

use crate::jobs::{CancelFilter, DeadFilter, State as JobState};
use crate::throttle::name::MAX_BYTES as THROTTLE_BYTES_MAX;

/// The states that can be cancelled, with their names.
pub(in crate::api) const LIVE: [(&str, JobState); 4] = [
    (JobState::Ready.as_str(), JobState::Ready),
    (JobState::Scheduled.as_str(), JobState::Scheduled),
    (JobState::Retryable.as_str(), JobState::Retryable),
    (JobState::Running.as_str(), JobState::Running),
];

/// The filters of jobs to cancel; at least one is required.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct CancelMany {
    /// Only jobs of this kind.
    kind: Option<String>,
    /// Only jobs of this throttle.
    throttle: Option<String>,
    /// Only jobs with this key; empty for jobs without one.
    key: Option<String>,
    /// Only `ready`, `scheduled`, `retryable` or `running` jobs; all of them if absent.
    state: Option<String>,
    /// Only jobs that were enqueued at this time or later.
    created_after: Option<Timestamp>,
    /// Only jobs that were enqueued before this time.
    created_before: Option<Timestamp>,
    /// Only jobs that failed before, with a last error that matches this pattern: `timeout%` begins
    /// with, `%timeout%` contains.
    error_like: Option<String>,
    /// Only jobs of this tenant; for operators.
    tenant: Option<String>,
    /// Only jobs of this group.
    group: Option<i64>,
    /// Only jobs of this trace: its id, or a whole `traceparent`.
    trace: Option<String>,
    /// Only jobs that hold or held this unique key.
    unique_key: Option<String>,
    /// Only jobs whose arguments contain this object.
    args: Option<serde_json::Map<String, serde_json::Value>>,
    /// Only jobs whose arguments fit this SQL/JSON path, such as `$.customer.id == 17`: comparisons
    /// of a path with a value, joined by `&&` and `||`.
    args_path: Option<String>,
    /// Only jobs that have all of these tags.
    tags: Option<Vec<String>>,
    /// The most jobs of this request, 1 to 10,000; 1000 if absent.
    limit: Option<i64>,
    /// `true` changes nothing and counts the jobs, up to 10,000.
    dry_run: Option<bool>,
    /// The position to continue from: `next` of the previous answer.
    start: Option<String>,
    /// The author of the change, for the audit log.
    by: Option<String>,
    /// The reason for the change, for the audit log.
    why: Option<String>,
}

/// The filters of dead jobs to requeue or discard; at least one is required.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct DeadMany {
    /// Only jobs of this kind.
    kind: Option<String>,
    /// Only jobs of this throttle.
    throttle: Option<String>,
    /// Only jobs with this key; empty for jobs without one.
    key: Option<String>,
    /// Only jobs whose error matches this pattern: `timeout%` begins with, `%timeout%` contains;
    /// `%` is any error.
    error_like: Option<String>,
    /// Only jobs that died at this time or later.
    died_after: Option<Timestamp>,
    /// Only jobs that died before this time.
    died_before: Option<Timestamp>,
    /// Only jobs of this tenant; for operators.
    tenant: Option<String>,
    /// Only jobs of this group.
    group: Option<i64>,
    /// Only jobs of this trace: its id, or a whole `traceparent`.
    trace: Option<String>,
    /// Only jobs that hold or held this unique key.
    unique_key: Option<String>,
    /// Only jobs whose arguments contain this object.
    args: Option<serde_json::Map<String, serde_json::Value>>,
    /// Only jobs whose arguments fit this SQL/JSON path, such as `$.customer.id == 17`: comparisons
    /// of a path with a value, joined by `&&` and `||`.
    args_path: Option<String>,
    /// Only jobs that have all of these tags.
    tags: Option<Vec<String>>,
    /// `true` keeps the count of used attempts; for requeueing only.
    keep_attempts: Option<bool>,
    /// The most jobs of this request, 1 to 10,000; 1000 if absent.
    limit: Option<i64>,
    /// `true` changes nothing and counts the jobs, up to 10,000.
    dry_run: Option<bool>,
    /// The position to continue from: `next` of the previous answer.
    start: Option<String>,
    /// The author of the change, for the audit log.
    by: Option<String>,
    /// The reason for the change, for the audit log.
    why: Option<String>,
}

/// Cancels the jobs that match a filter, a bounded number at a time.
#[utoipa::path(post, path = "/api/v1/jobs/cancel", operation_id = "cancel_jobs", tag = "jobs", request_body = CancelMany,
    responses((status = 200, body = BulkChange)))]
pub async fn cancel(
    State(state): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<BulkChange>, Problem> {
    let read = |fields: &mut ObjectReader<'_>| {
        need_one_of(fields, &CANCEL_FILTERS);
        let (kind, throttle, key) = place(fields);
        let live = fields.choice("state", &LIVE);
        let created_after = fields.time("created_after");
        let created_before = fields.time("created_before");
        in_order(
            fields,
            ("created_after", created_after),
            ("created_before", created_before),
        );
        let error_like = pattern_of_body(fields);
        let mut found = search_of_body(fields, &caller);
        state.fill_owners(&mut found.search, &caller);
        (
            CancelFilter {
                kind,
                throttle,
                key,
                state: live,
                created_after,
                created_before,
                tenant: found.tenant,
                group: found.group,
                error_like,
                search: found.search,
            },
            operate::walk(fields),
        )
    };
    let ((filter, walk), signed) = signed(
        request,
        &caller,
        &[&CANCEL_FILTERS[..], &["tenant"], &operate::FIELDS].concat(),
        read,
    )
    .await?;

    operate::count_or_change(
        walk.dry_run,
        state.queue.count_cancel_jobs(&filter, &signed),
        state.queue.cancel_jobs(&filter, &walk, &signed),
    )
    .await
}

/// Makes the dead jobs that match a filter ready again, a bounded number at a time.
#[utoipa::path(post, path = "/api/v1/dead/requeue", operation_id = "requeue_dead", tag = "jobs", request_body = DeadMany,
    responses((status = 200, body = BulkChange)))]
pub async fn requeue(
    State(state): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<BulkChange>, Problem> {
    let read = |fields: &mut ObjectReader<'_>| {
        (
            dead(fields, &state, &caller),
            fields.flag("keep_attempts").unwrap_or(false),
            operate::walk(fields),
        )
    };
    let allowed = [
        &DEAD_FILTERS[..],
        &["tenant", "keep_attempts"],
        &operate::FIELDS,
    ]
    .concat();
    let ((filter, keep, walk), signed) = signed(request, &caller, &allowed, read).await?;

    operate::count_or_change(
        walk.dry_run,
        state.queue.count_dead(&filter, &signed),
        state.queue.requeue_dead(&filter, keep, &walk, &signed),
    )
    .await
}

/// Discards the dead jobs that match a filter, a bounded number at a time.
#[utoipa::path(post, path = "/api/v1/dead/discard", operation_id = "discard_dead", tag = "jobs", request_body = DeadMany,
    responses((status = 200, body = BulkChange)))]
pub async fn discard(
    State(state): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<BulkChange>, Problem> {
    let read =
        |fields: &mut ObjectReader<'_>| (dead(fields, &state, &caller), operate::walk(fields));
    let ((filter, walk), signed) = signed(
        request,
        &caller,
        &[&DEAD_FILTERS[..], &["tenant"], &operate::FIELDS].concat(),
        read,
    )
    .await?;

    operate::count_or_change(
        walk.dry_run,
        state.queue.count_dead(&filter, &signed),
        state.queue.discard_dead(&filter, &walk, &signed),
    )
    .await
}

/// The filters of jobs to cancel, of which one is required.
pub(in crate::api) const CANCEL_FILTERS: [&str; 13] = [
    "kind",
    "throttle",
    "key",
    "state",
    "created_after",
    "created_before",
    "error_like",
    "group",
    "trace",
    "unique_key",
    "args",
    "args_path",
    "tags",
];

/// The filters of dead jobs, of which one is required.
pub(in crate::api) const DEAD_FILTERS: [&str; 12] = [
    "kind",
    "throttle",
    "key",
    "error_like",
    "died_after",
    "died_before",
    "group",
    "trace",
    "unique_key",
    "args",
    "args_path",
    "tags",
];

fn dead(fields: &mut ObjectReader<'_>, state: &JobsState, caller: &Caller) -> DeadFilter {
    need_one_of(fields, &DEAD_FILTERS);
    let (kind, throttle, key) = place(fields);
    let error_like = pattern_of_body(fields);
    let died_after = fields.time("died_after");
    let died_before = fields.time("died_before");
    in_order(
        fields,
        ("died_after", died_after),
        ("died_before", died_before),
    );
    let mut found = search_of_body(fields, caller);
    state.fill_owners(&mut found.search, caller);
    DeadFilter {
        kind,
        throttle,
        key,
        error_like,
        died_after,
        died_before,
        tenant: found.tenant,
        group: found.group,
        search: found.search,
    }
}

fn place(fields: &mut ObjectReader<'_>) -> (Option<String>, Option<String>, Option<String>) {
    let kind = fields.text_or_null("kind", 1..=KIND_BYTES_MAX);
    let throttle = fields.text_or_null("throttle", 1..=THROTTLE_BYTES_MAX);
    (
        kind,
        throttle,
        fields.text_or_null("key", 0..=KEY_BYTES_MAX),
    )
}

/// Requires one of the filters, because a change without any would apply to all jobs.
fn need_one_of(fields: &mut ObjectReader<'_>, names: &[&str]) {
    if !names.iter().any(|name| fields.has(name)) {
        fields.wrong_whole(format!(
            "no filter is given; set at least one of {}",
            names.join(", ")
        ));
    }
}

fn in_order(
    fields: &mut ObjectReader<'_>,
    low: (&str, Option<Timestamp>),
    high: (&str, Option<Timestamp>),
) {
    if let (Some(from), Some(to)) = (low.1, high.1)
        && from >= to
    {
        fields.wrong(low.0, format!("{from} is not before {}, {to}", high.0));
    }
}
