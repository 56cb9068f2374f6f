//! Search and display of jobs.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query as Pairs, State};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::filters::{pattern_of_query, search_of_query};
use super::input::{KEY_BYTES_MAX, KIND_BYTES_MAX};
use super::redact::mask_args;
use super::state::JobsState;
use crate::admission::{self, Batches, WaitingMessage};
use crate::api::clock;
use crate::api::http::caller::Caller;
use crate::api::http::fields::FieldLocation;
use crate::api::http::link::{encoded, next_link};
use crate::api::http::places::PlaceShares;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::{PAGE_MAX, Query};
use crate::api::http::timeout::{LIST_TIMEOUT, ROW_TIMEOUT, with_timeout};
use crate::api::notifications::accepted::until;
use crate::api::pools::{add_limits, view_of};
use crate::api::waiting::{self, WaitReason};
use crate::jobs::serving::remedy;
use crate::jobs::{
    self, Attempt, JobCounts, JobDetail, JobFilter, Kinds, Queue, State as JobState, Summary,
    secret,
};
use crate::notify::recipient::KIND;
use crate::throttle::{self, AcquireRequest, LaneRequest, Name, Store};

/// The longest wait for the end of a job, in seconds: below the timeouts of most proxies.
pub(in crate::api) const WAIT_S_MAX: i64 = 60;

/// The first and the longest pause between two polls of a job whose end is waited for.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The shares of the requests that wait for the end of a job; further ones are answered without
/// waiting. Each looks at its job about once a second.
pub(in crate::api) const WAIT_SHARES: PlaceShares = PlaceShares {
    all: 256,
    others: 192,
    tenant: 96,
    one: 64,
};

/// The values of `state` in a search: a state, or all states in which a job has ended.
pub(in crate::api) const SEARCHED: [(&str, Searched); 8] = [
    Searched::of(JobState::Scheduled),
    Searched::of(JobState::Ready),
    Searched::of(JobState::Running),
    Searched::of(JobState::Retryable),
    Searched::of(JobState::Completed),
    Searched::of(JobState::Cancelled),
    Searched::of(JobState::Dead),
    ("ended", Searched::Ended),
];

/// The state that a search asks for.
#[derive(Clone, Copy)]
pub(in crate::api) enum Searched {
    In(JobState),
    Ended,
}

impl Searched {
    const fn of(state: JobState) -> (&'static str, Self) {
        (state.as_str(), Self::In(state))
    }
}

/// A job with the reason for its wait.
#[derive(Serialize, utoipa::ToSchema)]
pub struct JobView {
    /// The facts that the queue stores.
    #[serde(flatten)]
    detail: JobDetail,
    /// The reason for which the job does not run yet; `null` if it does not wait.
    waiting: Option<WaitReason>,
}

/// A page of jobs.
#[derive(Serialize, utoipa::ToSchema)]
pub struct JobList {
    /// The jobs, newest first. A page may be short or empty although more follow.
    jobs: Vec<Summary>,
    /// The URL of the next page; also in the Link header. Absent at the end of the search.
    next: Option<String>,
    /// The number of all jobs in each state, whatever the filter; absent unless `counts` is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<JobCounts>,
}

/// Finished attempts of a job.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Attempts {
    /// The attempts, newest first.
    attempts: Vec<Attempt>,
    /// The URL of the next page.
    next: Option<String>,
}

/// Searches jobs, newest first. A page takes a few tens of milliseconds with any filter. It
/// may therefore be short or empty although more follow: continue while there is a `next`.
#[utoipa::path(get, path = "/api/v1/jobs", operation_id = "list_jobs", tag = "jobs",
    params(
        ("state" = Option<String>, Query, description = "Only jobs in this state; `ended` is completed, cancelled or dead."),
        ("kind" = Option<String>, Query, description = "Only jobs of this kind."),
        ("throttle" = Option<String>, Query, description = "Only jobs of this throttle."),
        ("key" = Option<String>, Query, description = "Only jobs with this key; an empty `key=` selects jobs without a key."),
        ("tenant" = Option<String>, Query, description = "Only jobs of this tenant; for operators."),
        ("group" = Option<i64>, Query, description = "Only jobs of this group."),
        ("error_like" = Option<String>, Query, description = "Only dead jobs, and others that failed before, whose last error matches this pattern: `timeout%` begins with, `%timeout%` contains."),
        ("trace" = Option<String>, Query, description = "Only jobs of this trace: its id, or a whole `traceparent`."),
        ("unique_key" = Option<String>, Query, description = "Only jobs that hold or held this unique key."),
        ("args" = Option<String>, Query, description = "Only jobs whose arguments contain this JSON object, such as `{\"customer\": {\"id\": 17}}`."),
        ("args_path" = Option<String>, Query, description = "Only jobs whose arguments fit this SQL/JSON path, such as `$.customer.id == 17`: comparisons of a path with a value, joined by `&&` and `||`."),
        ("tags" = Option<String>, Query, description = "Only jobs with this tag, or with all of a JSON array of tags, such as `[\"urgent\", \"eu\"]`."),
        ("created_after" = Option<Timestamp>, Query, description = "Only jobs that were enqueued at this time or later."),
        ("created_before" = Option<Timestamp>, Query, description = "Only jobs that were enqueued before this time."),
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 1000; 100 if absent."),
        ("before" = Option<i64>, Query, description = "Only jobs with a smaller id: the cursor."),
        ("counts" = Option<bool>, Query, description = "`true` adds the number of all jobs in each state; for operators.")),
    responses((status = 200, body = JobList, headers(("Link" = String, description = "The next page, rel=\"next\".")))))]
pub async fn list(
    State(state): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Problem> {
    let allowed = [
        "state",
        "kind",
        "throttle",
        "key",
        "tenant",
        "group",
        "error_like",
        "trace",
        "unique_key",
        "args",
        "args_path",
        "tags",
        "created_after",
        "created_before",
        "limit",
        "before",
        "counts",
    ];
    let mut query = Query::open(pairs, &allowed);
    let is_counted = query.flag("counts").unwrap_or(false);
    if let (true, Some(tenant)) = (is_counted, caller.tenant.as_deref()) {
        query.wrong(
            "counts",
            format!("is for operators, and this token is of the tenant {tenant:?}"),
        );
    }
    let searched = query.choice("state", &SEARCHED);
    let mut found = search_of_query(&mut query, &caller);
    state.fill_owners(&mut found.search, &caller);
    let asked = found.tenant.clone();
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
        tenant: caller.tenant.as_deref().map(str::to_owned).or(found.tenant),
        group: found.group,
        error_like: pattern_of_query(&mut query),
        search: found.search,
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
    let wanted = &filter;
    let read = |queue: Queue| async move {
        let counts = match is_counted {
            true => Some(queue.counts().await?),
            false => None,
        };
        Ok((queue.page(wanted).await?, counts))
    };
    let read = async { state.queue.read_lagging(read).await.map_err(refused) };
    let (page, counts) = with_timeout(LIST_TIMEOUT, read).await?;
    let next = page
        .next
        .map(|next| next_page(&filter, asked.as_deref(), next));
    let headers = next_link(next.as_deref());
    Ok((
        headers,
        Json(JobList {
            jobs: page.jobs,
            next,
            counts,
        }),
    ))
}

/// Shows a job: its state, its attempts, its result and, while it waits, the reason and the end of
/// the wait.
#[utoipa::path(get, path = "/api/v1/jobs/{id}", operation_id = "show_job", tag = "jobs",
    params(
        ("id" = i64, Path, description = "Its number."),
        ("wait_s" = Option<u32>, Query, description = "Seconds to wait for the end of the job, up to 60; 0 if absent. Without a free place among the waiting requests the answer comes at once.")),
    responses((status = 200, body = JobView)))]
pub async fn show(
    State(state): State<Arc<JobsState>>,
    State(cancel): State<CancellationToken>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<JobView>, Problem> {
    let id = id_of(&id)?;
    let mut query = Query::open(pairs, &["wait_s"]);
    let wait = query.whole("wait_s", 0..=WAIT_S_MAX).unwrap_or(0);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    // Without a place the answer is the job as it is.
    let place = match wait {
        0 => None,
        _ => state.waits.take(
            &caller.key,
            caller.tenant.as_deref(),
            caller.leave.is_admin(),
        ),
    };
    let wait = match place {
        Some(_) => Duration::from_secs(wait.unsigned_abs()),
        None => Duration::ZERO,
    };
    let ended = ended_within(&state, &caller, id, wait, &cancel).await?;
    drop(place);
    Ok(Json(view(&state, &caller, ended).await))
}

/// Returns the job as soon as it has ended, or as it is when the wait is over or the process stops.
async fn ended_within(
    state: &JobsState,
    caller: &Caller,
    id: i64,
    wait: Duration,
    cancel: &CancellationToken,
) -> Result<JobDetail, Problem> {
    let until = Instant::now() + wait;
    let mut pause = FIRST_PAUSE;
    loop {
        let detail = found(state, caller, id).await?;
        let has_ended = matches!(
            detail.summary.state,
            JobState::Completed | JobState::Cancelled | JobState::Dead
        );
        let left = until.saturating_duration_since(Instant::now());
        if has_ended || left.is_zero() || cancel.is_cancelled() {
            return Ok(detail);
        }
        tokio::select! {
            () = cancel.cancelled() => {}
            () = tokio::time::sleep(pause.min(left)) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Lists the finished attempts of a job, newest first.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/attempts", operation_id = "list_attempts", tag = "jobs",
    params(
        ("id" = i64, Path, description = "Its number."),
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 1000; 100 if absent."),
        ("before" = Option<Timestamp>, Query, description = "Only attempts that ended before this time: the cursor.")),
    responses((status = 200, body = Attempts)))]
pub async fn attempts(
    State(state): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
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
    let tenant = caller.tenant.as_deref();
    let read = state.queue.attempts(id, tenant, before, limit);
    let attempts = with_timeout(ROW_TIMEOUT, read).await?;
    if attempts.is_empty() {
        found(&state, &caller, id).await?;
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

/// Returns a job that the caller may see, not yet masked, or the problem that it does not exist.
pub async fn found(state: &JobsState, caller: &Caller, id: i64) -> Result<JobDetail, Problem> {
    let read = state.queue.get_of(id, caller.tenant.as_deref());
    with_timeout(ROW_TIMEOUT, read)
        .await?
        .ok_or_else(|| Problem::job_not_found(id))
}

/// Returns the job as the API shows it.
pub async fn view(state: &JobsState, caller: &Caller, mut detail: JobDetail) -> JobView {
    let sees_all = caller.sees(&detail.summary.throttle);
    let stores = (&state.queue, &*state.throttles, &state.kinds);
    let mut waiting = why_job_waits(stores, &detail, sees_all).await;
    if let Some(waits) = &mut waiting
        && detail.summary.kind == KIND
        && let Some(pool) = view_of(&state.account_pools, &detail.summary.throttle)
    {
        add_limits(&mut waits.reason, &pool, sees_all);
    }
    mask_args(&detail.summary.kind, &mut detail.args);
    JobView { detail, waiting }
}

/// Returns the reason for which the job does not run now, or does not stop; `None` if it runs or
/// has ended. Without `sees_all`, texts that operators and the answers of receivers left at the
/// throttle stay out, because they may reveal other tenants.
pub async fn why_job_waits(
    (queue, throttles, kinds): (&Queue, &dyn Store, &Kinds),
    detail: &JobDetail,
    sees_all: bool,
) -> Option<WaitReason> {
    let job = &detail.summary;
    if job.state != JobState::Ready {
        if let Some(pause) = pause_of_batch(queue, job).await {
            return Some(WaitReason::without_end(pause));
        }
        let others = waiting::for_others(detail);
        if others.is_none()
            && waiting::is_overdue(job, clock::now())
            && let Ok(live) = with_timeout(ROW_TIMEOUT, queue.serving()).await
        {
            // Workers that cannot write send no heartbeats either.
            let status = with_timeout(ROW_TIMEOUT, queue.status()).await;
            return Some(match status {
                Ok(status) if status.is_read_only => waiting::for_writes(),
                _ => waiting::for_promotion(job, !live.is_empty()),
            });
        }
        return others
            .or_else(|| waiting::for_its_time(job))
            .or_else(|| waiting::for_its_handler(detail));
    }
    let status = with_timeout(ROW_TIMEOUT, queue.status()).await;
    let status = status.unwrap_or_default();
    if status.is_paused
        && let Ok(Some(pause)) = with_timeout(ROW_TIMEOUT, queue.paused()).await
    {
        return Some(waiting::for_everything(sees_all.then_some(&pause)));
    }
    if status.is_read_only {
        return Some(waiting::for_writes());
    }
    // If the workers cannot be read, the job is assumed to be served.
    let live = with_timeout(ROW_TIMEOUT, queue.serving()).await.ok();
    let handler = kinds.get(&job.kind);
    let mut needs = handler.map_or_else(Vec::new, |handler| handler.needs(&detail.args));
    needs.extend(secret::needs(&detail.args));
    let serving: Vec<i32> = live
        .iter()
        .flatten()
        .filter(|worker| worker.runs(&job.throttle, &job.kind, &needs))
        .map(|worker| worker.id)
        .collect();
    let is_served = live.is_none() || !serving.is_empty();
    if let Some(live) = live.filter(|live| !live.is_empty() && !is_served) {
        let remedy = remedy(&live, &job.throttle, Some(&job.kind), &needs);
        return Some(WaitReason::without_end(remedy));
    }
    if let Some(waits) = waits_for_admission(queue, throttles, job).await
        && (is_served || waits.paused_by.is_some())
    {
        return Some(waiting::for_admission(&waits, until(&waits)));
    }
    let throttle = Name::new(job.throttle.as_str()).ok()?;
    let lane = LaneRequest {
        key: job.key.clone(),
        cost: job.cost,
        ..LaneRequest::default()
    };
    let mut answer = throttles
        .peek(&AcquireRequest {
            throttle: throttle.clone(),
            lanes: vec![lane],
            holder: Some(waiting::anonymous_holder()),
        })
        .await;
    if !sees_all {
        waiting::without_texts(&mut answer);
    }
    let mut wait = waiting::for_tokens(job, &answer, is_served);
    let grant = answer.lanes.first().filter(|grant| grant.granted == 0);
    let limit = grant.and_then(|grant| grant.limit.as_ref());
    if limit.is_none() && claims_fail(queue, &serving).await {
        return Some(waiting::for_claims());
    }
    if let Some(limit) = limit
        && sees_all
    {
        if let Some(name) = waiting::decider(limit, &throttle)
            && let Ok(Some(status)) = throttles.status(name).await
            && let Some(closed) = waiting::for_closed(&status, limit)
        {
            wait = closed;
        }
        if !is_served {
            wait.reason += "; besides, no worker is live: start one";
        }
    }
    Some(wait)
}

/// Returns true if there are such workers and none of them can claim jobs.
async fn claims_fail(queue: &Queue, workers: &[i32]) -> bool {
    if workers.is_empty() {
        return false;
    }
    let failing = with_timeout(ROW_TIMEOUT, queue.claim_failures()).await;
    failing.is_ok_and(|failing| {
        workers
            .iter()
            .all(|id| failing.iter().any(|one| one.worker_id == *id))
    })
}

/// Returns the pause of the batch of a message that is put aside; `None` for other jobs.
async fn pause_of_batch(queue: &Queue, job: &Summary) -> Option<String> {
    let is_aside = matches!(job.state, JobState::Scheduled | JobState::Retryable);
    if job.kind != KIND || !is_aside {
        return None;
    }
    let batches = Batches::new(queue.clone());
    with_timeout(ROW_TIMEOUT, batches.pause_of(job.id))
        .await
        .ok()
        .flatten()
}

/// Returns the wait of a message for the limits of its tenant; `None` for other jobs.
async fn waits_for_admission(
    queue: &Queue,
    throttles: &dyn Store,
    job: &Summary,
) -> Option<WaitingMessage> {
    if job.kind != KIND || job.tenant.is_empty() {
        return None;
    }
    let waiting = admission::waiting(queue, throttles, job.id);
    with_timeout(ROW_TIMEOUT, waiting).await.ok().flatten()
}

/// Parses the job number of a path.
pub fn id_of(text: &str) -> Result<i64, Problem> {
    text.parse().ok().filter(|id| *id > 0).ok_or_else(|| {
        let message = format!(
            "{:?} is not the number of a job; allowed: a whole number above 0",
            crate::api::http::fields::clipped(text)
        );
        Problem::at(Code::InvalidPath, FieldLocation::Path, "id", message)
    })
}

/// Converts a refusal of a filter, whose place is the query.
fn refused(error: jobs::Error) -> Problem {
    match error {
        jobs::Error::Refused { field, message, .. } => {
            Problem::at(Code::InvalidQuery, FieldLocation::Query, &field, message)
        }
        error => error.into(),
    }
}

fn next_page(filter: &JobFilter, tenant: Option<&str>, before: i64) -> String {
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
    add("group", filter.group.map(|id| id.to_string()).as_deref());
    add("tenant", tenant);
    add("error_like", filter.error_like.as_deref());
    let search = &filter.search;
    add("trace", search.trace.as_deref());
    add("unique_key", search.unique_key.as_deref());
    let args = search.args.as_ref().map(ToString::to_string);
    add("args", args.as_deref());
    add("args_path", search.args_path.as_deref());
    let tags = (!search.tags.is_empty()).then(|| serde_json::json!(search.tags).to_string());
    add("tags", tags.as_deref());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_keeps_the_filter() {
        let filter = JobFilter {
            state: Some(JobState::Dead),
            key: Some("a&b ü".into()),
            group: Some(17),
            tenant: Some("acme".into()),
            search: jobs::JobSearch {
                args: Some(serde_json::json!({"a": 1})),
                args_path: Some("$.b == \"c\"".into()),
                tags: vec!["x".into()],
                ..jobs::JobSearch::default()
            },
            limit: 5,
            ..JobFilter::default()
        };
        let rest = "&args=%7B%22a%22%3A1%7D&args_path=%24.b%20%3D%3D%20%22c%22&tags=%5B%22x%22%5D";
        for (tenant, in_link) in [(Some("acme"), "&tenant=acme"), (None, "")] {
            assert_eq!(
                next_page(&filter, tenant, 42),
                format!(
                    "/api/v1/jobs?limit=5&before=42&state=dead&key=a%26b%20%C3%BC&group=17{in_link}{rest}"
                )
            );
        }
    }

    #[test]
    fn job_numbers_are_whole_and_above_zero() {
        assert_eq!(id_of("7").unwrap(), 7);
        for text in ["0", "-1", "x", "1.5", "", "99999999999999999999", "1 "] {
            assert!(id_of(text).is_err(), "{text}");
        }
    }
}
