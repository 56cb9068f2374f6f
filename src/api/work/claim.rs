//! Claims of workers in other programs.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::input::{self, Workers, required};
use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::fields::{Errors, ObjectReader, seconds};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::http::token_scope::Permissions;
use crate::api::jobs::input::KIND_BYTES_MAX;
use crate::api::postgres;
use crate::input::patterns::allows;
use crate::jobs::Queue;
use crate::jobs::remote::{RemoteClaim, RemoteJob, RemoteOffer};
use crate::throttle::Name;

/// The longest name of a worker or its host, in bytes.
pub(in crate::api) const WORKER_BYTES_MAX: usize = 200;

/// The most kinds or throttles of one claim.
pub(in crate::api) const NAMES_MAX: usize = 100;

/// The most jobs of one claim.
pub(in crate::api) const LIMIT_MAX: i64 = 100;

/// The longest wait, in seconds: below the timeouts of most proxies.
pub(in crate::api) const WAIT_S_MAX: f64 = 60.0;

/// The wait if the claim names none, in seconds.
pub(in crate::api) const WAIT_S: f64 = 20.0;

/// The shortest and the longest lease, in seconds.
pub(in crate::api) const LEASE_S: std::ops::RangeInclusive<f64> = 2.0..=3600.0;

/// The lease if the claim names none, in seconds.
pub(in crate::api) const LEASE_S_USUAL: f64 = 60.0;

/// A claim of jobs.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct NewClaim {
    /// The name of the worker, different for each process. Workers of one tenant with the same name
    /// count as one.
    worker: String,
    /// The host of the worker, for people.
    host: Option<String>,
    /// The kinds to claim, at most 100. Kinds that Flyball runs itself are refused.
    kinds: Vec<String>,
    /// The throttles whose jobs are claimed, by name or by a prefix followed by `*`; all that the
    /// token allows if absent.
    throttles: Option<Vec<String>>,
    /// The most jobs to get, up to 100; 1 if absent.
    limit: Option<u32>,
    /// Seconds to wait for a job, up to 60; 20 if absent. The request waits at least half a second.
    wait_s: Option<f64>,
    /// Seconds without a heartbeat after which a job is lost, 2 to 3600; 60 if absent.
    lease_s: Option<f64>,
}

/// The jobs of a claim.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ClaimedJobs {
    /// The number of the worker, as in the list of workers.
    worker_id: i64,
    /// The jobs, most urgent first; empty if none came in time.
    jobs: Vec<ClaimedJob>,
}

/// A job that the worker holds now.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ClaimedJob {
    /// The number of the job.
    id: i64,
    /// The proof that the worker holds the job, for all further calls. Each attempt has its own.
    lease: String,
    /// The time at which the lease ends without a heartbeat.
    lease_expires_at: Timestamp,
    /// The kind.
    kind: String,
    /// The arguments.
    args: Value,
    /// The throttle that granted the tokens.
    throttle: String,
    /// The rate-limit key; empty for none.
    key: String,
    /// The tenant that owns the job; empty for none.
    tenant: String,
    /// The priority, 0 to 3.
    priority: i32,
    /// The number of this attempt, from 1.
    attempt: i32,
    /// Attempts before the job is dead.
    max_attempts: i32,
    /// Tokens that were charged.
    cost: f64,
    /// The time at which the job was enqueued.
    created_at: Timestamp,
    /// The timeout of the attempt in seconds, if the job or its kind has one: the lease is not
    /// extended past it.
    timeout_s: Option<f64>,
    /// The producer's trace, as a W3C `traceparent`.
    traceparent: Option<String>,
    /// The last checkpoint, from any attempt.
    checkpoint: Option<JobCheckpoint>,
}

/// The checkpoint of a job.
#[derive(Serialize, utoipa::ToSchema)]
pub struct JobCheckpoint {
    /// The value that was stored.
    cursor: Value,
    /// Units done.
    done: i64,
    /// Units in all, if known.
    total: Option<i64>,
    /// A line for people.
    note: String,
}

impl From<RemoteJob> for ClaimedJob {
    fn from(one: RemoteJob) -> Self {
        let job = one.job;
        Self {
            id: job.id,
            lease: input::lease(job.fence),
            lease_expires_at: one.expires_at,
            kind: job.kind,
            args: job.args,
            throttle: job.throttle,
            key: job.key,
            tenant: one.tenant,
            priority: job.priority,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            cost: job.cost,
            created_at: job.created_at,
            timeout_s: job.timeout.map(|timeout| timeout.as_secs_f64()),
            traceparent: job.traceparent,
            checkpoint: one.checkpoint.map(|at| JobCheckpoint {
                cursor: at.cursor,
                done: at.done,
                total: at.total,
                note: at.note,
            }),
        }
    }
}

/// Claims jobs for a worker, as soon as there are any. A job passes its lane and its throttles
/// first, as for every worker.
#[utoipa::path(post, path = "/api/v1/claim", operation_id = "claim_jobs", tag = "workers",
    request_body = NewClaim,
    responses((status = 200, body = ClaimedJobs)))]
pub async fn claim(
    State(workers): State<Workers>,
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<ClaimedJobs>, Problem> {
    let value = body::json(request, body::ONE_BYTES_MAX).await?;
    let claim = read(value, workers.own_kinds(), &caller)?;
    check(&queue, &caller, &claim.offer).await?;
    let claimed = workers.claim(claim).await;
    let (worker_id, jobs) = claimed.map_err(|error| input::problem(error, None))?;
    Ok(Json(ClaimedJobs {
        worker_id: worker_id.into(),
        jobs: jobs.into_iter().map(ClaimedJob::from).collect(),
    }))
}

fn read(value: Value, own_kinds: &[String], caller: &Caller) -> Result<RemoteClaim, Problem> {
    let mut errors = Errors::default();
    let allowed = [
        "worker",
        "host",
        "kinds",
        "throttles",
        "limit",
        "wait_s",
        "lease_s",
    ];
    let Some(mut reader) = ObjectReader::open(value, "", &allowed, &mut errors) else {
        return Err(Problem::fields(Code::InvalidFields, errors));
    };
    let name = 1..=WORKER_BYTES_MAX;
    let worker = required(&mut reader, "worker", name, "the name of the worker");
    let host = reader.text("host", 0..=WORKER_BYTES_MAX);
    if !reader.contains("kinds") {
        reader.missing("kinds", "the kinds to claim");
    }
    let kinds = names(&mut reader, "kinds", KIND_BYTES_MAX).unwrap_or_default();
    for (index, kind) in kinds.iter().enumerate() {
        if own_kinds.contains(kind) {
            let message = format!(
                "{kind} runs in Flyball itself, so that no other program can claim it; choose another kind"
            );
            reader.wrong_below("kinds", &format!("/{index}"), message);
        }
    }
    let throttles = names(&mut reader, "throttles", crate::throttle::name::MAX_BYTES);
    for (index, pattern) in throttles.iter().flatten().enumerate() {
        if Name::or_pattern(pattern).is_err() {
            let message = format!(
                "must be the name of a throttle, or its beginning followed by *, not {pattern:?}"
            );
            reader.wrong_below("throttles", &format!("/{index}"), message);
        }
    }
    let limit = reader.whole("limit", 1..=LIMIT_MAX, "");
    let wait = seconds(&mut reader, "wait_s", 0.0..=WAIT_S_MAX);
    let lease = seconds(&mut reader, "lease_s", LEASE_S);
    drop(reader);
    let Some(worker) = worker.filter(|_| errors.is_empty()) else {
        return Err(Problem::fields(Code::InvalidFields, errors));
    };
    let own = || caller.leave.throttles.clone().unwrap_or_default();
    Ok(RemoteClaim {
        worker,
        host: host.unwrap_or_default(),
        offer: RemoteOffer::new(
            kinds,
            throttles.unwrap_or_else(own),
            caller.tenant.as_deref().map(str::to_owned),
        ),
        limit: limit.unwrap_or(1) as u32,
        wait: wait.unwrap_or(Duration::from_secs_f64(WAIT_S)),
        lease: lease.unwrap_or(Duration::from_secs_f64(LEASE_S_USUAL)),
    })
}

/// Reads a list of 1 to 100 names.
fn names(reader: &mut ObjectReader<'_>, field: &str, bytes_max: usize) -> Option<Vec<String>> {
    let allowed = format!("a list of 1 to {NAMES_MAX} texts of 1 to {bytes_max} bytes");
    let value = reader.take(field)?;
    let listed = value
        .as_array()
        .filter(|list| (1..=NAMES_MAX).contains(&list.len()));
    let Some(listed) = listed else {
        reader.refuse(field, &allowed, &value);
        return None;
    };
    let mut names = Vec::with_capacity(listed.len());
    for (index, one) in listed.iter().enumerate() {
        match one.as_str() {
            Some(text) if (1..=bytes_max).contains(&text.len()) && !text.contains('\0') => {
                names.push(text.to_owned());
            }
            _ => reader.wrong_below(
                field,
                &format!("/{index}"),
                format!(
                    "must be a text of 1 to {bytes_max} bytes without U+0000, not {}",
                    crate::api::http::fields::describe(one)
                ),
            ),
        }
    }
    Some(names)
}

/// Returns true if the token allows every throttle for which the pattern stands.
fn may_work_for(leave: &Permissions, pattern: &str) -> bool {
    let Some(allowed) = leave.throttles.as_ref().filter(|_| !leave.is_admin()) else {
        return true;
    };
    match pattern.strip_suffix('*') {
        Some(beginning) => allowed.iter().any(|allowed| {
            let prefix = allowed.strip_suffix('*');
            prefix.is_some_and(|prefix| beginning.starts_with(prefix))
        }),
        None => allows(allowed, pattern),
    }
}

/// Refuses kinds and throttles that the token may not work on: kinds must be in its settings, or be
/// public.
async fn check(queue: &Queue, caller: &Caller, offer: &RemoteOffer) -> Result<(), Problem> {
    let leave = &caller.leave;
    if leave.is_admin() {
        return Ok(());
    }
    let public = match &leave.kinds {
        Some(_) => Vec::new(),
        None => with_timeout(ROW_TIMEOUT, postgres::read_public_kinds(&queue.pool)).await?,
    };
    let may = |kind: &String| match &leave.kinds {
        Some(kinds) => kinds.contains(kind),
        None => public.contains(kind),
    };
    let mut errors = Errors::default();
    for kind in offer.kinds.iter().filter(|kind| !may(kind)) {
        let allowed = match &leave.kinds {
            Some(kinds) => kinds.iter().cloned().collect::<Vec<_>>().join(", "),
            None => "kinds that are registered and public".to_owned(),
        };
        let message = format!(
            "token {} may not claim kind {kind:?}; allowed: {allowed}",
            caller.token_name()
        );
        errors.body("/kinds", message);
    }
    let is_refused = |pattern: &&String| !may_work_for(leave, pattern);
    for pattern in offer.throttles.iter().filter(is_refused) {
        let message = format!(
            "token {} may not work for throttle {pattern}; allowed: {}",
            caller.token_name(),
            leave.throttles_reported()
        );
        errors.body("/throttles", message);
    }
    // An offer without throttles is for all of them.
    if offer.throttles.is_empty() && leave.throttles.is_some() {
        let message = format!(
            "token {} may work for no throttle, because its throttles are an empty list",
            caller.token_name()
        );
        errors.body("/throttles", message);
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Problem::fields(Code::NotAllowed, errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_allowed_if_all_that_it_stands_for_is() {
        let leave = Permissions {
            throttles: Some(vec!["mail".to_owned(), "shop:*".to_owned()]),
            ..Permissions::default()
        };
        for pattern in ["mail", "shop:eu", "shop:*", "shop:eu*"] {
            assert!(may_work_for(&leave, pattern), "{pattern}");
        }
        for pattern in ["*", "mail*", "shop*", "other"] {
            assert!(!may_work_for(&leave, pattern), "{pattern}");
        }
        assert!(may_work_for(&Permissions::admin(), "*"));
    }
}
