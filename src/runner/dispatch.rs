//! The dispatcher: permits, then tokens, then claim.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::discover::Discovery;
use super::execute::execute;
use super::hold_reports::{report_holds, report_until_stopped};
use super::lane_scheduler::{LaneScheduler, PlannedAcquire};
use super::metrics::AttemptLabels;
use super::running::StopReason;
use super::shared::{WorkerContext, bounded, postgres_timeout};
use crate::jobs::{Claimed, Error, LaneClaim, LaneCursor};
use crate::throttle::{AcquireResponse, Grant, Limit, Name, OverLimit, Refund};

/// Pause length above which producers are asked to ring.
const NAP: Duration = Duration::from_millis(40);

/// Longest time between two looks of an idle dispatcher, for jobs whose producers cannot ring.
const IDLE_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Rings per second above which the dispatcher asks producers not to ring and looks by itself.
const MAX_RINGS: u32 = 200;

/// Pause after a failure of Postgres.
const AFTER_FAILURE: Duration = Duration::from_millis(250);

/// Interval of upkeep while everything is paused or no permit is free.
const STANDSTILL: Duration = Duration::from_millis(500);

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

/// Most claimed jobs whose end is not written yet, as a multiple of the jobs that may run at once;
/// beyond it the dispatcher waits for Postgres.
const UNWRITTEN: usize = 4;

/// Most claims under way at once: while Postgres carries one out, the next is prepared and the jobs
/// of the last one start.
const CLAIMS: usize = 3;

/// A grant for one lane, with its ask and its claim.
struct Granted {
    throttle: Name,
    key: String,
    grant: Grant,
    cost: f64,
    /// The highest cost charged for one job, in tokens.
    max_cost: f64,
    claim: LaneClaim,
}

/// A claim, carried out or failed.
struct Claim {
    granted: Vec<Granted>,
    asked_at: Instant,
    took: Duration,
    taken: Result<HashMap<i64, ClaimedLane>, Error>,
    dropped: Vec<i64>,
}

/// Lanes whose ready jobs are to be dropped, and the newest job that existed when tokens were asked
/// for.
#[derive(Default)]
struct Drops {
    lanes: Vec<i64>,
    newest: i64,
}

/// The jobs taken from a lane.
#[derive(Default)]
struct ClaimedLane {
    places: Vec<LaneCursor>,
    cost: f64,
    is_dry: bool,
}

/// The dispatcher's state between two turns.
struct DispatcherState {
    board: LaneScheduler,
    claims: JoinSet<Claim>,
    /// Granted jobs whose claim is under way.
    granted: usize,
    discovery: Discovery,
    /// Estimated time to claim at the head of a lane, in seconds.
    head_cost_s: f64,
    rings: (Instant, u32),
    loud_until: Instant,
    rung_for_until: Instant,
}

/// The steps by which a dispatcher is stopped.
#[derive(Clone, Default)]
pub(super) struct Stopping {
    /// Fires when the dispatcher must claim nothing more.
    pub(super) asked: CancellationToken,
    /// Fires when the dispatcher must no longer wait for claims under way.
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
    let mut desk = DispatcherState {
        board: LaneScheduler::new(shared.holder.clone(), shared.config.ttl),
        claims: JoinSet::new(),
        granted: 0,
        discovery: Discovery::new(now),
        head_cost_s: 0.0,
        rings: (now, 0),
        loud_until: now,
        rung_for_until: now,
    };
    tokio::select! {
        () = stopping.hurried.cancelled() => {}
        () = serve_lanes(&shared, &mut desk, &stopping.asked) => {}
    }
    // Jobs of a claim still under way are found by their lease when the worker signs off.
    desk.claims.shutdown().await;
    drop(settled);
    report_until_stopped(&shared, &mut desk.board, &stopping.over).await;
}

/// Takes turns until cancelled, then waits for the claims under way.
async fn serve_lanes(
    shared: &Arc<WorkerContext>,
    desk: &mut DispatcherState,
    cancel: &CancellationToken,
) {
    let mut failing = false;
    while !cancel.is_cancelled() {
        match turn(shared, desk, cancel).await {
            Ok(()) => failing = false,
            Err(error) => {
                if !failing {
                    tracing::warn!(%error, "dispatching failed; retrying");
                }
                failing = true;
                tokio::select! {
                    () = cancel.cancelled() => {}
                    () = tokio::time::sleep(AFTER_FAILURE) => {}
                }
            }
        }
    }
    // The jobs of these claims become this worker's to run or to give back.
    while !desk.claims.is_empty() {
        report_holds(shared, &mut desk.board).await;
        tokio::select! {
            Some(done) = desk.claims.join_next() => {
                if let Err(error) = settle(shared, desk, done).await {
                    tracing::debug!(%error, "the last claim failed");
                }
            }
            () = tokio::time::sleep(STANDSTILL) => {}
        }
    }
}

async fn turn(
    shared: &Arc<WorkerContext>,
    desk: &mut DispatcherState,
    cancel: &CancellationToken,
) -> Result<(), Error> {
    while let Some(done) = desk.claims.try_join_next() {
        settle(shared, desk, done).await?;
    }
    report_holds(shared, &mut desk.board).await;
    let permits = permits(shared, desk);
    if permits == 0 || desk.claims.len() >= CLAIMS {
        tokio::select! {
            () = cancel.cancelled() => {}
            Some(done) = desk.claims.join_next() => settle(shared, desk, done).await?,
            () = shared.running.ended.notified(), if permits == 0 => {}
            () = tokio::time::sleep(STANDSTILL) => {}
        }
        return Ok(());
    }
    look(shared, desk).await?;
    let now = Instant::now();
    for (throttle, until) in shared.strangers.resting(now) {
        desk.board.rest(&throttle, until);
    }
    if serve(shared, desk, permits).await {
        return Ok(());
    }
    rest(shared, desk, cancel).await
}

/// Returns the number of jobs that may be claimed now.
fn permits(shared: &WorkerContext, desk: &DispatcherState) -> usize {
    if shared.paused.load(Ordering::Relaxed) || shared.fenced.load(Ordering::SeqCst) {
        return 0;
    }
    let most = shared.config.concurrency;
    let unwritten = shared.unwritten.load(Ordering::Acquire);
    let free = most
        .saturating_sub(shared.running.len())
        .min((UNWRITTEN * most).saturating_sub(unwritten));
    free.saturating_sub(desk.granted).min(shared.config.batch)
}

async fn look(shared: &WorkerContext, desk: &mut DispatcherState) -> Result<(), Error> {
    let rung = shared.bell.take();
    let now = Instant::now();
    if now.duration_since(desk.rings.0) > Duration::from_secs(1) {
        desk.rings = (now, 0);
    }
    desk.rings.1 += rung.times;
    if desk.rings.1 > MAX_RINGS {
        desk.loud_until = now + Duration::from_secs(1);
        if now < desk.rung_for_until {
            desk.rung_for_until = now;
            bounded(shared, shared.queue.wake_up()).await?;
        }
    }
    let owned = shared.shards.load(Ordering::Relaxed);
    desk.discovery
        .look(
            shared,
            &mut desk.board,
            rung,
            owned,
            now < desk.rung_for_until,
        )
        .await
}

/// Asks for tokens and starts a claim for the grants; returns false if there was nothing to ask
/// for.
async fn serve(shared: &Arc<WorkerContext>, desk: &mut DispatcherState, permits: usize) -> bool {
    let asked = desk.board.plan(Instant::now(), permits);
    if asked.is_empty() {
        shared.able();
        return false;
    }
    // Only jobs that existed before the ask can have been refused by its answer.
    let newest = match asked.iter().any(|one| one.drops) {
        true => bounded(shared, shared.queue.newest_job()).await.ok(),
        false => None,
    };
    let answers = join_all(asked.iter().map(|one| shared.throttles.acquire(&one.ask))).await;
    if answers.iter().any(lets_serve) {
        shared.able();
    }
    let now = Instant::now();
    for (one, answer) in asked.iter().zip(&answers) {
        desk.board.answered(one, answer, now);
    }
    let drops = Drops {
        lanes: newest
            .map(|_| over_limit(desk, &asked, &answers))
            .unwrap_or_default(),
        newest: newest.unwrap_or(0),
    };
    let granted = granted(shared, desk, asked, answers, now);
    if !granted.is_empty() || !drops.lanes.is_empty() {
        desk.granted += jobs(&granted);
        desk.claims.spawn(claim(shared.clone(), granted, drops));
    }
    true
}

/// Returns the lanes that were granted less than they wanted by a throttle that drops. Jobs of a
/// stopped or paused throttle, or of a store that cannot be reached, wait all the same.
fn over_limit(
    desk: &DispatcherState,
    asked: &[PlannedAcquire],
    answers: &[AcquireResponse],
) -> Vec<i64> {
    let is_over = |grant: &Grant| {
        matches!(
            grant.limit,
            Some(Limit::Key | Limit::Throttle | Limit::Tier { .. } | Limit::Concurrency { .. })
        )
    };
    let all = asked
        .iter()
        .zip(answers)
        .filter(|(one, answer)| one.drops && answer.over_limit == OverLimit::Drop);
    let lanes = all.flat_map(|(one, answer)| one.lanes.iter().zip(&answer.lanes));
    let over = lanes.filter(|(lane, grant)| is_over(grant) && desk.board.is_unclaimed(**lane));
    over.map(|(lane, _)| *lane).collect()
}

/// Returns true if the store answered, or let jobs through although it could not be reached.
fn lets_serve(answer: &AcquireResponse) -> bool {
    answer.at_us > 0 || answer.lanes.iter().any(|lane| lane.granted > 0)
}

fn granted(
    shared: &WorkerContext,
    desk: &mut DispatcherState,
    asked: Vec<PlannedAcquire>,
    answers: Vec<AcquireResponse>,
    now: Instant,
) -> Vec<Granted> {
    let all_heads = Duration::from_secs_f64(desk.head_cost_s * desk.board.due() as f64 * HEAD_DUTY);
    let head_every = all_heads.clamp(MIN_HEAD_EVERY, MAX_HEAD_EVERY);
    let mut granted = Vec::new();
    for (one, answer) in asked.into_iter().zip(answers) {
        let (throttle, max_cost) = (one.ask.throttle, answer.max_cost);
        for ((lane, wanted), grant) in one.lanes.into_iter().zip(one.ask.lanes).zip(answer.lanes) {
            if grant.granted > 0 {
                shared.answers.watch(lane, grant.watched);
                let claim = desk.board.claim(lane, grant.granted, now, head_every);
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

fn jobs(granted: &[Granted]) -> usize {
    granted.iter().map(|one| one.grant.granted as usize).sum()
}

/// Claims the granted jobs and starts them, then drops the jobs over the limit.
async fn claim(shared: Arc<WorkerContext>, granted: Vec<Granted>, drops: Drops) -> Claim {
    let asked_at = Instant::now();
    let mut claim = claim_granted(&shared, granted, asked_at).await;
    if claim.taken.is_ok() && !drops.lanes.is_empty() {
        match drop_ready(&shared, &drops).await {
            Ok(()) => claim.dropped = drops.lanes,
            // Their lanes are asked for again, and the jobs are refused again.
            Err(error) => tracing::debug!(%error, "dropping jobs over the limit failed"),
        }
    }
    claim
}

async fn drop_ready(shared: &WorkerContext, drops: &Drops) -> Result<(), Error> {
    let worker_id = shared.worker_id.load(Ordering::Acquire);
    loop {
        let dropped = bounded(
            shared,
            shared
                .queue
                .drop_ready(worker_id, &drops.lanes, drops.newest),
        )
        .await?;
        for (kind, jobs) in &dropped {
            shared
                .metrics
                .finished
                .get_or_create(&AttemptLabels {
                    kind: kind.clone(),
                    outcome: "dropped",
                })
                .inc_by(*jobs);
        }
        if dropped.is_empty() {
            return Ok(());
        }
    }
}

async fn claim_granted(
    shared: &Arc<WorkerContext>,
    granted: Vec<Granted>,
    asked_at: Instant,
) -> Claim {
    if granted.is_empty() {
        return Claim {
            granted,
            asked_at,
            took: Duration::ZERO,
            taken: Ok(HashMap::new()),
            dropped: Vec::new(),
        };
    }
    let lanes: Vec<LaneClaim> = granted.iter().map(|one| one.claim).collect();
    let worker_id = shared.worker_id.load(Ordering::Acquire);
    let fence = rand::random::<i64>() & i64::MAX;
    let claimed = bounded(
        shared,
        shared.queue.claim_and_look(worker_id, fence, &lanes),
    )
    .await;
    let took = asked_at.elapsed();
    // A process that slept sees the answer and its timeout at once, and by then the leases may
    // belong to other workers.
    let is_late = took > postgres_timeout(shared) || !shared.is_in_force(worker_id);
    let claimed = claimed.and_then(|claimed| match is_late {
        true => Err(Error::Lost(
            "a claim was answered too late to start its jobs".to_owned(),
        )),
        false => Ok(claimed),
    });
    let most: HashMap<i64, f64> = granted
        .iter()
        .map(|one| (one.claim.lane_id, one.max_cost))
        .collect();
    let taken = claimed.map(|mut batch| {
        reject_misplaced(&granted, &mut batch.jobs);
        let mut taken: HashMap<i64, ClaimedLane> = HashMap::with_capacity(lanes.len());
        for one in &mut batch.jobs {
            // A job enqueued with more than the highest cost is charged, and refunded, at most that
            // cost.
            one.job.cost = most
                .get(&one.lane_id)
                .map_or(one.job.cost, |most| one.job.cost.min(*most));
            let lane = taken.entry(one.lane_id).or_default();
            lane.places.push(LaneCursor {
                priority: one.job.priority as i16,
                job_id: one.job.id,
            });
            lane.cost += one.job.cost;
        }
        for lane in &batch.dry {
            taken.entry(*lane).or_default().is_dry = true;
        }
        start(shared, batch.jobs, worker_id, fence);
        taken
    });
    if taken.is_err() {
        // The claim may have been carried out although its answer was lost.
        shared.doubts.note(worker_id, fence);
    }
    Claim {
        granted,
        asked_at,
        took,
        taken,
        dropped: Vec::new(),
    }
}

/// Marks jobs that stand in another lane than their own. A lane is identified by 64 bits of a hash,
/// for which a collision can be searched: the tokens were granted to one of the two lanes, and a
/// job of the other must not run on them.
fn reject_misplaced(granted: &[Granted], jobs: &mut [Claimed]) {
    let lanes: HashMap<i64, &Granted> =
        granted.iter().map(|one| (one.claim.lane_id, one)).collect();
    for one in jobs.iter_mut().filter(|one| one.unreadable.is_none()) {
        let Some(lane) = lanes.get(&one.lane_id) else {
            continue;
        };
        if one.job.throttle != lane.throttle.as_str() || one.job.key != lane.key {
            one.unreadable = Some(format!(
                "its lane has the number of another lane, key {:?} of throttle {}; enqueue it with another key",
                lane.key, lane.throttle
            ));
        }
    }
}

/// Starts the claimed jobs.
fn start(shared: &Arc<WorkerContext>, claimed: Vec<Claimed>, worker_id: i32, fence: i64) {
    shared.metrics.claimed.inc_by(claimed.len() as u64);
    shared.unwritten.fetch_add(claimed.len(), Ordering::AcqRel);
    let tokens = shared
        .running
        .begin(claimed.iter().map(|one| ((one.job.id, fence), one.lane_id)));
    if !shared.is_in_force(worker_id) {
        // The worker was fenced after the last check, and these jobs may have come too late to be
        // stopped with the others.
        shared.running.stop_all(StopReason::Fenced);
    }
    for (one, token) in claimed.into_iter().zip(tokens) {
        shared.tasks.spawn(execute(shared.clone(), one, token));
    }
    shared.metrics.running.set(shared.running.len() as i64);
}

/// Records the result of a claim, refunds unused tokens, and settles the difference between the
/// jobs' cost and the estimate.
async fn settle(
    shared: &WorkerContext,
    desk: &mut DispatcherState,
    done: Result<Claim, JoinError>,
) -> Result<(), Error> {
    // Nothing in a claim panics; if it did, its jobs would be found by their lease.
    let claim = done.map_err(|error| Error::Lost(format!("a claim was aborted: {error}")))?;
    desk.granted -= jobs(&claim.granted);
    let taken = match claim.taken {
        Ok(taken) => taken,
        Err(error) => {
            for one in &claim.granted {
                desk.board.unclaimed(&one.claim);
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
        desk.head_cost_s +=
            (claim.took.as_secs_f64() / heads as f64 - desk.head_cost_s) * HEAD_WEIGHT;
    }
    let none = ClaimedLane::default();
    let mut unused = Vec::new();
    let mut differences: HashMap<&Name, Vec<(&str, f64)>> = HashMap::new();
    for one in &claim.granted {
        let lane = taken.get(&one.claim.lane_id).unwrap_or(&none);
        desk.board
            .claimed(&one.claim, &lane.places, lane.is_dry, claim.asked_at);
        let jobs = lane.places.len() as u32;
        if jobs < one.grant.granted {
            unused.push((one, one.grant.granted - jobs));
        }
        let difference = lane.cost - f64::from(jobs) * one.cost;
        if jobs > 0 && difference.abs() > 1e-9 {
            desk.board
                .learn_cost(one.claim.lane_id, lane.cost / f64::from(jobs));
            differences
                .entry(&one.throttle)
                .or_default()
                .push((&one.key, difference));
        }
    }
    for lane in &claim.dropped {
        desk.board.dropped(*lane, claim.asked_at);
    }
    refund(shared, unused).await;
    for (throttle, tokens) in differences {
        if let Err(error) = shared.throttles.settle_many(throttle, &tokens).await {
            tracing::debug!(throttle.name = %throttle, %error, "settling costs failed");
        }
    }
    Ok(())
}

async fn refund(shared: &WorkerContext, unused: Vec<(&Granted, u32)>) {
    let mut by_throttle: HashMap<&Name, Vec<Refund<'_>>> = HashMap::new();
    for (one, units) in unused {
        if one.grant.watched {
            shared
                .answers
                .unused(one.claim.lane_id, &one.throttle, &one.key, units);
        }
        let refund = Refund {
            key: &one.key,
            grant: &one.grant,
            units,
            cost: one.cost,
        };
        by_throttle.entry(&one.throttle).or_default().push(refund);
    }
    for (throttle, refunds) in by_throttle {
        // A lost refund only slows the throttle for a moment.
        if let Err(error) = shared.throttles.refund_many(throttle, &refunds).await {
            tracing::debug!(throttle.name = %throttle, %error, "returning unused tokens failed");
        }
    }
}

/// Sleeps until a lane or a look is due, a claim is done, or the bell rings. Before a longer sleep
/// it asks producers to ring and looks for new jobs once more, so that none enqueued in between is
/// missed.
async fn rest(
    shared: &WorkerContext,
    desk: &mut DispatcherState,
    cancel: &CancellationToken,
) -> Result<(), Error> {
    desk.discovery.guests(shared, &mut desk.board).await?;
    let now = Instant::now();
    let due = desk.board.next_due(now);
    if due.is_some_and(|at| at <= now) {
        return Ok(());
    }
    let may_sleep =
        desk.claims.is_empty() && now >= desk.loud_until && due.is_none_or(|at| at > now + NAP);
    if may_sleep && now >= desk.rung_for_until {
        bounded(shared, shared.queue.fall_asleep()).await?;
        // Another worker may ask producers to be quiet again, so this holds for a while only.
        desk.rung_for_until = now + IDLE_LOOK_EVERY;
        desk.discovery
            .arrivals(shared, &mut desk.board, Instant::now())
            .await?;
    }
    let now = Instant::now();
    let until = [
        desk.board.next_due(now),
        Some(desk.discovery.next(now < desk.rung_for_until)),
        Some(now + jittered(IDLE_LOOK_EVERY)),
    ];
    let until = until.into_iter().flatten().min().unwrap_or(now);
    tokio::select! {
        () = cancel.cancelled() => {}
        () = tokio::time::sleep_until(until.into()) => {}
        () = shared.bell.notified() => {}
        Some(done) = desk.claims.join_next() => settle(shared, desk, done).await?,
        () = shared.running.ended.notified(), if desk.board.counts() || desk.board.probes() => {}
    }
    Ok(())
}

fn jittered(every: Duration) -> Duration {
    every.mul_f64(0.8 + rand::random::<f64>() * 0.4)
}
