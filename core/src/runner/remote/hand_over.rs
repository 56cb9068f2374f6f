//! Handing claimed jobs to the remote workers that wait for them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::join_all;

use super::broker_state::HandedJob;
use super::polls::Poll;
use crate::jobs::postgres::{HandOver, JobToHand};
use crate::jobs::remote::RemoteJob;
use crate::jobs::{Claimed, Ending, Finish, JobInfo, Outcome};
use crate::runner::ending::ending_of;
use crate::runner::execute::{Attempted, account, lost_its_last};
use crate::runner::running::RunId;
use crate::runner::secrets::reveal;
use crate::runner::settle::Difference;
use crate::runner::shared::{WorkerContext, bounded};
use crate::runner::tallies::AttemptOutcome;
use crate::throttle::Name;

/// A claim of a broker: its identity and the fence.
type ClaimId = (i32, i64);

/// Hands the claimed jobs to the polls, as many to each as it says.
pub(in crate::runner) fn hand_over(
    shared: &Arc<WorkerContext>,
    jobs: Vec<Claimed>,
    polls: Vec<(Poll, usize)>,
    claim: ClaimId,
) {
    shared.metrics.claimed.inc_by(jobs.len() as u64);
    shared.unwritten.fetch_add(jobs.len(), Ordering::AcqRel);
    let runs = jobs.iter().map(|one| ((one.job.id, claim.1), one.lane_id));
    // Nothing runs here, so the tokens of the runs have no use.
    drop(shared.running.begin(runs));
    let mut jobs = jobs.into_iter();
    for (poll, part) in polls {
        let jobs: Vec<Claimed> = jobs.by_ref().take(part).collect();
        shared
            .tasks
            .spawn(hand_to(shared.clone(), jobs, poll, claim).boxed());
    }
}

async fn hand_to(shared: Arc<WorkerContext>, mut jobs: Vec<Claimed>, poll: Poll, claim: ClaimId) {
    let Some(broker) = &shared.broker else { return };
    let begun = Instant::now();
    let (count, mut runnable) = (jobs.len(), Vec::with_capacity(jobs.len()));
    let ends = jobs.iter_mut().map(|one| async {
        match end_of(&shared, one).await {
            // The worker that gets the job sees its secrets.
            None => reveal(&shared, &mut one.job).await.err(),
            end => end,
        }
    });
    let ends = join_all(ends).await;
    for (mut one, end) in jobs.into_iter().zip(ends) {
        match end {
            Some(outcome) => end_unrun(&shared, &one, outcome, claim, begun).await,
            None => {
                let known = shared.runs.get(&one.job.kind);
                let of_kind = || known.and_then(|known| known.handler.timeout());
                one.job.timeout = one.job.timeout.or_else(of_kind);
                runnable.push(one);
            }
        }
    }
    let to_hand = |one: &Claimed| JobToHand {
        job_id: one.job.id,
        fence: rand::random::<i64>() & i64::MAX,
        charged: one.job.cost,
        timeout: one.job.timeout,
    };
    let over = HandOver {
        broker_id: claim.0,
        fence: claim.1,
        worker_id: poll.worker_id,
        lease: poll.lease,
        jobs: runnable.iter().map(to_hand).collect(),
    };
    let handed = bounded(&shared, shared.queue.hand_over(&over)).await;
    let mut rows = handed.unwrap_or_else(|error| {
        tracing::debug!(%error, "handing jobs to a remote worker failed");
        Default::default()
    });
    if rows.len() < runnable.len() {
        // The worker has gone, or the lease with the broker's own. Jobs that are still the broker's
        // are given back.
        shared.uncertain_claims.note(claim.0, claim.1);
    }
    let mut ready = Vec::with_capacity(runnable.len());
    for (one, JobToHand { fence, .. }) in runnable.into_iter().zip(&over.jobs) {
        let (lane_id, mut job) = (one.lane_id, one.job);
        let Some(row) = rows.remove(&job.id) else {
            refund(&shared, &JobInfo::from(&job));
            free(&shared, (job.id, claim.1), lane_id);
            continue;
        };
        job.fence = *fence;
        shared.running.handed_over((job.id, claim.1));
        let throttle = job.throttle.clone();
        shared.tallies.begin(&throttle);
        broker.hand((job.id, *fence), HandedJob { lane_id, throttle });
        ready.push(RemoteJob {
            lane_id,
            job,
            tenant: row.tenant,
            expires_at: row.expires_at,
            checkpoint: row.checkpoint,
        });
    }
    shared.unwritten.fetch_sub(count, Ordering::AcqRel);
    let handed = ready.len() as u64;
    match poll.answer.send(ready) {
        Ok(()) => _ = shared.metrics.remote.handed.inc_by(handed),
        Err(unheard) => give_back(&shared, unheard).await,
    }
    shared.running.ended.notify_one();
}

/// Returns the outcome of a job that is not to run; `None` for all others.
async fn end_of(shared: &WorkerContext, one: &Claimed) -> Option<Outcome> {
    match (&one.unreadable, one.cancelled) {
        (_, true) => Some(Outcome::Cancelled),
        (Some(error), false) => Some(Outcome::Dead {
            error: error.clone(),
        }),
        (None, false) => {
            let known = shared.runs.get(&one.job.kind)?;
            lost_its_last(shared, &*known.handler, &one.job).await
        }
    }
}

/// Ends a job that no worker gets.
async fn end_unrun(
    shared: &WorkerContext,
    one: &Claimed,
    outcome: Outcome,
    claim: ClaimId,
    begun: Instant,
) {
    let info = JobInfo::from(&one.job);
    let known = shared.runs.get(&info.kind).cloned();
    let handler = known.as_ref().map(|known| &*known.handler);
    let ending = ending_of(shared, &info, one.lane_id, outcome, None, handler).await;
    let attempt = Attempted {
        handled_from: None,
        ran: None,
        took: begun.elapsed(),
    };
    account(
        shared,
        &info,
        one.lane_id,
        &ending,
        known.as_deref(),
        attempt,
    );
    finish(shared, info.id, claim.1, ending, claim).await;
    free(shared, (info.id, claim.1), one.lane_id);
}

/// Forgets a claimed job that is not handed over, and frees its slot.
fn free(shared: &WorkerContext, run: RunId, lane_id: i64) {
    shared.running.handed_over(run);
    shared.running.ended_elsewhere(lane_id);
}

/// Gives back jobs of which their worker has not heard, because it is gone.
async fn give_back(shared: &WorkerContext, unheard: Vec<RemoteJob>) {
    let Some(broker) = &shared.broker else { return };
    for one in unheard {
        let info = JobInfo::from(&one.job);
        refund(shared, &info);
        // If this fails, the lease expires.
        let ending = Finish {
            job_id: info.id,
            fence: info.fence,
            ending: Ending::HandedBack,
        };
        if let Err(error) = bounded(shared, shared.queue.finish(&[ending])).await {
            tracing::debug!(%error, job.id = info.id, "giving back a job failed");
        }
        if broker.ended((info.id, info.fence)).is_some() {
            let otherwise = AttemptOutcome::Otherwise;
            shared.tallies.end(&info.throttle, otherwise, None, 0);
            shared.running.ended_elsewhere(one.lane_id);
        }
        shared.notifier.notify(&[one.lane_id]);
    }
}

async fn finish(shared: &WorkerContext, job_id: i64, fence: i64, ending: Ending, claim: ClaimId) {
    let ending = Finish {
        job_id,
        fence,
        ending,
    };
    if let Err(error) = bounded(shared, shared.queue.finish(&[ending])).await {
        tracing::debug!(%error, job.id = job_id, "ending a job that is not to run failed");
        shared.uncertain_claims.note(claim.0, claim.1);
    }
}

/// Returns the tokens of a job that did not run.
fn refund(shared: &WorkerContext, job: &JobInfo) {
    let Ok(throttle) = Name::new(job.throttle.clone()) else {
        return;
    };
    let difference = Difference {
        throttle,
        key: job.key.clone(),
        tokens: -job.cost,
    };
    if let Err(error) = shared.differences.try_send(difference) {
        tracing::debug!(job.id, %error, "the tokens of a job are not returned");
    }
}
