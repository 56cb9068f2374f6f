//! The end of a job that a remote worker holds, whichever process had handed it over.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::jobs::postgres::HeldLease;
use crate::jobs::remote::{RemoteEnd, RemoteError};
use crate::jobs::{Context, Ending, Finish, JobInfo, Kinds, Outcome, Scope, State};
use crate::runner::ending::ending_of;
use crate::runner::execute::{Attempted, account};
use crate::runner::running::RunId;
use crate::runner::shared::{WorkerContext, bounded};
use crate::throttle::tenant::tenant_of;
use crate::throttle::{Name, SHARED_PAUSE_MAX, believed_cost};

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

/// Ends an attempt under its lease, which a worker of this tenant holds, by the settings of its
/// kind, which the broker need not hand out; returns the state of the job after it.
pub(super) async fn end(
    shared: &Arc<WorkerContext>,
    held: HeldLease,
    kinds: &Kinds,
    end: RemoteEnd,
    tenant: Option<&str>,
) -> Result<State, RemoteError> {
    let (info, lane_id) = (Arc::new(JobInfo::from(&held.job)), held.lane_id);
    let context = Context::new(
        info.clone(),
        CancellationToken::new(),
        shared.throttles.clone(),
        shared.checkpoints.clone(),
    );
    if let Some(cost) = end.cost.or(held.real_cost) {
        context.report_cost(match tenant {
            Some(tenant) => believed(shared, &info, tenant, cost).await,
            None => cost,
        });
    }
    if tenant.is_some() {
        context.report_untrusted();
    }
    let known = shared.runs.get(&info.kind).cloned();
    let handler = kinds.get(&info.kind).map(|handler| &**handler);
    let is_refused = end.outcome.is_refusal();
    let is_shared = tenant.is_some() && tenant_of(&info.throttle) != tenant;
    let outcome = if is_shared {
        of_key_alone(end.outcome)
    } else {
        end.outcome
    };
    let ending = match outcome {
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

/// Returns the real cost that counts of those that a worker of a tenant reports, which must neither
/// stop a throttle that others share nor lift its limit; the charge if the throttle cannot be read.
async fn believed(shared: &WorkerContext, job: &JobInfo, tenant: &str, reported: f64) -> f64 {
    let Ok(throttle) = Name::new(job.throttle.clone()) else {
        return job.cost;
    };
    let believed = believed_cost(&*shared.throttles, &throttle, tenant, job.cost, reported).await;
    believed.unwrap_or_else(|error| {
        tracing::debug!(job.id, %error, "the real cost of a job of a tenant does not count");
        job.cost
    })
}

/// Returns an outcome whose refusal concerns the key of the job alone, for a short time, and teaches
/// no rate: others may work under the same key.
fn of_key_alone(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Throttled { delay, error, .. } | Outcome::Overloaded { delay, error, .. } => {
            Outcome::Overloaded {
                scope: Scope::Key,
                delay: delay.map(|delay| delay.min(SHARED_PAUSE_MAX)),
                error,
            }
        }
        other => other,
    }
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_refusal_in_a_shared_throttle_concerns_its_key_and_is_short() {
        let refusal = |delay_s: u64| Outcome::Throttled {
            scope: Scope::Account,
            delay: Some(Duration::from_secs(delay_s)),
            error: "429".to_owned(),
        };
        for (named, counted) in [(86_400, SHARED_PAUSE_MAX), (5, Duration::from_secs(5))] {
            let expected = Outcome::Overloaded {
                scope: Scope::Key,
                delay: Some(counted),
                error: "429".to_owned(),
            };
            assert_eq!(of_key_alone(refusal(named)), expected);
        }
        assert_eq!(of_key_alone(Outcome::Done), Outcome::Done);
    }

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
