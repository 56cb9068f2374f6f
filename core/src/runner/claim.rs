//! Claims of granted jobs, and the refund of what a claim left.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::jobs::{Claimed, Error, LaneClaim, LaneCursor};
use crate::runner::execute::execute;
use crate::runner::ids::IdMap;
use crate::runner::lane::LaneWalk;
use crate::runner::look;
use crate::runner::metrics::{AttemptLabels, KindLabels};
use crate::runner::remote::hand_over;
use crate::runner::running::StopReason;
use crate::runner::shared::{WorkerContext, bounded, postgres_timeout};
use crate::throttle::{Grant, Name, Refund};

/// Tries to put back jobs, and the pause between two.
const PUT_BACK_TRIES: u32 = 5;
const PUT_BACK_PAUSE: Duration = Duration::from_millis(200);

/// A grant for one lane, with its ask and its claim.
pub(super) struct Granted {
    pub(super) throttle: Name,
    pub(super) key: String,
    pub(super) grant: Grant,
    pub(super) cost: f64,
    /// The highest cost charged for one job, in tokens.
    pub(super) max_cost: f64,
    pub(super) claim: LaneClaim,
}

/// A claim, carried out or failed.
pub(super) struct Claim {
    pub(super) granted: Vec<Granted>,
    pub(super) asked_at: Instant,
    pub(super) took: Duration,
    pub(super) taken: Result<IdMap<ClaimedLane>, Error>,
    pub(super) dropped: Vec<i64>,
}

/// Lanes whose ready jobs are to be dropped, and the newest job that existed when tokens were asked
/// for.
#[derive(Default)]
pub(super) struct DroppedLanes {
    pub(super) lanes: Vec<i64>,
    pub(super) newest: i64,
}

/// The jobs taken from a lane.
#[derive(Default)]
pub(super) struct ClaimedLane {
    pub(super) places: Vec<LaneCursor>,
    pub(super) cost: f64,
    pub(super) is_dry: bool,
    /// Number of jobs that were put back because this worker does not serve them.
    pub(super) put_back: u32,
    /// The look before the claim, if there was one.
    pub(super) walk: Option<LaneWalk>,
}

pub(super) fn jobs(granted: &[Granted]) -> usize {
    granted.iter().map(|one| one.grant.granted as usize).sum()
}

/// Claims the granted jobs and starts them, then drops the jobs over the limit. With `is_partial`
/// it looks at the jobs first, and takes and drops only those that this worker serves.
pub(super) async fn claim(
    shared: Arc<WorkerContext>,
    granted: Vec<Granted>,
    drops: DroppedLanes,
    is_partial: bool,
) -> Claim {
    let asked_at = Instant::now();
    let mut claim = claim_granted(&shared, granted, asked_at, is_partial).await;
    if claim.taken.is_ok() && !drops.lanes.is_empty() {
        match drop_ready(&shared, &drops, is_partial).await {
            Ok(()) => claim.dropped = drops.lanes,
            // Their lanes are asked for again, and the jobs are refused again.
            Err(error) => tracing::debug!(%error, "dropping jobs over the limit failed"),
        }
    }
    claim
}

async fn drop_ready(
    shared: &WorkerContext,
    drops: &DroppedLanes,
    is_partial: bool,
) -> Result<(), Error> {
    let worker_id = shared.worker_id.load(Ordering::Acquire);
    loop {
        let dropped = match is_partial {
            true => {
                let dropped = look::drop_served(shared, worker_id, &drops.lanes, drops.newest);
                bounded(shared, dropped).await?
            }
            false => {
                let queue = &shared.queue;
                let dropped = queue.drop_ready(worker_id, &drops.lanes, drops.newest);
                bounded(shared, dropped).await?
            }
        };
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
    is_partial: bool,
) -> Claim {
    if granted.is_empty() {
        return Claim {
            granted,
            asked_at,
            took: Duration::ZERO,
            taken: Ok(IdMap::default()),
            dropped: Vec::new(),
        };
    }
    let lanes: Vec<LaneClaim> = granted.iter().map(|one| one.claim).collect();
    let worker_id = shared.worker_id.load(Ordering::Acquire);
    let fence = rand::random::<i64>() & i64::MAX;
    let claimed = match is_partial {
        true => bounded(shared, look::claim_served(shared, worker_id, fence, &lanes)).await,
        false => {
            let claimed = shared.queue.claim_and_look(worker_id, fence, &lanes);
            let claimed = bounded(shared, claimed).await;
            claimed.map(|batch| (batch, HashMap::new()))
        }
    };
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
    let of_lane: IdMap<&Granted> = granted.iter().map(|one| (one.claim.lane_id, one)).collect();
    let taken = claimed.map(|(mut batch, walks)| {
        reject_misplaced(&of_lane, &mut batch.jobs);
        let mut taken: IdMap<ClaimedLane> = IdMap::default();
        taken.reserve(lanes.len());
        for (lane, walk) in walks {
            taken.entry(lane).or_default().walk = Some(walk);
        }
        let mut unserved = take_out_unserved(shared, &mut batch.jobs, &mut taken);
        let polls = shared
            .broker
            .as_ref()
            .map(|broker| broker.polls.take(batch.jobs.len()));
        if let Some(polls) = &polls {
            // Nobody waits for the others any more.
            let wanted = polls.iter().map(|(_, jobs)| jobs).sum();
            for one in batch.jobs.split_off(wanted) {
                taken.entry(one.lane_id).or_default().put_back += 1;
                unserved.push(one.job.id);
            }
        }
        for one in &mut batch.jobs {
            // A job enqueued with more than the highest cost is charged, and refunded, at most that
            // cost.
            one.job.cost = of_lane
                .get(&one.lane_id)
                .map_or(one.job.cost, |lane| one.job.cost.min(lane.max_cost));
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
        match polls {
            Some(polls) => hand_over(shared, batch.jobs, polls, (worker_id, fence)),
            None => start(shared, batch.jobs, worker_id, fence),
        }
        (taken, unserved)
    });
    let taken = match taken {
        Ok((taken, unserved)) if unserved.is_empty() => Ok(taken),
        Ok((taken, unserved)) => {
            put_back(shared, worker_id, fence, unserved).await;
            Ok(taken)
        }
        Err(error) => Err(error),
    };
    if taken.is_err() {
        // The claim may have been carried out although its answer was lost.
        shared.uncertain_claims.note(worker_id, fence);
    }
    Claim {
        granted,
        asked_at,
        took,
        taken,
        dropped: Vec::new(),
    }
}

/// Takes the jobs that this worker does not serve out of a claim; returns their ids. In their
/// throttles this worker looks at jobs before it takes them from now on.
fn take_out_unserved(
    shared: &WorkerContext,
    jobs: &mut Vec<Claimed>,
    taken: &mut IdMap<ClaimedLane>,
) -> Vec<i64> {
    let mut unserved = Vec::new();
    jobs.retain(|one| {
        let job = &one.job;
        let is_served = one.unreadable.is_some()
            || one.cancelled
            || shared.serves_job(&job.throttle, &job.kind, Some(&job.args));
        if !is_served {
            taken.entry(one.lane_id).or_default().put_back += 1;
            unserved.push(job.id);
            let kind = job.kind.clone();
            let not_served = &shared.metrics.not_served;
            not_served.get_or_create(&KindLabels { kind }).inc();
        }
        is_served
    });
    unserved
}

/// Puts jobs back that this worker does not serve. If that fails, it is tried again beside the
/// claims that follow.
async fn put_back(shared: &WorkerContext, worker_id: i32, fence: i64, jobs: Vec<i64>) {
    for _ in 0..PUT_BACK_TRIES {
        match bounded(shared, shared.queue.put_back(worker_id, fence, &jobs)).await {
            Ok(_) => {
                shared.notifier.notify(&[]);
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "putting back jobs that this worker does not serve failed");
                tokio::time::sleep(PUT_BACK_PAUSE).await;
            }
        }
    }
    shared.uncertain_claims.note_jobs(worker_id, fence, jobs);
}

/// Marks jobs that are in another lane than their own. A lane is identified by 64 bits of a hash,
/// for which a collision can be searched: the tokens were granted to one of the two lanes, and a
/// job of the other must not run on them.
pub(super) fn reject_misplaced(lanes: &IdMap<&Granted>, jobs: &mut [Claimed]) {
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

pub(super) async fn refund(shared: &WorkerContext, unused: Vec<(&Granted, u32)>) {
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
        let attempt = execute(shared.clone(), Box::new(one), token);
        shared.tasks.spawn(attempt);
    }
}
