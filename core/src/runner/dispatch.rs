//! The dispatcher: permits, then tokens, then claim.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::claim::{Claim, ClaimedLane, DroppedLanes, Granted, claim, jobs, refund};
use super::discover::Discovery;
use super::hold_reports::{report_holds, report_until_stopped};
use super::lane_scheduler::{LaneScheduler, LaneTaken, PlannedAcquire};
use super::shared::{WorkerContext, bounded};
use super::slots::EarlyClaims;
use crate::jobs::postgres::within;
use crate::jobs::{Error, LaneCursor};
use crate::service::FailureLog;
use crate::throttle::{AcquireResponse, Grant, Limit, Name, OverLimit};

/// Pause length above which producers are asked to notify.
const NAP: Duration = Duration::from_millis(40);

/// Longest time between two polls of an idle dispatcher, for jobs whose producers cannot notify.
const IDLE_POLL_EVERY: Duration = Duration::from_secs(1);

/// Notifications per second above which the dispatcher asks producers not to notify, and polls.
const MAX_NOTIFICATIONS: u32 = 200;

/// Pause after a failure of Postgres.
const FAILURE_PAUSE: Duration = Duration::from_millis(250);

/// Time for which dispatching must fail before other processes are told.
const TOLD_AFTER: Duration = Duration::from_secs(5);

/// Interval at which they are told again.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Longest wait for the answer to that.
const TELL_WITHIN: Duration = Duration::from_secs(1);

/// Interval of maintenance while everything is paused or no permit is free.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);

/// Interval between claims at the head of a lane, as a multiple of the estimated time to claim at
/// the heads of all due lanes.
const HEAD_DUTY: f64 = 20.0;

/// Weight of the latest sample in the estimated time of a claim at the head of a lane.
const HEAD_WEIGHT: f64 = 0.3;

/// Shortest interval between claims at the head of a lane.
const MIN_HEAD_EVERY: Duration = Duration::from_millis(50);

/// Longest interval between claims at the head of a lane; a job that committed late waits for the
/// next one.
const MAX_HEAD_EVERY: Duration = Duration::from_secs(2);

/// Most claimed jobs whose end is not written yet, as a multiple of the jobs that may be claimed;
/// beyond it the dispatcher waits for Postgres.
const UNWRITTEN: usize = 4;

/// Most concurrent claims: while Postgres carries one out, the next is prepared and the jobs
/// of the last one start.
const CLAIMS: usize = 3;

/// The dispatcher's state between two turns.
struct DispatcherState {
    scheduler: LaneScheduler,
    claims: JoinSet<Claim>,
    /// Granted jobs with a claim in progress.
    granted: usize,
    discovery: Discovery,
    early_claims: EarlyClaims,
    /// Estimated time to claim at the head of a lane, in seconds.
    head_cost_s: f64,
    notifications: (Instant, u32),
    polling_until: Instant,
    notified_until: Instant,
}

/// The steps by which a dispatcher is stopped.
#[derive(Clone, Default)]
pub(super) struct Stopping {
    /// Fires when the dispatcher must claim nothing more.
    pub(super) requested: CancellationToken,
    /// Fires when the dispatcher must no longer wait for claims in progress.
    pub(super) hurried: CancellationToken,
    /// Fires, on the dispatcher's side, when no further job will begin.
    pub(super) settled: CancellationToken,
    /// Fires after the last job has ended, when the dispatcher must send its last reports and end.
    pub(super) over: CancellationToken,
}

pub(super) async fn dispatch(shared: Arc<WorkerContext>, stopping: Stopping) {
    // Fires however this function ends, because the worker waits for it.
    let settled = stopping.settled.clone().drop_guard();
    let now = Instant::now();
    let mut dispatcher = DispatcherState {
        scheduler: LaneScheduler::new(shared.holder.clone(), shared.config.ttl),
        claims: JoinSet::new(),
        granted: 0,
        discovery: Discovery::new(now),
        early_claims: EarlyClaims::new(now),
        head_cost_s: 0.0,
        notifications: (now, 0),
        polling_until: now,
        notified_until: now,
    };
    tokio::select! {
        () = stopping.hurried.cancelled() => {}
        () = serve_lanes(&shared, &mut dispatcher, &stopping.requested) => {}
    }
    // Jobs of a claim still in progress are found by their lease when the worker signs off.
    dispatcher.claims.shutdown().await;
    drop(settled);
    report_until_stopped(&shared, &mut dispatcher.scheduler, &stopping.over).await;
}

/// Takes turns until cancelled, then waits for the claims in progress.
async fn serve_lanes(
    shared: &Arc<WorkerContext>,
    dispatcher: &mut DispatcherState,
    cancel: &CancellationToken,
) {
    let mut failures = FailureLog::default();
    let mut told_at: Option<Instant> = None;
    while !cancel.is_cancelled() {
        match turn(shared, dispatcher, cancel).await {
            // A halted worker asks Postgres for nothing.
            Ok(()) if shared.is_halted() => {}
            // A turn without a claim succeeds while claims fail.
            Ok(()) => {
                if failures.succeeded(Instant::now()) {
                    tracing::info!("dispatching works again");
                }
            }
            Err(error) => {
                let now = Instant::now();
                if failures.failed(now) {
                    tracing::warn!(%error, "dispatching failed; retrying");
                }
                let is_news = told_at.is_none_or(|at| now.duration_since(at) >= TELL_EVERY);
                if is_news && failures.lasted(now) >= TOLD_AFTER {
                    told_at = Some(now);
                    tell_failure(shared, &error).await;
                }
                tokio::select! {
                    () = cancel.cancelled() => {}
                    () = tokio::time::sleep(FAILURE_PAUSE) => {}
                }
            }
        }
    }
    // The jobs of these claims become this worker's to run or to give back.
    while !dispatcher.claims.is_empty() {
        report_holds(shared, &mut dispatcher.scheduler).await;
        tokio::select! {
            Some(done) = dispatcher.claims.join_next() => {
                if let Err(error) = settle(shared, dispatcher, done).await {
                    tracing::debug!(%error, "the last claim failed");
                }
            }
            () = tokio::time::sleep(IDLE_INTERVAL) => {}
        }
    }
}

/// Tells other processes that this worker claims nothing. Its heartbeats have connections of their
/// own and need other tables, so they get through, and it looks healthy.
async fn tell_failure(shared: &WorkerContext, error: &Error) {
    let worker_id = shared.worker_id.load(Ordering::Acquire);
    let error = error.to_string();
    let told = within(
        TELL_WITHIN,
        shared.queue.note_claim_failure(worker_id, &error),
    );
    // Without Postgres everybody sees it anyway.
    if let Err(error) = told.await {
        tracing::debug!(%error, "telling that claims fail failed");
    }
}

async fn turn(
    shared: &Arc<WorkerContext>,
    dispatcher: &mut DispatcherState,
    cancel: &CancellationToken,
) -> Result<(), Error> {
    while let Some(done) = dispatcher.claims.try_join_next() {
        settle(shared, dispatcher, done).await?;
    }
    report_holds(shared, &mut dispatcher.scheduler).await;
    let permits = permits(shared, dispatcher, Instant::now());
    if permits == 0 || dispatcher.claims.len() >= CLAIMS {
        // Messages are admitted without a permit, so their lanes are looked for all the same.
        if permits == 0 && !shared.is_halted() {
            poll(shared, dispatcher).await?;
        }
        tokio::select! {
            () = cancel.cancelled() => {}
            Some(done) = dispatcher.claims.join_next() => settle(shared, dispatcher, done).await?,
            () = shared.running.ended.notified(), if permits == 0 => {}
            () = tokio::time::sleep(IDLE_INTERVAL) => {}
        }
        return Ok(());
    }
    poll(shared, dispatcher).await?;
    if serve(shared, dispatcher, permits).await {
        return Ok(());
    }
    rest(shared, dispatcher, cancel).await
}

/// Returns the number of jobs that may be claimed now.
fn permits(shared: &WorkerContext, dispatcher: &mut DispatcherState, now: Instant) -> usize {
    if shared.is_halted() {
        return 0;
    }
    let unwritten = shared.unwritten.load(Ordering::Acquire);
    if let Some(broker) = &shared.broker {
        // Only as many as remote workers wait for.
        return broker
            .polls
            .wanted()
            .saturating_sub(dispatcher.granted)
            .min(shared.config.batch);
    }
    let early = dispatcher.early_claims.early(shared.slots.completed(), now);
    let most = shared.config.concurrency + early;
    let room = (UNWRITTEN * most).saturating_sub(unwritten);
    if room == 0 {
        shared.room_wanted.notify_one();
    }
    let free = most.saturating_sub(shared.running.len()).min(room);
    free.saturating_sub(dispatcher.granted)
        .min(shared.config.batch)
}

async fn poll(shared: &WorkerContext, dispatcher: &mut DispatcherState) -> Result<(), Error> {
    let woken = shared.notifier.take();
    let now = Instant::now();
    if now.duration_since(dispatcher.notifications.0) > Duration::from_secs(1) {
        dispatcher.notifications = (now, 0);
    }
    dispatcher.notifications.1 += woken.times;
    if woken.unheard {
        dispatcher.notified_until = dispatcher.notified_until.min(now);
    } else if shared.is_quiet() {
        // The poll for due work sees whether producers still notify.
        dispatcher.notified_until = now + IDLE_POLL_EVERY;
    }
    if dispatcher.notifications.1 > MAX_NOTIFICATIONS {
        dispatcher.polling_until = now + Duration::from_secs(1);
        if now < dispatcher.notified_until {
            dispatcher.notified_until = now;
            bounded(shared, shared.queue.wake_up()).await?;
        }
    }
    let owned = shared.shards.load(Ordering::Relaxed);
    dispatcher
        .discovery
        .poll(
            shared,
            &mut dispatcher.scheduler,
            woken,
            owned,
            now < dispatcher.notified_until,
        )
        .await
}

/// Asks for tokens and starts a claim for the grants; returns false if there was nothing to ask
/// for.
async fn serve(
    shared: &Arc<WorkerContext>,
    dispatcher: &mut DispatcherState,
    permits: usize,
) -> bool {
    let planned = dispatcher.scheduler.plan(Instant::now(), permits);
    if planned.is_empty() {
        shared.able();
        return false;
    }
    // Only jobs that existed before the ask can have been refused by its answer.
    let newest = match planned.iter().any(|one| one.drops) {
        true => bounded(shared, shared.queue.newest_job()).await.ok(),
        false => None,
    };
    let answers = join_all(planned.iter().map(|one| shared.throttles.acquire(&one.ask))).await;
    if answers.iter().any(lets_serve) {
        shared.able();
    }
    let now = Instant::now();
    for (one, answer) in planned.iter().zip(&answers) {
        dispatcher.scheduler.answered(one, answer, now);
    }
    let all: Vec<(PlannedAcquire, AcquireResponse)> = planned.into_iter().zip(answers).collect();
    // Only where this worker may not run every job, it looks before it takes.
    let (some, every): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|(one, _)| shared.served.is_partial(one.ask.throttle.as_str(), now));
    for (answered, is_partial) in [(every, false), (some, true)] {
        let drops = DroppedLanes {
            lanes: newest
                .map(|_| over_limit(dispatcher, &answered))
                .unwrap_or_default(),
            newest: newest.unwrap_or(0),
        };
        let granted = granted(shared, dispatcher, answered, is_partial, now);
        if !granted.is_empty() || !drops.lanes.is_empty() {
            dispatcher.granted += jobs(&granted);
            dispatcher
                .claims
                .spawn(claim(shared.clone(), granted, drops, is_partial).boxed());
        }
    }
    true
}

/// Returns the lanes that were granted less than they wanted by a throttle that drops. Jobs of a
/// stopped or paused throttle, or of a store that cannot be reached, wait all the same.
fn over_limit(
    dispatcher: &DispatcherState,
    answered: &[(PlannedAcquire, AcquireResponse)],
) -> Vec<i64> {
    let is_over = |grant: &Grant| {
        matches!(
            grant.limit,
            Some(Limit::Key | Limit::Throttle | Limit::Tier { .. } | Limit::Concurrency { .. })
        )
    };
    let all = answered
        .iter()
        .filter(|(one, answer)| one.drops && answer.over_limit == OverLimit::Drop);
    let lanes = all.flat_map(|(one, answer)| one.lanes.iter().zip(&answer.lanes));
    let over =
        lanes.filter(|(lane, grant)| is_over(grant) && dispatcher.scheduler.is_unclaimed(**lane));
    over.map(|(lane, _)| *lane).collect()
}

/// Returns true if the store answered, or let jobs through although it could not be reached.
fn lets_serve(answer: &AcquireResponse) -> bool {
    answer.at_us > 0 || answer.lanes.iter().any(|lane| lane.granted > 0)
}

fn granted(
    shared: &WorkerContext,
    dispatcher: &mut DispatcherState,
    answered: Vec<(PlannedAcquire, AcquireResponse)>,
    is_partial: bool,
    now: Instant,
) -> Vec<Granted> {
    let all_heads = Duration::from_secs_f64(
        dispatcher.head_cost_s * dispatcher.scheduler.due() as f64 * HEAD_DUTY,
    );
    let head_every = all_heads.clamp(MIN_HEAD_EVERY, MAX_HEAD_EVERY);
    let mut granted = Vec::new();
    for (one, answer) in answered {
        let (throttle, max_cost) = (one.ask.throttle, answer.max_cost);
        for ((lane, wanted), grant) in one.lanes.into_iter().zip(one.ask.lanes).zip(answer.lanes) {
            if grant.granted > 0 {
                shared.answers.watch(lane, grant.watched);
                let (scheduler, jobs) = (&mut dispatcher.scheduler, grant.granted);
                let claim = match is_partial {
                    true => scheduler.claim_some(lane, jobs, now),
                    false => scheduler.claim(lane, jobs, now, head_every),
                };
                granted.push(Granted {
                    throttle: throttle.clone(),
                    key: wanted.key,
                    grant,
                    cost: wanted.cost.min(max_cost),
                    max_cost,
                    claim,
                });
            }
        }
    }
    granted
}

/// Records the result of a claim, refunds unused tokens, and settles the difference between the
/// jobs' cost and the estimate.
async fn settle(
    shared: &WorkerContext,
    dispatcher: &mut DispatcherState,
    done: Result<Claim, JoinError>,
) -> Result<(), Error> {
    let claim = match done {
        Ok(claim) => claim,
        // Nothing in a claim panics. If one did, its jobs would count as granted and its lanes as
        // in use for ever, so this loop ends too, and the worker with it.
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(error) => {
            dispatcher.scheduler.retry_first_claims();
            return Err(Error::Lost(format!("a claim was aborted: {error}")));
        }
    };
    dispatcher.granted -= jobs(&claim.granted);
    let taken = match claim.taken {
        Ok(taken) => taken,
        Err(error) => {
            for one in &claim.granted {
                dispatcher.scheduler.unclaimed(&one.claim);
            }
            refund(
                shared,
                claim
                    .granted
                    .iter()
                    .map(|one| (one, one.grant.granted))
                    .collect(),
            )
            .await;
            return Err(error);
        }
    };
    let heads = claim
        .granted
        .iter()
        .filter(|one| one.claim.after == LaneCursor::default())
        .count();
    if heads > 0 {
        dispatcher.head_cost_s +=
            (claim.took.as_secs_f64() / heads as f64 - dispatcher.head_cost_s) * HEAD_WEIGHT;
    }
    let none = ClaimedLane::default();
    let mut unused = Vec::new();
    let mut differences: HashMap<&Name, Vec<(&str, f64)>> = HashMap::new();
    for one in &claim.granted {
        let lane = taken.get(&one.claim.lane_id).unwrap_or(&none);
        let taken = LaneTaken {
            places: &lane.places,
            put_back: lane.put_back,
            is_dry: lane.is_dry,
            walk: lane.walk.as_ref(),
        };
        dispatcher
            .scheduler
            .took(&one.claim, &taken, claim.asked_at);
        let jobs = lane.places.len() as u32;
        if jobs > 0 {
            shared.queue.activity().note(Instant::now());
        }
        if jobs < one.grant.granted {
            unused.push((one, one.grant.granted - jobs));
        }
        let difference = lane.cost - f64::from(jobs) * one.cost;
        if jobs > 0 && difference.abs() > 1e-9 {
            dispatcher
                .scheduler
                .learn_cost(one.claim.lane_id, lane.cost / f64::from(jobs));
            differences
                .entry(&one.throttle)
                .or_default()
                .push((&one.key, difference));
        }
    }
    for lane in &claim.dropped {
        dispatcher.scheduler.dropped(*lane, claim.asked_at);
    }
    refund(shared, unused).await;
    for (throttle, tokens) in differences {
        if let Err(error) = shared.throttles.settle_many(throttle, &tokens).await {
            tracing::debug!(throttle.name = %throttle, %error, "settling costs failed");
        }
    }
    Ok(())
}

/// Sleeps until a lane or a poll is due, a claim is done, or the notifier wakes it. Before a longer
/// sleep it asks producers to notify and polls for new jobs once more, so that none enqueued in
/// between is missed.
async fn rest(
    shared: &WorkerContext,
    dispatcher: &mut DispatcherState,
    cancel: &CancellationToken,
) -> Result<(), Error> {
    dispatcher
        .discovery
        .guests(shared, &mut dispatcher.scheduler)
        .await?;
    let now = Instant::now();
    let due = dispatcher.scheduler.next_due(now);
    if due.is_some_and(|at| at <= now) {
        return Ok(());
    }
    // A broker rests only while a claim waits, and polls for jobs instead of listening, which would
    // take a connection.
    let may_sleep = shared.broker.is_none()
        && dispatcher.claims.is_empty()
        && now >= dispatcher.polling_until
        && due.is_none_or(|at| at > now + NAP);
    if may_sleep && now >= dispatcher.notified_until {
        bounded(shared, shared.queue.fall_asleep()).await?;
        // Another worker may ask producers to be quiet again, so this holds for a while only.
        dispatcher.notified_until = now + IDLE_POLL_EVERY;
        dispatcher
            .discovery
            .arrivals(shared, &mut dispatcher.scheduler, Instant::now())
            .await?;
    }
    let now = Instant::now();
    let until = [
        dispatcher.scheduler.next_due(now),
        Some(dispatcher.discovery.next(now < dispatcher.notified_until)),
        Some(now + jittered(IDLE_POLL_EVERY)),
    ];
    let until = until.into_iter().flatten().min().unwrap_or(now);
    tokio::select! {
        () = cancel.cancelled() => {}
        () = tokio::time::sleep_until(until.into()) => {}
        () = shared.notifier.notified() => {}
        Some(done) = dispatcher.claims.join_next() => settle(shared, dispatcher, done).await?,
        () = shared.running.ended.notified(), if dispatcher.scheduler.counts() || dispatcher.scheduler.probes() => {}
    }
    Ok(())
}

fn jittered(every: Duration) -> Duration {
    every.mul_f64(0.8 + rand::random::<f64>() * 0.4)
}
