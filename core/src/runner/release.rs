//! Admission: messages of tenants that wait for their limits move to the lanes of their pools as
//! slots become free.
//!
//! Nothing is claimed here and no permit is needed: the jobs only change lanes. A lane is asked for
//! as in the dispatcher, so shares, exact waits and live knobs are the same.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::lane_scheduler::PlannedAcquire;
use super::shared::{WorkerContext, bounded};
use crate::jobs::postgres::Released;
use crate::jobs::{Error, LaneClaim};
use crate::service::FailureLog;
use crate::throttle::admission::{critical_throttle_of, tenant_of};
use crate::throttle::{AcquireRequest, AcquireResponse, LaneRequest, Name};

/// Most messages released at once.
const MAX_RELEASED: usize = 500;

/// Longest sleep while no message is known to wait.
const IDLE: Duration = Duration::from_secs(1);

/// Shortest sleep between two turns.
const MIN_SLEEP: Duration = Duration::from_millis(20);

/// Longest time until a critical message that a producer enqueued by SQL is seen.
const URGENT_EVERY: Duration = Duration::from_millis(100);

/// Pause after a failure of Postgres.
const AFTER_FAILURE: Duration = Duration::from_millis(250);

pub(super) async fn release(shared: Arc<WorkerContext>, cancel: CancellationToken) {
    let mut failures = FailureLog::default();
    while !cancel.is_cancelled() {
        let pause = match turn(&shared).await {
            Ok(pause) => {
                if failures.succeeded(Instant::now()) {
                    tracing::info!("admitting messages works again");
                }
                pause
            }
            Err(error) => {
                if failures.failed(Instant::now()) {
                    tracing::warn!(%error, "admitting messages failed; retrying");
                }
                AFTER_FAILURE
            }
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
            () = shared.admission_work.notified(), if pause > URGENT_EVERY => {}
        }
    }
}

/// Releases the messages that may be sent now; returns the time until the next turn.
async fn turn(shared: &WorkerContext) -> Result<Duration, Error> {
    if shared.is_halted() {
        return Ok(IDLE);
    }
    let busy = shared.admissions.lock().busy();
    if busy.is_empty() {
        return Ok(IDLE);
    }
    release_urgent(shared, &busy).await?;
    let planned = shared.admissions.lock().plan(Instant::now(), MAX_RELEASED);
    if !planned.is_empty() {
        let asks = planned.iter().map(|one| AcquireRequest {
            holder: None,
            ..one.ask.clone()
        });
        let asks: Vec<AcquireRequest> = asks.collect();
        let answers = join_all(asks.iter().map(|ask| shared.throttles.acquire(ask))).await;
        let now = Instant::now();
        {
            let mut scheduler = shared.admissions.lock();
            for (one, answer) in planned.iter().zip(&answers) {
                scheduler.answered(one, answer, now);
            }
        }
        release_granted(shared, &planned, &answers).await?;
    }
    let now = Instant::now();
    let due = shared.admissions.lock().next_due(now);
    let pause = due.map_or(IDLE, |at| at.saturating_duration_since(now));
    Ok(pause.clamp(MIN_SLEEP, URGENT_EVERY))
}

/// A lane with granted tokens.
struct Slots {
    throttle: Name,
    key: String,
    claim: LaneClaim,
}

async fn release_granted(
    shared: &WorkerContext,
    planned: &[PlannedAcquire],
    answers: &[AcquireResponse],
) -> Result<(), Error> {
    let mut granted: Vec<Slots> = Vec::new();
    {
        let mut scheduler = shared.admissions.lock();
        for (one, answer) in planned.iter().zip(answers) {
            let lanes = one.lanes.iter().zip(&one.ask.lanes).zip(&answer.lanes);
            for ((lane, wanted), grant) in lanes.filter(|(_, grant)| grant.granted > 0) {
                granted.push(Slots {
                    throttle: one.ask.throttle.clone(),
                    key: wanted.key.clone(),
                    claim: scheduler.release(*lane, grant.granted),
                });
            }
        }
    }
    if granted.is_empty() {
        return Ok(());
    }
    let asked_at = Instant::now();
    let claims: Vec<LaneClaim> = granted.iter().map(|one| one.claim).collect();
    let released = match carry_out(shared, &claims, false).await {
        Ok(released) => released,
        Err(error) => {
            // The statement may have succeeded although its answer was lost, so the tokens count as
            // spent: no window ever exceeds its limit.
            let mut scheduler = shared.admissions.lock();
            claims.iter().for_each(|claim| scheduler.unclaimed(claim));
            return Err(error);
        }
    };
    let mut unused = Vec::new();
    {
        let mut scheduler = shared.admissions.lock();
        for one in &granted {
            let lane = one.claim.lane_id;
            let places = released.places.get(&lane).map_or(&[][..], Vec::as_slice);
            scheduler.claimed(&one.claim, places, false, asked_at);
            // None of them runs yet.
            places.iter().for_each(|_| scheduler.ended(lane));
            let left = one.claim.jobs - places.len() as i32;
            if left > 0 {
                unused.push((one, left));
            }
        }
    }
    for (one, left) in unused {
        let tokens = [(one.key.as_str(), -f64::from(left))];
        // A lost return only delays the next message for a moment.
        if let Err(error) = shared.throttles.settle_many(&one.throttle, &tokens).await {
            tracing::debug!(throttle.name = %one.throttle, %error, "returning unused slots failed");
        }
    }
    Ok(())
}

/// Releases critical messages at once, as far as the tenant's limit of them allows. They count in
/// the tenant's windows like all others. A limit that has refused one is not asked for the tenant's
/// other modules: it would be asked for thousands of them ten times a second.
async fn release_urgent(shared: &WorkerContext, busy: &[(i64, Name, String)]) -> Result<(), Error> {
    let lanes: Vec<i64> = busy.iter().map(|(lane, ..)| *lane).collect();
    let urgent = bounded(shared, shared.queue.urgent_in(&lanes)).await?;
    let senders: HashMap<i64, (&Name, &str)> = busy
        .iter()
        .map(|(lane, throttle, module)| (*lane, (throttle, module.as_str())))
        .collect();
    let mut used_up: HashSet<Name> = HashSet::new();
    for (lane, jobs) in urgent {
        let Some((throttle, module)) = senders.get(&lane).copied() else {
            continue;
        };
        let Some(limit) = tenant_of(throttle.as_str()).and_then(critical_throttle_of) else {
            continue;
        };
        if used_up.contains(&limit) {
            continue;
        }
        let ask = AcquireRequest {
            throttle: limit.clone(),
            lanes: vec![LaneRequest {
                want: jobs as u32,
                ..LaneRequest::default()
            }],
            holder: None,
        };
        let answer = shared.throttles.acquire(&ask).await;
        // Without the store nobody can count, and a critical message must not wait for it.
        let granted = match answer.is_decided() {
            false => jobs as u32,
            true => answer.lanes.first().map_or(0, |lane| lane.granted),
        };
        if granted < jobs as u32 {
            used_up.insert(limit.clone());
        }
        if granted == 0 {
            continue;
        }
        let claim = LaneClaim::first(lane, granted as i32);
        let released = carry_out(shared, &[claim], true).await?;
        let went = released.own_lanes.len() as u32;
        if !answer.is_decided() {
            continue;
        }
        let charge = [(module, f64::from(went))];
        let left = [("", -f64::from(granted - went))];
        for (name, tokens) in [(throttle, &charge), (&limit, &left)] {
            if tokens[0].1 != 0.0
                && let Err(error) = shared.throttles.settle_many(name, tokens).await
            {
                tracing::debug!(throttle.name = %name, %error, "counting critical messages failed");
            }
        }
    }
    Ok(())
}

async fn carry_out(
    shared: &WorkerContext,
    claims: &[LaneClaim],
    only_urgent: bool,
) -> Result<Released, Error> {
    let worker_id = shared.worker_id.load(Ordering::Acquire);
    let released = bounded(shared, shared.queue.release(worker_id, claims, only_urgent)).await?;
    if !released.own_lanes.is_empty() {
        shared
            .metrics
            .admitted
            .inc_by(released.own_lanes.len() as u64);
        shared.notifier.notify(&released.own_lanes);
    }
    Ok(released)
}
