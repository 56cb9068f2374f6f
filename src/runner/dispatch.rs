//! The dispatcher: permits, then tokens, then claim.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::board::{Asked, Board};
use super::execute::execute;
use super::worker::Shared;
use crate::jobs::Error;
use crate::jobs::postgres::{Claimed, LaneClaim};
use crate::throttle::{Answer, Grant, Name};

/// The queue is looked over at least this often while there is work, so that new lanes are found.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// And this often when there is none: producers ring then.
const IDLE_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Looking may take at most one part in this many of the time.
const LOOK_DUTY: u32 = 20;

/// Shorter pauses are slept through without asking producers to ring.
const NAP: Duration = Duration::from_millis(50);

/// How long to leave Postgres alone after it failed.
const AFTER_FAILURE: Duration = Duration::from_millis(250);

/// Longest wait for an answer to a claim or a look; at most half the worker's time to live.
const PATIENCE: Duration = Duration::from_secs(15);

/// A grant for one lane, with what it was granted by.
struct Granted {
    throttle: Name,
    key: String,
    lane: i64,
    grant: Grant,
    cost: f64,
}

pub(super) async fn dispatch(shared: Arc<Shared>, cancel: CancellationToken) {
    let mut board = Board::default();
    let mut next_look = Instant::now();
    let mut failing = false;
    while !cancel.is_cancelled() {
        let permits = shared.config.concurrency.saturating_sub(shared.running.len());
        if permits == 0 {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = shared.running.ended.notified() => {}
            }
            continue;
        }
        let turn = async {
            if Instant::now() >= next_look {
                next_look = look(&shared, &mut board).await?;
            }
            serve(&shared, &mut board, permits).await
        };
        match turn.await {
            Ok(served) => {
                failing = false;
                if !served {
                    next_look = rest(&shared, &mut board, next_look, &cancel).await;
                }
            }
            Err(error) => {
                if !failing {
                    tracing::warn!(%error, "dispatching is interrupted; it will be tried again");
                }
                failing = true;
                next_look = Instant::now();
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = tokio::time::sleep(AFTER_FAILURE) => {}
                }
            }
        }
    }
}

/// Looks which lanes have work; when to look next.
async fn look(shared: &Shared, board: &mut Board) -> Result<Instant, Error> {
    let begun = Instant::now();
    board.refresh(bounded(shared, shared.queue.ready_lanes()).await?);
    let took = begun.elapsed();
    Ok(Instant::now() + LOOK_EVERY.max(took * LOOK_DUTY))
}

/// Asks for tokens and claims what was granted; false if nobody could be asked for anything.
async fn serve(shared: &Arc<Shared>, board: &mut Board, permits: usize) -> Result<bool, Error> {
    let asked = board.plan(Instant::now(), permits);
    if asked.is_empty() {
        return Ok(false);
    }
    let answers = join_all(asked.iter().map(|one| shared.throttles.acquire(&one.ask))).await;
    let now = Instant::now();
    for (one, answer) in asked.iter().zip(&answers) {
        board.answered(one, answer, now);
    }
    let granted = granted(asked, answers);
    if granted.is_empty() {
        return Ok(true);
    }
    let lanes: Vec<LaneClaim> =
        granted.iter().map(|one| LaneClaim { lane_id: one.lane, jobs: one.grant.granted as i32 }).collect();
    let worker_id = shared.worker_id.load(Ordering::Acquire);
    let fence = rand::random::<i64>() & i64::MAX;
    let claimed = match bounded(shared, shared.queue.claim(worker_id, fence, &lanes)).await {
        Ok(claimed) => claimed,
        Err(error) => {
            // The claim may have been carried out although its answer got lost.
            shared.doubts.note(worker_id, fence);
            for one in &granted {
                refund(shared, one, one.grant.granted).await;
            }
            return Err(error);
        }
    };
    shared.metrics.claimed.inc_by(claimed.len() as u64);
    account(shared, board, &granted, &claimed).await;
    for one in claimed {
        let token = shared.running.begin((one.job.id, fence));
        shared.tasks.spawn(execute(shared.clone(), one.job, token));
    }
    shared.metrics.running.set(shared.running.len() as i64);
    Ok(true)
}

fn granted(asked: Vec<Asked>, answers: Vec<Answer>) -> Vec<Granted> {
    let mut granted = Vec::new();
    for (one, answer) in asked.into_iter().zip(answers) {
        let throttle = one.ask.throttle;
        for ((lane, wanted), grant) in one.lanes.into_iter().zip(one.ask.lanes).zip(answer.lanes) {
            if grant.granted > 0 {
                granted.push(Granted { throttle: throttle.clone(), key: wanted.key, lane, grant, cost: wanted.cost });
            }
        }
    }
    granted
}

/// Gives back what no job used, and charges what the claimed jobs really cost beyond the estimate.
async fn account(shared: &Shared, board: &mut Board, granted: &[Granted], claimed: &[Claimed]) {
    let mut taken: HashMap<i64, (u32, f64)> = HashMap::new();
    for one in claimed {
        let (jobs, cost) = taken.entry(one.lane_id).or_default();
        *jobs += 1;
        *cost += one.job.cost;
    }
    for one in granted {
        let (jobs, cost) = taken.get(&one.lane).copied().unwrap_or_default();
        if jobs < one.grant.granted {
            refund(shared, one, one.grant.granted - jobs).await;
            board.drained(one.lane);
        }
        if jobs > 0 {
            let difference = cost - f64::from(jobs) * one.cost;
            if difference.abs() > 1e-9 {
                board.learn_cost(one.lane, cost / f64::from(jobs));
                if let Err(error) = shared.throttles.settle(&one.throttle, &one.key, difference).await {
                    tracing::debug!(throttle.name = %one.throttle, %error, "a cost could not be settled");
                }
            }
        }
    }
}

async fn refund(shared: &Shared, one: &Granted, units: u32) {
    // A refund that gets lost only makes the throttle slower for a moment.
    if let Err(error) = shared.throttles.refund(&one.throttle, &one.key, &one.grant, units, one.cost).await {
        tracing::debug!(throttle.name = %one.throttle, %error, "unused tokens could not be given back");
    }
}

/// Sleeps until a lane is due, a look is due, or somebody rings. Before a longer sleep, producers are asked to ring, and the
/// queue is looked over once more, so that nobody who came in between is missed.
async fn rest(shared: &Shared, board: &mut Board, next_look: Instant, cancel: &CancellationToken) -> Instant {
    let now = Instant::now();
    let idle = board.is_empty();
    let look_at = if idle { next_look.max(now + jittered(IDLE_LOOK_EVERY)) } else { next_look };
    let until = board.next_due(now).map_or(look_at, |due| due.min(look_at));
    if until > now + NAP {
        // Both statements may fail while Postgres is away; the loop will find out with its next look.
        let _ = bounded(shared, shared.queue.fall_asleep()).await;
        match bounded(shared, shared.queue.ready_lanes()).await {
            Ok(lanes) => {
                board.refresh(lanes);
                if board.next_due(now).is_some_and(|due| due <= now + NAP) {
                    let _ = bounded(shared, shared.queue.wake_up()).await;
                    return look_at;
                }
            }
            Err(_) => return Instant::now(),
        }
    }
    tokio::select! {
        () = cancel.cancelled() => look_at,
        () = tokio::time::sleep_until(until.into()) => look_at,
        () = shared.bell.notified() => {
            let _ = bounded(shared, shared.queue.wake_up()).await;
            Instant::now()
        }
    }
}

/// A connection can hang without a word, and the dispatcher must not hang with it.
async fn bounded<T>(shared: &Shared, asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let patience = PATIENCE.min(shared.config.ttl / 2);
    let answer = tokio::time::timeout(patience, asked).await;
    answer.unwrap_or_else(|_| Err(Error::Lost(format!("no answer within {} s", patience.as_secs_f64()))))
}

fn jittered(every: Duration) -> Duration {
    every.mul_f64(0.8 + rand::random::<f64>() * 0.4)
}
