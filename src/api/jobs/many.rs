//! Changes of many jobs at once: cancel the jobs of a filter, requeue or discard dead jobs.

use axum::extract::{Request, State};
use axum::{Extension, Json};
use jiff::Timestamp;

use super::input::{KEY_BYTES_MAX, KIND_BYTES_MAX};
use crate::api::http::caller::Caller;
use crate::api::http::fields::ObjectReader;
use crate::api::http::operate::{self, BulkChange, signed};
use crate::api::http::problem::Problem;

use crate::jobs::{CancelFilter, DeadFilter, Queue, State as JobState};
use crate::throttle::name::MAX_BYTES as THROTTLE_BYTES_MAX;

/// The states that can be cancelled, with their names.
pub(in crate::api) const LIVE: [(&str, JobState); 4] = [
    (JobState::Ready.as_str(), JobState::Ready),
    (JobState::Scheduled.as_str(), JobState::Scheduled),
    (JobState::Retryable.as_str(), JobState::Retryable),
    (JobState::Running.as_str(), JobState::Running),
];
/// The longest pattern, in bytes.
pub(in crate::api) const PATTERN_BYTES_MAX: usize = 500;
/// The most `%` of a pattern, because each multiplies the time that a match may take.
pub(in crate::api) const PATTERN_WILDCARDS_MAX: usize = 5;

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
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<BulkChange>, Problem> {
    const FILTERS: [&str; 6] = [
        "kind",
        "throttle",
        "key",
        "state",
        "created_after",
        "created_before",
    ];
    let read = |fields: &mut ObjectReader<'_>| {
        need_one_of(fields, &FILTERS);
        let (kind, throttle, key) = place(fields);
        let state = fields.choice("state", &LIVE);
        let created_after = fields.time("created_after");
        let created_before = fields.time("created_before");
        in_order(
            fields,
            ("created_after", created_after),
            ("created_before", created_before),
        );
        (
            CancelFilter {
                kind,
                throttle,
                key,
                state,
                created_after,
                created_before,
            },
            operate::walk(fields),
        )
    };
    let ((filter, walk), signed) = signed(
        request,
        &caller,
        &[&FILTERS[..], &operate::FIELDS].concat(),
        read,
    )
    .await?;

    operate::count_or_change(
        walk.dry_run,
        queue.count_cancel_jobs(&filter, &signed),
        queue.cancel_jobs(&filter, &walk, &signed),
    )
    .await
}

/// Makes the dead jobs that match a filter ready again, a bounded number at a time.
#[utoipa::path(post, path = "/api/v1/dead/requeue", operation_id = "requeue_dead", tag = "jobs", request_body = DeadMany,
    responses((status = 200, body = BulkChange)))]
pub async fn requeue(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<BulkChange>, Problem> {
    let read = |fields: &mut ObjectReader<'_>| {
        (
            dead(fields),
            fields.flag("keep_attempts").unwrap_or(false),
            operate::walk(fields),
        )
    };
    let allowed = [&DEAD_FILTERS[..], &["keep_attempts"], &operate::FIELDS].concat();
    let ((filter, keep, walk), signed) = signed(request, &caller, &allowed, read).await?;

    operate::count_or_change(
        walk.dry_run,
        queue.count_dead(&filter, &signed),
        queue.requeue_dead(&filter, keep, &walk, &signed),
    )
    .await
}

/// Discards the dead jobs that match a filter, a bounded number at a time.
#[utoipa::path(post, path = "/api/v1/dead/discard", operation_id = "discard_dead", tag = "jobs", request_body = DeadMany,
    responses((status = 200, body = BulkChange)))]
pub async fn discard(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<BulkChange>, Problem> {
    let read = |fields: &mut ObjectReader<'_>| (dead(fields), operate::walk(fields));
    let ((filter, walk), signed) = signed(
        request,
        &caller,
        &[&DEAD_FILTERS[..], &operate::FIELDS].concat(),
        read,
    )
    .await?;

    operate::count_or_change(
        walk.dry_run,
        queue.count_dead(&filter, &signed),
        queue.discard_dead(&filter, &walk, &signed),
    )
    .await
}

/// The filters of dead jobs.
pub(in crate::api) const DEAD_FILTERS: [&str; 6] = [
    "kind",
    "throttle",
    "key",
    "error_like",
    "died_after",
    "died_before",
];

fn dead(fields: &mut ObjectReader<'_>) -> DeadFilter {
    need_one_of(fields, &DEAD_FILTERS);
    let (kind, throttle, key) = place(fields);
    let error_like = fields.text_or_null("error_like", 1..=PATTERN_BYTES_MAX);
    if let Some(message) = error_like.as_deref().and_then(wrong_pattern) {
        fields.wrong("error_like", message);
    }
    let died_after = fields.time("died_after");
    let died_before = fields.time("died_before");
    in_order(
        fields,
        ("died_after", died_after),
        ("died_before", died_before),
    );
    DeadFilter {
        kind,
        throttle,
        key,
        error_like,
        died_after,
        died_before,
    }
}

/// Returns the error of a pattern that Postgres would refuse, or match too slowly.
fn wrong_pattern(pattern: &str) -> Option<String> {
    let trailing = pattern.chars().rev().take_while(|c| *c == '\\').count();
    if trailing % 2 == 1 {
        return Some(
            "the pattern ends with a lone backslash; write two for a backslash itself".to_owned(),
        );
    }
    let wildcards = pattern.matches('%').count();
    (wildcards > PATTERN_WILDCARDS_MAX)
        .then(|| format!("the pattern has {wildcards} %; allowed: at most {PATTERN_WILDCARDS_MAX}"))
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

#[cfg(test)]
mod tests {
    use super::wrong_pattern;

    #[test]
    fn a_pattern_may_not_end_in_a_lone_backslash_nor_have_many_wildcards() {
        for good in ["%", "timeout%", "%a%b%c%", r"100\%", r"a\\"] {
            assert_eq!(wrong_pattern(good), None, "{good}");
        }
        for bad in [r"a\", r"a\\\", "%a%b%c%d%e%f"] {
            assert!(wrong_pattern(bad).is_some(), "{bad}");
        }
    }
}
