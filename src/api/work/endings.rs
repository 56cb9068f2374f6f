//! Ends of attempts in other programs.

use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::input::{self, Workers, required, stored_value};
use crate::api::clock;
use crate::api::http::caller::Caller;
use crate::api::http::fields::{ObjectReader, seconds};
use crate::api::http::problem::Problem;
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::jobs::input::SPAN_MAX_S;
use crate::jobs::remote::{PresentedLease, RemoteEnd};
use crate::jobs::{Outcome, Scope, State as JobState};
use crate::throttle::MAX_PAUSE;

/// The longest error, in bytes.
pub(in crate::api) const ERROR_BYTES_MAX: usize = 4000;

/// The longest time for which a result is kept, in seconds.
pub(in crate::api) const KEEP_S_MAX: f64 = 30.0 * 86_400.0;

/// The time for which a result is kept if the worker names none, in seconds.
const KEEP_S: f64 = 86_400.0;

/// The completion of a job.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct Completion {
    /// The lease of the job.
    lease: String,
    /// A result of up to 64 KiB, shown with the job.
    result: Option<Value>,
    /// Seconds for which the result is kept, up to 30 days; one day if absent.
    keep_s: Option<f64>,
    /// The real cost, in tokens.
    cost: Option<f64>,
}

/// The failure of an attempt.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct Failure {
    /// The lease of the job.
    lease: String,
    /// The error, without secrets, shown to operators.
    error: String,
    /// `false` if the job can never succeed: it is dead at once. Otherwise it is tried again as its
    /// kind and its `max_attempts` say.
    retry: Option<bool>,
    /// Seconds until the next attempt, in place of the usual back-off.
    retry_after_s: Option<f64>,
    /// The real cost, in tokens.
    cost: Option<f64>,
}

/// A job that is to run later.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct Snooze {
    /// The lease of the job.
    lease: String,
    /// Seconds until the job runs again; this or `until`.
    for_s: Option<f64>,
    /// The time from which the job runs again; this or `for_s`.
    until: Option<Timestamp>,
    /// The real cost, in tokens.
    cost: Option<f64>,
}

/// A refusal by the receiver of a job.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct Refusal {
    /// The lease of the job.
    lease: String,
    /// Seconds that the receiver asked to wait; by the throttle's own rules if absent.
    retry_after_s: Option<f64>,
    /// The jobs that must wait: those of the same `key` (if absent), of the whole `throttle`, or
    /// all of the `account` above it.
    scope: Option<String>,
    /// True if the receiver sheds load from all its callers, so that the refusal says nothing about
    /// the rate.
    overloaded: Option<bool>,
    /// The answer of the receiver, shown to operators.
    error: Option<String>,
    /// The real cost, in tokens.
    cost: Option<f64>,
}

/// A job that a worker gives back.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct GivenBack {
    /// The lease of the job.
    lease: String,
    /// The real cost, in tokens.
    cost: Option<f64>,
}

/// A job whose attempt has ended.
#[derive(Serialize, utoipa::ToSchema)]
pub struct EndedJob {
    /// The number of the job.
    id: i64,
    /// The state of the job now.
    state: JobState,
}

/// Completes a job, and keeps its result for a time.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/complete", operation_id = "complete_job", tag = "workers",
    params(("id" = i64, Path, description = "The number of the job.")),
    request_body = Completion,
    responses((status = 200, body = EndedJob)))]
pub async fn complete(
    State(workers): State<Workers>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<EndedJob>, Problem> {
    let fields = |reader: &mut ObjectReader<'_>| {
        let kept = seconds(reader, "keep_s", 0.0..=KEEP_S_MAX);
        let kept = kept.unwrap_or(Duration::from_secs_f64(KEEP_S));
        stored_value(reader, "result").map(|result| (result, kept))
    };
    let (lease, cost, result) =
        input::read(&id, &caller, request, &["result", "keep_s"], fields).await?;
    let end = RemoteEnd {
        outcome: Outcome::Done,
        result,
        cost,
    };
    ended(&workers, lease, end).await
}

/// Fails an attempt: the job is tried again, or is dead if this was its last attempt.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/fail", operation_id = "fail_job", tag = "workers",
    params(("id" = i64, Path, description = "The number of the job.")),
    request_body = Failure,
    responses((status = 200, body = EndedJob)))]
pub async fn fail(
    State(workers): State<Workers>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<EndedJob>, Problem> {
    let fields = |reader: &mut ObjectReader<'_>| {
        let error = required(
            reader,
            "error",
            1..=ERROR_BYTES_MAX,
            "the reason of the failure",
        );
        let error = error.unwrap_or_default();
        let after = seconds(reader, "retry_after_s", 0.0..=SPAN_MAX_S);
        match reader.flag("retry") {
            Some(false) => Outcome::Dead { error },
            _ => Outcome::Retry { after, error },
        }
    };
    let allowed = ["error", "retry", "retry_after_s"];
    let (lease, cost, outcome) = input::read(&id, &caller, request, &allowed, fields).await?;
    ended(&workers, lease, without_result(outcome, cost)).await
}

/// Puts a job off to a later time, without using an attempt.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/snooze", operation_id = "snooze_job", tag = "workers",
    params(("id" = i64, Path, description = "The number of the job.")),
    request_body = Snooze,
    responses((status = 200, body = EndedJob)))]
pub async fn snooze(
    State(workers): State<Workers>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<EndedJob>, Problem> {
    let fields = |reader: &mut ObjectReader<'_>| {
        let (has_span, has_time) = (reader.has("for_s"), reader.has("until"));
        if has_span == has_time {
            reader.wrong_whole("must have exactly one of the fields for_s and until");
        }
        let span = seconds(reader, "for_s", 0.0..=SPAN_MAX_S);
        let until = reader.time("until");
        let wait = until.map(|until| {
            Duration::try_from(until.duration_since(clock::now())).unwrap_or_default()
        });
        span.or(wait).unwrap_or_default()
    };
    let (lease, cost, delay) =
        input::read(&id, &caller, request, &["for_s", "until"], fields).await?;
    ended(
        &workers,
        lease,
        without_result(Outcome::Snooze { delay }, cost),
    )
    .await
}

/// Reports that the receiver asked to slow down: the throttle pauses what it concerns, for all
/// workers, and the job is ready again without using an attempt.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/throttled", operation_id = "throttle_job", tag = "workers",
    params(("id" = i64, Path, description = "The number of the job.")),
    request_body = Refusal,
    responses((status = 200, body = EndedJob)))]
pub async fn throttled(
    State(workers): State<Workers>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<EndedJob>, Problem> {
    let fields = |reader: &mut ObjectReader<'_>| {
        let delay = seconds(reader, "retry_after_s", 0.0..=MAX_PAUSE.as_secs_f64());
        let scope = reader.choice("scope", &Scope::WORDS).unwrap_or_default();
        let is_overload = reader.flag("overloaded").unwrap_or(false);
        let error = reader.text("error", 0..=ERROR_BYTES_MAX);
        let error = error.unwrap_or_else(|| "the receiver asked to slow down".to_owned());
        match is_overload {
            true => Outcome::Overloaded {
                scope,
                delay,
                error,
            },
            false => Outcome::Throttled {
                scope,
                delay,
                error,
            },
        }
    };
    let allowed = ["retry_after_s", "scope", "overloaded", "error"];
    let (lease, cost, outcome) = input::read(&id, &caller, request, &allowed, fields).await?;
    ended(&workers, lease, without_result(outcome, cost)).await
}

/// Gives a job back unfinished: it is ready again, without using an attempt.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/release", operation_id = "release_job", tag = "workers",
    params(("id" = i64, Path, description = "The number of the job.")),
    request_body = GivenBack,
    responses((status = 200, body = EndedJob)))]
pub async fn release(
    State(workers): State<Workers>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<EndedJob>, Problem> {
    let (lease, cost, ()) = input::read(&id, &caller, request, &[], |_| ()).await?;
    ended(&workers, lease, without_result(Outcome::HandedBack, cost)).await
}

fn without_result(outcome: Outcome, cost: Option<f64>) -> RemoteEnd {
    RemoteEnd {
        outcome,
        result: None,
        cost,
    }
}

async fn ended(
    workers: &Workers,
    lease: PresentedLease,
    end: RemoteEnd,
) -> Result<Json<EndedJob>, Problem> {
    let id = lease.job_id;
    let ended = async {
        let ended = workers.end(lease, end).await;
        ended.map_err(|error| input::problem(error, Some(id)))
    };
    let state = with_timeout(ROW_TIMEOUT, ended).await?;
    Ok(Json(EndedJob { id, state }))
}
