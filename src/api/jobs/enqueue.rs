//! Enqueueing of jobs.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;
use serde_json::Value;

use super::input::{self, KnownKinds};
use super::permissions;
use super::redact::mask_args;
use super::state::JobsState;
use crate::admission::{Acceptance, Digests};
use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::fields::FieldLocation;
use crate::api::http::link::encoded;
use crate::api::http::metrics::BacklogAnswer;
use crate::api::http::problem::{Code, LANE_FULL_RETRY_S, Problem};
use crate::api::http::timeout::{LIST_TIMEOUT, ROW_TIMEOUT, with_timeout};
use crate::api::http::token_scope::TokenScope;
use crate::api::notifications::accept::{refused_repeat, typed};
use crate::api::notifications::repeat::{KEY, digests};
use crate::api::{clock, postgres};
use crate::jobs::{Backlog, Enqueued, JobDetail, NewJob, OnceAnswer, State as JobState, Summary};
use crate::notify::recipient::KIND;
use crate::throttle::{Name, no_throttle_of_job};

/// The most throttles of a batch that are read for its warnings.
const WARNED_THROTTLES_MAX: usize = 100;

/// A job that was enqueued, or the one that already holds its unique key.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Accepted {
    /// The job.
    #[serde(flatten)]
    job: JobDetail,
    /// True if no new job was created.
    duplicate: bool,
    /// True if the waiting job was replaced by this request.
    replaced: bool,
    /// The ready jobs of the lane, if they are more than the throttle's `max_backlog`: a sign to
    /// send less.
    backlog: Option<Backlog>,
    /// Warnings for the sender, for example that the throttle does not exist yet.
    warnings: Vec<String>,
}

/// A batch that was enqueued.
#[derive(Serialize, utoipa::ToSchema)]
pub struct AcceptedBatch {
    /// The jobs, in the order of the request.
    jobs: Vec<EnqueuedJob>,
    /// Warnings for the sender.
    warnings: Vec<String>,
}

/// One job of a batch.
#[derive(Serialize, utoipa::ToSchema)]
pub struct EnqueuedJob {
    /// The new job, or the one that already holds the unique key.
    id: i64,
    /// True if no new job was created.
    duplicate: bool,
    /// True if the waiting job was replaced by this request.
    replaced: bool,
    /// The ready jobs of the lane, if they are more than the throttle's `max_backlog`: a sign to
    /// send less.
    backlog: Option<Backlog>,
}

/// Enqueues a job.
#[utoipa::path(post, path = "/api/v1/jobs", operation_id = "enqueue_job", tag = "jobs", request_body = NewJob,
    responses(
        (status = 201, body = Accepted, description = "The job was enqueued.", headers(("Location" = String, description = "The job."))),
        (status = 200, body = Accepted, description = "Its unique key is taken, and this is the job that holds it; or the request repeats an earlier one, and this is its job.")))]
pub async fn enqueue(
    State(state): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let trace = traceparent(request.headers());
    let headers = request.headers().clone();
    let value = body::json(request, body::ONE_BYTES_MAX).await?;
    // Without a key each job is one of its own.
    let keyed = match headers.contains_key(KEY) {
        true => {
            let sender = (
                caller.tenant.as_deref().unwrap_or_default(),
                &*caller.module,
            );
            Some(digests(&headers, sender, "enqueue_job", &value, false)?)
        }
        false => None,
    };
    let elsewhere = kinds_elsewhere(&state, &value).await?;
    let known = KnownKinds {
        here: &state.kinds,
        elsewhere: &elsewhere,
    };
    let mut job =
        input::one(value, &known).map_err(|errors| Problem::fields(Code::InvalidFields, errors))?;
    if keyed.is_some() && job.kind == KIND {
        let what = "for jobs of the kind notification";
        return Err(refused_key(what, "give each job a unique_key"));
    }
    job.traceparent = job.traceparent.or(trace);
    permissions::check(&state, &caller, std::slice::from_ref(&job), false).await?;
    let mut warnings = warnings(&state, std::iter::once(job.throttle.as_str())).await;

    let (mut ticket, is_replayed) = match &keyed {
        Some(digests) => enqueue_once(&state, &caller, &job, digests).await?,
        None => (enqueue_one(&state, &caller, &job).await?, false),
    };
    warnings.extend(hide_backlog(&caller, &job.throttle, &mut ticket));
    let status = if ticket.duplicate {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    let location = format!("/api/v1/jobs/{}", ticket.id);
    // The job is stored, even if this read fails.
    let read = state.queue.get_of(ticket.id, caller.tenant.as_deref());
    let found = with_timeout(ROW_TIMEOUT, read).await;
    if let (true, Ok(None)) = (is_replayed, &found) {
        let detail = format!(
            "job {} was enqueued before and is no longer stored",
            ticket.id
        );
        return Err(Problem::new(Code::JobNotFound, detail));
    }
    let found = found.ok().flatten();
    let tenant = caller.tenant.as_deref().unwrap_or_default();
    // The existing job may belong to another client of the same tenant.
    let is_hidden = ticket.duplicate && !caller.leave.has(TokenScope::JobsRead);
    let mut job = match found {
        Some(found) if !is_hidden => found,
        found => {
            let mut sent = as_sent(job, ticket.id, tenant);
            if let Some(JobDetail { summary, .. }) = found {
                sent.summary.kind = summary.kind;
                sent.summary.state = summary.state;
                sent.summary.created_at = summary.created_at;
            }
            sent
        }
    };
    mask_args(&job.summary.kind, &mut job.args);
    if is_hidden && !ticket.replaced {
        job.args = Value::Null;
        job.on_complete = None;
        job.on_dead = None;
        job.webhook_secret = None;
    }
    let Enqueued {
        duplicate,
        replaced,
        backlog,
        ..
    } = ticket;
    Ok((
        status,
        [(LOCATION, location)],
        is_replayed.then_some([("idempotent-replayed", "true")]),
        Json(Accepted {
            job,
            duplicate,
            replaced,
            backlog,
            warnings,
        }),
    ))
}

/// Enqueues up to 10,000 jobs, all or none.
#[utoipa::path(post, path = "/api/v1/jobs/batch", operation_id = "enqueue_jobs", tag = "jobs", request_body = Vec<NewJob>,
    responses(
        (status = 201, body = AcceptedBatch, description = "The jobs were enqueued."),
        (status = 200, body = AcceptedBatch, description = "No new job was made: every unique key is taken, or the array is empty.")))]
pub async fn enqueue_batch(
    State(state): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let trace = traceparent(request.headers());
    let has_key = request.headers().contains_key(KEY);
    let value = body::json(request, body::BATCH_BYTES_MAX).await?;
    let elsewhere = kinds_elsewhere(&state, &value).await?;
    let known = KnownKinds {
        here: &state.kinds,
        elsewhere: &elsewhere,
    };
    let mut jobs = input::batch(value, &known)
        .map_err(|errors| Problem::fields(Code::InvalidFields, errors))?;
    if has_key {
        return Err(refused_key("for a batch", "give each job a unique_key"));
    }
    for job in jobs.iter_mut().filter(|job| job.traceparent.is_none()) {
        job.traceparent.clone_from(&trace);
    }
    permissions::check(&state, &caller, &jobs, true).await?;
    let mut warnings = warnings(&state, jobs.iter().map(|job| job.throttle.as_str())).await;

    let mut enqueued = if jobs.is_empty() {
        Vec::new()
    } else {
        let enqueue = async {
            state
                .queue
                .enqueue_for(&caller.owner, &caller.module, &jobs)
                .await
                .map_err(|error| refused(&state, &caller, error, true))
        };
        with_timeout(LIST_TIMEOUT, enqueue).await?
    };
    note_backlogs(&state, &enqueued);
    let hidden: BTreeSet<String> = jobs
        .iter()
        .zip(&mut enqueued)
        .filter_map(|(job, ticket)| hide_backlog(&caller, &job.throttle, ticket))
        .collect();
    warnings.extend(hidden);

    let status = if enqueued.iter().all(|ticket| ticket.duplicate) {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    let ticket = |Enqueued {
                      id,
                      duplicate,
                      replaced,
                      backlog,
                  }| EnqueuedJob {
        id,
        duplicate,
        replaced,
        backlog,
    };
    let jobs = enqueued.into_iter().map(ticket).collect();
    Ok((status, Json(AcceptedBatch { jobs, warnings })))
}

/// Enqueues one job.
pub(in crate::api) async fn enqueue_one(
    state: &JobsState,
    caller: &Caller,
    job: &NewJob,
) -> Result<Enqueued, Problem> {
    let work = async {
        let enqueued = state
            .queue
            .enqueue_for(&caller.owner, &caller.module, std::slice::from_ref(job))
            .await;
        enqueued.map_err(|error| refused(state, caller, error, false))
    };
    let enqueued = with_timeout(ROW_TIMEOUT, work).await?;
    note_backlogs(state, &enqueued);
    enqueued
        .into_iter()
        .next()
        .ok_or_else(|| Problem::new(Code::Internal, "the queue store answered without a job"))
}

/// Enqueues one job for a request with an idempotency key; returns true with the job of the first
/// request if this one repeats it.
async fn enqueue_once(
    state: &JobsState,
    caller: &Caller,
    job: &NewJob,
    digests: &Digests,
) -> Result<(Enqueued, bool), Problem> {
    let request = digests.request.as_deref().unwrap_or_default();
    let work = async {
        let sender = (&*caller.owner, &*caller.module);
        let digests = (request, digests.body.as_slice());
        let answer = state.queue.enqueue_once(sender, job, digests).await;
        answer.map_err(|error| refused(state, caller, error, false))
    };
    match with_timeout(ROW_TIMEOUT, work).await? {
        OnceAnswer::Enqueued(ticket) => {
            note_backlogs(state, &[ticket]);
            Ok((ticket, false))
        }
        OnceAnswer::Replayed(id) => {
            let ticket = Enqueued {
                id,
                duplicate: true,
                replaced: false,
                backlog: None,
            };
            Ok((ticket, true))
        }
        OnceAnswer::Running => Err(refused_repeat(&Acceptance::Running)),
        OnceAnswer::Conflict => Err(refused_repeat(&Acceptance::Conflict)),
    }
}

/// Returns the refusal of an idempotency key where it would protect nothing.
pub(in crate::api) fn refused_key(what: &str, instead: &str) -> Problem {
    Problem::at(
        Code::InvalidHeader,
        FieldLocation::Header,
        "Idempotency-Key",
        format!(
            "must be left out {what}: {instead}; POST /api/v1/jobs takes the header for one job of \
             another kind, and /api/v1/notifications for messages"
        ),
    )
}

/// Returns the sender's trace. An invalid header does not refuse the job: a new trace begins
/// instead.
pub(in crate::api) fn traceparent(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(crate::trace::parent::HEADER)?.to_str().ok()?;
    NewJob::is_traceparent(text).then(|| text.to_owned())
}

/// Converts a refusal of the queue to a problem, and counts full lanes.
pub(in crate::api) fn refused(
    state: &JobsState,
    caller: &Caller,
    error: crate::jobs::Error,
    batch: bool,
) -> Problem {
    let crate::jobs::Error::Full { throttle, key, .. } = &error else {
        return typed(&state.problem_types, Problem::from_queue(error, batch));
    };
    state.metrics.note_backlog(BacklogAnswer::Rejected, 1);
    if caller.sees(throttle) {
        return Problem::from_queue(error, batch);
    }
    let detail = format!(
        "throttle {throttle:?}, key {key:?}: its lane is full; nothing was enqueued: try again when \
         some of its jobs have run"
    );
    Problem::new(Code::LaneFull, detail).retry_after(LANE_FULL_RETRY_S)
}

/// Replaces the depth of a lane by a warning, if the lane may hold jobs of other tenants.
fn hide_backlog(caller: &Caller, throttle: &str, ticket: &mut Enqueued) -> Option<String> {
    if caller.sees(throttle) {
        return None;
    }
    ticket.backlog.take().map(|_| {
        format!("a lane of throttle {throttle} holds more jobs than its knob max_backlog allows; send less")
    })
}

/// Counts the jobs that were accepted although their lane was above its limit.
fn note_backlogs(state: &JobsState, enqueued: &[Enqueued]) {
    let over = enqueued
        .iter()
        .filter(|ticket| ticket.backlog.is_some())
        .count();
    state
        .metrics
        .note_backlog(BacklogAnswer::Signalled, over as u64);
}

/// Returns the kinds that other processes run, if the request names a kind that this process does
/// not know. An error of the store is an error of the request, because the kind cannot be called
/// wrong then.
pub(in crate::api) async fn kinds_elsewhere(
    state: &JobsState,
    body: &Value,
) -> Result<Vec<String>, Problem> {
    if input::kinds_named(body).all(|kind| state.kinds.get(kind).is_some()) {
        return Ok(Vec::new());
    }
    with_timeout(ROW_TIMEOUT, postgres::read_kinds(&state.queue.pool)).await
}

/// Returns warnings about the named throttles. A store that does not answer causes no warning: the
/// jobs are in Postgres even if Redis fails.
pub(in crate::api) async fn warnings<'a>(
    state: &JobsState,
    throttles: impl Iterator<Item = &'a str>,
) -> Vec<String> {
    let distinct: BTreeSet<&str> = throttles.collect();
    let mut warnings = Vec::new();
    for name in distinct
        .into_iter()
        .take(WARNED_THROTTLES_MAX)
        .filter_map(|name| Name::new(name).ok())
    {
        match state.throttles.status(&name).await {
            Ok(None) => {}
            Ok(Some(_)) => continue,
            Err(_) => break,
        }
        let made_max = state.throttles_created_max;
        let pattern = state.listing.pattern_of(&*state.throttles, &name, made_max);
        match pattern.await {
            Ok(None) => {
                let how = format!(
                    "; the job is kept and waits until an operator creates it: flyball throttle set {name} rps=10, or PATCH /api/v1/throttles/{}?create=true",
                    encoded(name.as_str())
                );
                warnings.push(no_throttle_of_job(name.as_str(), &how));
            }
            // The job makes it when it asks for tokens.
            Ok(Some(_)) => {}
            Err(_) => break,
        }
    }
    warnings
}

/// Returns the job as its sender described it, for a job that was stored and could not be read
/// back.
fn as_sent(job: NewJob, id: i64, tenant: &str) -> JobDetail {
    let now = clock::now();
    let due_at = job.run_at.filter(|at| *at > now);
    JobDetail {
        summary: Summary {
            id,
            kind: job.kind,
            throttle: job.throttle,
            key: job.key,
            tenant: tenant.to_owned(),
            state: if due_at.is_some() {
                JobState::Scheduled
            } else {
                JobState::Ready
            },
            priority: job.priority,
            attempt: 0,
            max_attempts: job.max_attempts,
            cost: job.cost,
            created_at: now,
            due_at,
            ended_at: None,
            last_error: None,
            group: job.group,
            tags: job.tags,
        },
        args: job.args,
        unique: job.unique_key.is_some(),
        attempts: Vec::new(),
        worker: None,
        heartbeat_at: None,
        heartbeat_age_s: None,
        started_at: None,
        timeout_s: job.timeout_s,
        traceparent: job.traceparent,
        cancelling: false,
        progress: None,
        after: job.after,
        after_failure: job.after_failure,
        waits_for: Vec::new(),
        on_complete: job.on_complete,
        on_dead: job.on_dead,
        webhook_secret: job.webhook_secret,
        retry: job.retry,
        result: None,
    }
}
