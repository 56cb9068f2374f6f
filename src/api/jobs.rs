//! Jobs: enqueue, search, show.

use std::collections::BTreeSet;

use axum::extract::{Path, Query as Pairs, Request, State};
use axum::http::header::{LINK, LOCATION};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;
use serde_json::Value;

use super::auth::Caller;
use super::fields::FieldLocation;
use super::jobs_input::{self, KEY_BYTES_MAX, KIND_BYTES_MAX, KnownKinds};
use super::metrics::BacklogAnswer;
use super::postgres;
use super::problem::{Code, Problem};
use super::query::{PAGE_MAX, Query};
use super::redact::mask_args;
use super::scopes::TokenScope;
use super::state::ApiState;
use super::timeout::{LIST_TIMEOUT, ROW_TIMEOUT, with_timeout};
use super::waiting::{self, WaitReason};
use super::{body, clock, permissions};
use crate::jobs::{
    Attempt, Backlog, Detail, Enqueued, JobFilter, NewJob, Queue, State as JobState, Summary,
};
use crate::throttle::{self, AcquireRequest, LaneRequest, Name, Store};

/// The most throttles of a batch that are read for its warnings.
const WARNED_THROTTLES_MAX: usize = 100;

/// The values of `state` in a search: a state, or all states in which a job has ended.
pub(super) const SEARCHED: [(&str, Searched); 8] = [
    ("scheduled", Searched::In(JobState::Scheduled)),
    ("ready", Searched::In(JobState::Ready)),
    ("running", Searched::In(JobState::Running)),
    ("retryable", Searched::In(JobState::Retryable)),
    ("completed", Searched::In(JobState::Completed)),
    ("cancelled", Searched::In(JobState::Cancelled)),
    ("dead", Searched::In(JobState::Dead)),
    ("ended", Searched::Ended),
];

/// The state that a search asks for.
#[derive(Clone, Copy)]
pub(super) enum Searched {
    In(JobState),
    Ended,
}

/// A job with the reason for its wait.
#[derive(Serialize, utoipa::ToSchema)]
pub struct JobView {
    /// The facts that the queue stores.
    #[serde(flatten)]
    detail: Detail,
    /// The reason for which the job does not run yet; `null` if it does not wait.
    waiting: Option<WaitReason>,
}

/// A job that was enqueued, or the one that already holds its unique key.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Accepted {
    /// The job.
    #[serde(flatten)]
    job: Detail,
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
    jobs: Vec<Ticket>,
    /// Warnings for the sender.
    warnings: Vec<String>,
}

/// One job of a batch.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Ticket {
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

/// A page of jobs.
#[derive(Serialize, utoipa::ToSchema)]
pub struct JobList {
    /// The jobs, newest first. A page may be short or empty although more follow.
    jobs: Vec<Summary>,
    /// The URL of the next page; also in the Link header. Absent at the end of the search.
    next: Option<String>,
}

/// Finished attempts of a job.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Attempts {
    /// The attempts, newest first.
    attempts: Vec<Attempt>,
    /// The URL of the next page.
    next: Option<String>,
}

/// Enqueues a job.
#[utoipa::path(post, path = "/api/v1/jobs", operation_id = "enqueue_job", tag = "jobs", request_body = NewJob,
    responses(
        (status = 201, body = Accepted, description = "The job was enqueued.", headers(("Location" = String, description = "The job."))),
        (status = 200, body = Accepted, description = "Its unique key is taken; this is the job that holds it.")))]
pub async fn enqueue(
    State(app): State<ApiState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let trace = traceparent(request.headers());
    let value = body::json(request, body::ONE_BYTES_MAX).await?;
    let elsewhere = kinds_elsewhere(&app, &value).await?;
    let known = KnownKinds {
        here: &app.deps.kinds,
        elsewhere: &elsewhere,
    };
    let mut job = jobs_input::one(value, &known)
        .map_err(|errors| Problem::fields(Code::InvalidFields, errors))?;
    job.traceparent = job.traceparent.or(trace);
    permissions::check(&app, &caller, std::slice::from_ref(&job), false).await?;
    let warnings = warnings(&app, std::iter::once(job.throttle.as_str())).await;

    let asked = async {
        let enqueued = app
            .deps
            .queue
            .enqueue_for(&caller.owner, std::slice::from_ref(&job))
            .await;
        enqueued.map_err(|error| refused(&app, error, false))
    };
    let enqueued = with_timeout(ROW_TIMEOUT, asked).await?;
    note_backlogs(&app, &enqueued);

    let Some(ticket) = enqueued.first() else {
        return Err(Problem::new(
            Code::Internal,
            "the queue store answered without a job",
        ));
    };
    let status = if ticket.duplicate {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    let location = format!("/api/v1/jobs/{}", ticket.id);
    // The job is stored, even if this read fails.
    let found = with_timeout(ROW_TIMEOUT, app.deps.queue.get(ticket.id))
        .await
        .ok()
        .flatten();
    let mut job = found.unwrap_or_else(|| as_sent(job, ticket.id));
    mask_args(&job.summary.kind, &mut job.args);
    if ticket.duplicate && !ticket.replaced && !caller.leave.has(TokenScope::JobsRead) {
        // The existing job may belong to another client of the same tenant.
        job.args = Value::Null;
    }
    let Enqueued {
        duplicate,
        replaced,
        backlog,
        ..
    } = *ticket;
    Ok((
        status,
        [(LOCATION, location)],
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
    State(app): State<ApiState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let trace = traceparent(request.headers());
    let value = body::json(request, body::BATCH_BYTES_MAX).await?;
    let elsewhere = kinds_elsewhere(&app, &value).await?;
    let known = KnownKinds {
        here: &app.deps.kinds,
        elsewhere: &elsewhere,
    };
    let mut jobs = jobs_input::batch(value, &known)
        .map_err(|errors| Problem::fields(Code::InvalidFields, errors))?;
    for job in jobs.iter_mut().filter(|job| job.traceparent.is_none()) {
        job.traceparent.clone_from(&trace);
    }
    permissions::check(&app, &caller, &jobs, true).await?;
    let warnings = warnings(&app, jobs.iter().map(|job| job.throttle.as_str())).await;

    let enqueued = if jobs.is_empty() {
        Vec::new()
    } else {
        let enqueue = async {
            app.deps
                .queue
                .enqueue_for(&caller.owner, &jobs)
                .await
                .map_err(|error| refused(&app, error, true))
        };
        with_timeout(LIST_TIMEOUT, enqueue).await?
    };
    note_backlogs(&app, &enqueued);

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
                  }| Ticket {
        id,
        duplicate,
        replaced,
        backlog,
    };
    let jobs = enqueued.into_iter().map(ticket).collect();
    Ok((status, Json(AcceptedBatch { jobs, warnings })))
}

/// Searches jobs, newest first. A page takes a few tens of milliseconds whatever the filter is. It
/// may therefore be short or empty although more follow: continue while there is a `next`.
#[utoipa::path(get, path = "/api/v1/jobs", operation_id = "list_jobs", tag = "jobs",
    params(
        ("state" = Option<String>, Query, description = "Only jobs in this state; `ended` is completed, cancelled or dead."),
        ("kind" = Option<String>, Query, description = "Only jobs of this kind."),
        ("throttle" = Option<String>, Query, description = "Only jobs of this throttle."),
        ("key" = Option<String>, Query, description = "Only jobs with this key; an empty `key=` selects jobs without a key."),
        ("created_after" = Option<Timestamp>, Query, description = "Only jobs that were enqueued at this time or later."),
        ("created_before" = Option<Timestamp>, Query, description = "Only jobs that were enqueued before this time."),
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 1000; 100 if absent."),
        ("before" = Option<i64>, Query, description = "Only jobs with a smaller id: the cursor.")),
    responses((status = 200, body = JobList, headers(("Link" = String, description = "The next page, rel=\"next\".")))))]
pub async fn list(
    State(app): State<ApiState>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Problem> {
    let allowed = [
        "state",
        "kind",
        "throttle",
        "key",
        "created_after",
        "created_before",
        "limit",
        "before",
    ];
    let mut query = Query::open(pairs, &allowed);
    let searched = query.choice("state", &SEARCHED);
    let filter = JobFilter {
        state: searched.and_then(|searched| match searched {
            Searched::In(state) => Some(state),
            Searched::Ended => None,
        }),
        ended: matches!(searched, Some(Searched::Ended)),
        kind: query.text("kind", KIND_BYTES_MAX),
        throttle: query.text("throttle", throttle::name::MAX_BYTES),
        key: query.text_or_empty("key", KEY_BYTES_MAX),
        created_after: query.time("created_after"),
        created_before: query.time("created_before"),
        before: query.whole("before", 1..=i64::MAX),
        limit: query.whole("limit", 1..=PAGE_MAX).unwrap_or(100),
    };
    if let (Some(from), Some(to)) = (filter.created_after, filter.created_before)
        && from >= to
    {
        query.wrong(
            "created_after",
            format!("{from} is not before created_before, {to}"),
        );
    }
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let page = with_timeout(LIST_TIMEOUT, app.deps.queue.page(&filter)).await?;
    let next = page.next.map(|next| next_page(&filter, next));
    let mut headers = HeaderMap::new();
    if let Some(link) = next
        .as_ref()
        .and_then(|next| HeaderValue::from_str(&format!("<{next}>; rel=\"next\"")).ok())
    {
        headers.insert(LINK, link);
    }
    Ok((
        headers,
        Json(JobList {
            jobs: page.jobs,
            next,
        }),
    ))
}

/// Shows a job: its state, its attempts and, while it waits, the reason and the end of the wait.
#[utoipa::path(get, path = "/api/v1/jobs/{id}", operation_id = "show_job", tag = "jobs", params(("id" = i64, Path, description = "Its number.")),
    responses((status = 200, body = JobView)))]
pub async fn show(
    State(app): State<ApiState>,
    Path(id): Path<String>,
) -> Result<Json<JobView>, Problem> {
    let id = id_of(&id)?;
    Ok(Json(view(&app, found(&app, id).await?).await))
}

/// Lists the finished attempts of a job, newest first.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/attempts", operation_id = "list_attempts", tag = "jobs",
    params(
        ("id" = i64, Path, description = "Its number."),
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 1000; 100 if absent."),
        ("before" = Option<Timestamp>, Query, description = "Only attempts that ended before this time: the cursor.")),
    responses((status = 200, body = Attempts)))]
pub async fn attempts(
    State(app): State<ApiState>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<Attempts>, Problem> {
    let id = id_of(&id)?;
    let mut query = Query::open(pairs, &["limit", "before"]);
    let limit = query.whole("limit", 1..=PAGE_MAX).unwrap_or(100);
    let before = query.time("before");
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let attempts = with_timeout(ROW_TIMEOUT, app.deps.queue.attempts(id, before, limit)).await?;
    if attempts.is_empty() {
        found(&app, id).await?;
    }
    let is_full = i64::try_from(attempts.len()).is_ok_and(|found| found >= limit);
    let next = attempts.last().filter(|_| is_full).map(|last| {
        format!(
            "/api/v1/jobs/{id}/attempts?limit={limit}&before={}",
            last.finished_at
        )
    });
    Ok(Json(Attempts { attempts, next }))
}

/// Returns the sender's trace. An invalid header does not refuse the job: a new trace begins
/// instead.
pub(super) fn traceparent(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    NewJob::is_traceparent(text).then(|| text.to_owned())
}

/// Converts a refusal of the queue to a problem, and counts full lanes.
pub(super) fn refused(app: &ApiState, error: crate::jobs::Error, batch: bool) -> Problem {
    if let crate::jobs::Error::Full { .. } = &error {
        app.http.note_backlog(BacklogAnswer::Rejected, 1);
    }
    Problem::from_queue(error, batch)
}

/// Counts the jobs that were accepted although their lane was above its limit.
pub(super) fn note_backlogs(app: &ApiState, enqueued: &[Enqueued]) {
    let over = enqueued
        .iter()
        .filter(|ticket| ticket.backlog.is_some())
        .count();
    app.http.note_backlog(BacklogAnswer::Signalled, over as u64);
}

/// Returns the kinds that other processes run, if the request names a kind that this process does
/// not know. An error of the store is an error of the request, because the kind cannot be called
/// wrong then.
pub(super) async fn kinds_elsewhere(app: &ApiState, body: &Value) -> Result<Vec<String>, Problem> {
    if jobs_input::kinds_named(body).all(|kind| app.deps.kinds.get(kind).is_some()) {
        return Ok(Vec::new());
    }
    with_timeout(ROW_TIMEOUT, postgres::read_kinds(&app.deps.queue.pool)).await
}

/// Returns warnings about the named throttles. A store that does not answer causes no warning: the
/// jobs are in Postgres whatever Redis does.
pub(super) async fn warnings<'a>(
    app: &ApiState,
    throttles: impl Iterator<Item = &'a str>,
) -> Vec<String> {
    let distinct: BTreeSet<&str> = throttles.collect();
    let mut warnings = Vec::new();
    for name in distinct
        .into_iter()
        .take(WARNED_THROTTLES_MAX)
        .filter_map(|name| Name::new(name).ok())
    {
        match app.deps.throttles.status(&name).await {
            Ok(None) => warnings.push(format!(
                "there is no throttle {name}; the job is kept and waits until it exists: flyball throttle set {name} rps=10, or PATCH /api/v1/throttles/{name}?create=true"
            )),
            Ok(Some(_)) => {}
            Err(_) => break,
        }
    }
    warnings
}

/// Returns a job, or the problem that it does not exist.
pub async fn found(app: &ApiState, id: i64) -> Result<Detail, Problem> {
    let mut detail = with_timeout(ROW_TIMEOUT, app.deps.queue.get(id))
        .await?
        .ok_or_else(|| Problem::job_not_found(id))?;
    mask_args(&detail.summary.kind, &mut detail.args);
    Ok(detail)
}

/// Returns the job as the API shows it.
pub async fn view(app: &ApiState, detail: Detail) -> JobView {
    let waiting = why_job_waits(&app.deps.queue, &*app.deps.throttles, &detail).await;
    JobView { detail, waiting }
}

/// Returns the reason for which the job does not run now, or does not stop; `None` if it runs or
/// has ended.
pub async fn why_job_waits(
    queue: &Queue,
    throttles: &dyn Store,
    detail: &Detail,
) -> Option<WaitReason> {
    let job = &detail.summary;
    if let Some(need) = waiting::need(detail) {
        // If the workers cannot be read, the job is assumed to be served.
        let serving = with_timeout(ROW_TIMEOUT, queue.serving()).await.ok();
        let is_served =
            serving.is_none_or(|workers| workers.iter().any(|worker| worker.serves(need)));
        return Some(waiting::for_a_worker(job, need, is_served));
    }
    if job.state != JobState::Ready {
        return waiting::for_its_time(job).or_else(|| waiting::for_its_handler(detail));
    }
    if let Ok(Some(pause)) = with_timeout(ROW_TIMEOUT, queue.paused()).await {
        return Some(waiting::for_everything(&pause));
    }
    let throttle = Name::new(job.throttle.as_str()).ok()?;
    let lane = LaneRequest {
        key: job.key.clone(),
        cost: job.cost,
        ..LaneRequest::default()
    };
    let answer = throttles
        .peek(&AcquireRequest {
            throttle,
            lanes: vec![lane],
            holder: Some(waiting::anonymous_holder()),
        })
        .await;
    // If the workers cannot be read, the kind is assumed to be handled.
    let is_handled = with_timeout(ROW_TIMEOUT, postgres::read_live_kinds(&queue.pool))
        .await
        .map_or(true, |kinds| kinds.contains(&job.kind));
    Some(waiting::for_tokens(job, &answer, is_handled))
}

/// Parses the job number of a path.
pub fn id_of(text: &str) -> Result<i64, Problem> {
    text.parse().ok().filter(|id| *id > 0).ok_or_else(|| {
        let message = format!(
            "{:?} is not the number of a job; allowed: a whole number above 0",
            super::fields::clipped(text)
        );
        Problem::at(Code::InvalidPath, FieldLocation::Path, "id", message)
    })
}

/// Returns the job as its sender described it, for a job that was stored and could not be read
/// back.
fn as_sent(job: NewJob, id: i64) -> Detail {
    let now = clock::now();
    let due_at = job.run_at.filter(|at| *at > now);
    Detail {
        summary: Summary {
            id,
            kind: job.kind,
            throttle: job.throttle,
            key: job.key,
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
            last_error: None,
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
    }
}

fn next_page(filter: &JobFilter, before: i64) -> String {
    let mut page = format!("/api/v1/jobs?limit={}&before={before}", filter.limit);
    let mut add = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            page.push_str(&format!("&{name}={}", encoded(value)));
        }
    };
    add(
        "state",
        if filter.ended {
            Some("ended")
        } else {
            filter.state.map(JobState::as_str)
        },
    );
    add("kind", filter.kind.as_deref());
    add("throttle", filter.throttle.as_deref());
    add("key", filter.key.as_deref());
    add(
        "created_after",
        filter.created_after.map(|at| at.to_string()).as_deref(),
    );
    add(
        "created_before",
        filter.created_before.map(|at| at.to_string()).as_deref(),
    );
    page
}

/// Encodes a text as a part of a URL.
pub fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_keeps_the_filter() {
        let filter = JobFilter {
            state: Some(JobState::Dead),
            key: Some("a&b ü".into()),
            limit: 5,
            ..JobFilter::default()
        };
        assert_eq!(
            next_page(&filter, 42),
            "/api/v1/jobs?limit=5&before=42&state=dead&key=a%26b%20%C3%BC"
        );
    }

    #[test]
    fn job_numbers_are_whole_and_above_zero() {
        assert_eq!(id_of("7").unwrap(), 7);
        for text in ["0", "-1", "x", "1.5", "", "99999999999999999999", "1 "] {
            assert!(id_of(text).is_err(), "{text}");
        }
    }
}
