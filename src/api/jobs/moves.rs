//! Manual changes of one job: cancel, retry, reschedule, discard.

use std::sync::Arc;

use axum::extract::{Path, Query as Pairs, Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use jiff::Timestamp;

use super::show::{JobView, found, id_of, view};
use super::state::JobsState;
use crate::api::http::caller::Caller;
use crate::api::http::operate::{Reason, signed, signed_query};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::jobs::{CancelAnswer, MoveAnswer, RetryAnswer, State as JobState};

/// The body of a retry.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct Retry {
    /// `true` keeps the count of used attempts of a dead job: it gets the attempts that are left,
    /// and one if none is.
    keep_attempts: Option<bool>,
    /// The author of the change, for the audit log.
    by: Option<String>,
    /// The reason for the change, for the audit log.
    why: Option<String>,
}

/// The body of a change of a job's time.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct Reschedule {
    /// The earliest time at which the job may run.
    run_at: Timestamp,
    /// The author of the change, for the audit log.
    by: Option<String>,
    /// The reason for the change, for the audit log.
    why: Option<String>,
}

/// Cancels a job: a waiting one at once, a running one as soon as its handler stops.
#[utoipa::path(delete, path = "/api/v1/jobs/{id}", operation_id = "cancel_job", tag = "jobs",
    params(
        ("id" = i64, Path, description = "Its number."),
        ("by" = Option<String>, Query, description = "The author of the change, for the audit log."),
        ("why" = Option<String>, Query, description = "The reason for the change, for the audit log.")),
    responses(
        (status = 200, body = JobView, description = "The job was cancelled."),
        (status = 202, body = JobView, description = "The job is running; its handler was asked to \
                                                      stop.")))]
pub async fn cancel(
    State(state): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Problem> {
    let id = id_of(&id)?;
    let signed = signed_query(pairs, &caller)?;
    let status = match with_timeout(ROW_TIMEOUT, state.queue.cancel_signed(id, &signed)).await? {
        CancelAnswer::Cancelled | CancelAnswer::Ended(JobState::Cancelled) => StatusCode::OK,
        CancelAnswer::Requested => StatusCode::ACCEPTED,
        CancelAnswer::Ended(state) => {
            return Err(Problem::new(
                Code::WrongState,
                format!(
                    "job {id} is already {}, so it cannot be cancelled",
                    state.as_str()
                ),
            ));
        }
        CancelAnswer::NotFound => return Err(Problem::job_not_found(id)),
    };
    Ok((status, Json(shown(&state, &caller, id).await?)))
}

/// Makes a dead, retryable or scheduled job ready now.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/retry", operation_id = "retry_job", tag = "jobs",
    params(("id" = i64, Path, description = "Its number.")),
    request_body = Retry,
    responses((status = 200, body = JobView)))]
pub async fn retry(
    State(state): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<JobView>, Problem> {
    let id = id_of(&id)?;
    let read = |fields: &mut crate::api::http::fields::ObjectReader<'_>| {
        fields.flag("keep_attempts").unwrap_or(false)
    };
    let (keep, signed) = signed(request, &caller, &["keep_attempts"], read).await?;
    match with_timeout(ROW_TIMEOUT, state.queue.retry_signed(id, keep, &signed)).await? {
        RetryAnswer::Ready => Ok(Json(shown(&state, &caller, id).await?)),
        RetryAnswer::Refused(state) => {
            let detail = format!(
                "job {id} is {}; only dead, retryable and scheduled jobs can be retried",
                state.as_str()
            );
            Err(Problem::new(Code::WrongState, detail))
        }
        RetryAnswer::NotFound => Err(Problem::job_not_found(id)),
    }
}

/// Postpones a waiting job to a time, replacing the earlier reason for waiting.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/reschedule", operation_id = "reschedule_job", tag = "jobs",
    params(("id" = i64, Path, description = "Its number.")),
    request_body = Reschedule,
    responses((status = 200, body = JobView)))]
pub async fn reschedule(
    State(state): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<JobView>, Problem> {
    let id = id_of(&id)?;
    let read = |fields: &mut crate::api::http::fields::ObjectReader<'_>| {
        let run_at = fields.take("run_at");
        match run_at {
            None => {
                fields.wrong(
                    "run_at",
                    format!("is missing: it must be {}", crate::api::http::fields::TIME),
                );
                None
            }
            Some(value) => super::input::run_at(fields, &value),
        }
    };
    let (run_at, signed) = signed(request, &caller, &["run_at"], read).await?;
    let Some(run_at) = run_at else {
        return Err(Problem::new(
            Code::Internal,
            "a time was neither read nor refused",
        ));
    };
    let answer = with_timeout(ROW_TIMEOUT, state.queue.reschedule(id, run_at, &signed)).await?;
    let rule = "only scheduled, ready and retryable jobs can be rescheduled";
    after_move(&state, &caller, id, answer, rule).await
}

/// Discards a dead job: it ends as cancelled.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/discard", operation_id = "discard_job", tag = "jobs",
    params(("id" = i64, Path, description = "Its number.")),
    request_body = Reason,
    responses((status = 200, body = JobView)))]
pub async fn discard(
    State(state): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<JobView>, Problem> {
    let id = id_of(&id)?;
    let ((), signed) = signed(request, &caller, &[], |_| ()).await?;
    let answer = with_timeout(ROW_TIMEOUT, state.queue.discard(id, &signed)).await?;
    after_move(
        &state,
        &caller,
        id,
        answer,
        "only dead jobs can be discarded",
    )
    .await
}

/// Shows the job after a move, or refuses one that its state does not allow; `rule` names the
/// states that do.
pub(super) async fn after_move(
    state: &JobsState,
    caller: &Caller,
    id: i64,
    answer: MoveAnswer,
    rule: &str,
) -> Result<Json<JobView>, Problem> {
    match answer {
        MoveAnswer::Moved => Ok(Json(shown(state, caller, id).await?)),
        MoveAnswer::Refused(current) => Err(Problem::new(
            Code::WrongState,
            format!("job {id} is {}; {rule}", current.as_str()),
        )),
        MoveAnswer::NotFound => Err(Problem::job_not_found(id)),
    }
}

/// Returns the job as it is after a change.
async fn shown(state: &JobsState, caller: &Caller, id: i64) -> Result<JobView, Problem> {
    Ok(view(state, caller, found(state, caller, id).await?).await)
}
