//! The end of a job that a remote worker holds, whichever process had handed it over.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::jobs::postgres::HeldLease;
use crate::jobs::remote::{RemoteEnd, RemoteError};
use crate::jobs::{Context, Ending, Finish, JobInfo, Outcome, State};
use crate::runner::ending::ending_of;
use crate::runner::execute::{Attempted, account};
use crate::runner::running::RunId;
use crate::runner::shared::{WorkerContext, bounded};

/// The leases whose ends this process is judging. A refusal is reported to the throttles before the
/// fence decides, because the ending depends on their answer, so equal reports must not meet.
#[derive(Default)]
pub(super) struct EndingLeases(Mutex<HashSet<RunId>>);

impl EndingLeases {
    /// Begins to judge an end until the answer is dropped; `None` while another end of the same
    /// lease is judged.
    pub(super) fn begin(&self, run: RunId) -> Option<EndingLease<'_>> {
        let is_first = self.0.lock().insert(run);
        is_first.then(|| EndingLease { leases: self, run })
    }
}

/// A lease whose end is being judged.
pub(super) struct EndingLease<'a> {
    leases: &'a EndingLeases,
    run: RunId,
}

impl Drop for EndingLease<'_> {
    fn drop(&mut self) {
        self.leases.0.lock().remove(&self.run);
    }
}

/// Ends an attempt under its lease; returns the state of the job after it.
pub(super) async fn end(
    shared: &Arc<WorkerContext>,
    held: HeldLease,
    end: RemoteEnd,
    is_untrusted: bool,
) -> Result<State, RemoteError> {
    let (info, lane_id) = (Arc::new(JobInfo::from(&held.job)), held.lane_id);
    let context = Context::new(
        info.clone(),
        CancellationToken::new(),
        shared.throttles.clone(),
        shared.checkpoints.clone(),
    );
    if let Some(cost) = end.cost.or(held.real_cost) {
        context.report_cost(cost);
    }
    if is_untrusted {
        context.report_untrusted();
    }
    let known = shared.runs.get(&info.kind).cloned();
    let handler = known.as_ref().map(|known| &*known.handler);
    let is_refused = end.outcome.is_refusal();
    let ending = match end.outcome {
        Outcome::Done => Ending::Completed,
        outcome => ending_of(shared, &info, lane_id, outcome, None, handler).await,
    };
    let run = (info.id, info.fence);
    let is_held = match &end.result {
        Some((result, kept)) if ending == Ending::Completed => {
            let completed = shared.queue.complete_with_result(run, result, *kept);
            bounded(shared, completed).await?
        }
        _ => {
            let finish = Finish {
                job_id: info.id,
                fence: info.fence,
                ending: ending.clone(),
            };
            !bounded(shared, shared.queue.finish(&[finish]))
                .await?
                .is_empty()
        }
    };
    if !is_held {
        return Err(RemoteError::LeaseLost);
    }
    let is_counted_here = release(shared, run);
    if !is_counted_here {
        // Another process counts it as running, and finds that it is gone.
        shared.tallies.begin(&info.throttle);
    }
    let attempt = Attempted {
        handled_from: Instant::now().checked_sub(held.age),
        ran: Some((held.age, is_refused)),
        took: held.age,
    };
    account(shared, &info, lane_id, &ending, known.as_deref(), attempt);
    if matches!(
        ending,
        Ending::Throttled { alone: None, .. } | Ending::HandedBack
    ) {
        shared.notifier.notify(&[lane_id]);
    }
    Ok(state_after(&ending, held.is_cancelled))
}

/// Frees the slot of a job that ended; returns false if another process counts it.
fn release(shared: &WorkerContext, run: (i64, i64)) -> bool {
    let counted = shared.broker.as_ref().and_then(|broker| broker.ended(run));
    if let Some(job) = &counted {
        shared.running.ended_elsewhere(job.lane_id);
    }
    counted.is_some()
}

/// Returns the state of a job after this ending.
fn state_after(ending: &Ending, is_cancelled: bool) -> State {
    match ending {
        Ending::Completed => State::Completed,
        Ending::Dead { .. } | Ending::Ambiguous { delay: None, .. } => State::Dead,
        _ if is_cancelled => State::Cancelled,
        Ending::Cancelled => State::Cancelled,
        Ending::Failed { .. } | Ending::Ambiguous { .. } => State::Retryable,
        Ending::Throttled { alone: None, .. } | Ending::HandedBack => State::Ready,
        Ending::Throttled { .. } | Ending::Snoozed { .. } => State::Scheduled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_end_of_a_lease_is_judged_at_a_time() {
        let leases = EndingLeases::default();
        let first = leases.begin((1, 1));
        assert!(first.is_some());
        assert!(leases.begin((1, 1)).is_none());
        assert!(leases.begin((1, 2)).is_some());

        drop(first);

        assert!(leases.begin((1, 1)).is_some());
    }
}
