//! The ending of an attempt by the outcome of its handler. A refusal is reported to the throttles.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

use super::running::StopReason;
use super::shared::WorkerContext;
use crate::jobs::retry::Policy;
use crate::jobs::{Ending, Handler, JobInfo, OnAmbiguous, Outcome, Scope};
use crate::throttle::{MAX_PAUSE, Name, UpstreamRefusal};

/// Wait of a refused job whose refusal gave no delay, while the throttles cannot record the
/// refusal.
const DEFAULT_PAUSE: Duration = Duration::from_secs(5);

/// Returns the ending of an attempt with this outcome; a refusal is reported to the throttles.
pub(super) async fn ending_of(
    shared: &WorkerContext,
    info: &JobInfo,
    lane_id: i64,
    outcome: Outcome,
    stop: Option<StopReason>,
    handler: Option<&dyn Handler>,
) -> Ending {
    let judged = AssertUnwindSafe(judge(shared, info, lane_id, outcome, stop, handler))
        .catch_unwind()
        .await;
    judged.unwrap_or_else(|_| {
        failed(
            Policy::default(),
            info,
            None,
            "the handler panicked while returning its retry policy".to_owned(),
        )
    })
}

async fn judge(
    shared: &WorkerContext,
    job: &JobInfo,
    lane_id: i64,
    outcome: Outcome,
    stop: Option<StopReason>,
    handler: Option<&dyn Handler>,
) -> Ending {
    let is_overload = matches!(outcome, Outcome::Overloaded { .. });
    match (outcome, stop) {
        (Outcome::Done, _) => Ending::Completed,
        (Outcome::Dead { error }, _) => Ending::Dead { error },
        (
            Outcome::Ambiguous {
                policy: OnAmbiguous::Dead,
                error,
            },
            None | Some(StopReason::Draining | StopReason::Fenced),
        ) => Ending::Ambiguous {
            delay: None,
            error: doubtful(&error),
        },
        // A job cancelled by a person ends here, whichever of the remaining outcomes its handler
        // returned.
        (_, Some(StopReason::Cancelled)) | (Outcome::Cancelled, _) => Ending::Cancelled,
        (
            Outcome::Throttled {
                scope,
                delay,
                error,
            }
            | Outcome::Overloaded {
                scope,
                delay,
                error,
            },
            _,
        ) => {
            let refusal = JobRefusal {
                scope,
                is_overload,
                delay,
                error,
            };
            throttled(shared, job, lane_id, refusal, stop).await
        }
        // If the lease was lost, the fence refuses this ending. If it was not (Postgres came back
        // just in time), the job must not stay leased to a worker that no longer runs it.
        (Outcome::HandedBack, _) | (_, Some(StopReason::Draining | StopReason::Fenced)) => {
            Ending::HandedBack
        }
        (Outcome::Snooze { delay }, _) => Ending::Snoozed {
            delay,
            why: job.attempt_report().put_off.unwrap_or_default().to_owned(),
        },
        (Outcome::Ambiguous { error, .. }, _) => {
            let error = doubtful(&error);
            match failed(
                handler.map(Handler::retry).unwrap_or_default(),
                job,
                None,
                error,
            ) {
                Ending::Failed { delay, error } => Ending::Ambiguous {
                    delay: Some(delay),
                    error,
                },
                Ending::Dead { error } => Ending::Ambiguous { delay: None, error },
                other => other,
            }
        }
        (Outcome::Retry { after, error }, _) => failed(
            handler.map(Handler::retry).unwrap_or_default(),
            job,
            after,
            error,
        ),
    }
}

fn failed(policy: Policy, job: &JobInfo, after: Option<Duration>, error: String) -> Ending {
    let policy = job.retry.map_or(policy, |own| own.policy(policy));
    if policy.is_last(job.attempt, job.max_attempts) {
        return Ending::Dead { error };
    }
    Ending::Failed {
        delay: after.unwrap_or_else(|| policy.delay(job.attempt, rand::random())),
        error,
    }
}

/// Marks an error as ambiguous, so that it differs from other failures wherever only the error is
/// shown.
fn doubtful(error: &str) -> String {
    format!("ambiguous: {error}")
}

/// The refusal of a job by the server that it called.
struct JobRefusal {
    scope: Scope,
    /// True if the server sheds load regardless of the caller.
    is_overload: bool,
    delay: Option<Duration>,
    error: String,
}

/// Reports a refusal to the throttles, even while this worker stops, because it concerns other jobs
/// as well; returns the ending of the refused job.
async fn throttled(
    shared: &WorkerContext,
    job: &JobInfo,
    lane_id: i64,
    refusal: JobRefusal,
    stop: Option<StopReason>,
) -> Ending {
    let alone = refused(shared, job, &refusal).await;
    // From now on the throttles need the ends of the lane's other jobs.
    shared.answers.watch(lane_id, alone.is_none());
    match stop {
        None => Ending::Throttled {
            alone,
            error: refusal.error,
        },
        Some(_) => Ending::HandedBack,
    }
}

/// Pauses all jobs that the refusal concerns, on every worker, or returns the wait of this job
/// alone if its throttle asks for that. If the store is away, the next job merely receives the same
/// answer.
async fn refused(shared: &WorkerContext, job: &JobInfo, refusal: &JobRefusal) -> Option<Duration> {
    let throttle = Name::new(job.throttle.clone()).ok()?;
    let delay = refusal.delay.map(|delay| delay.min(MAX_PAUSE));
    let report = job.attempt_report();
    let refused = UpstreamRefusal {
        key: if report.is_alone {
            ""
        } else {
            job.key.as_str()
        },
        scope: refusal.scope,
        is_overload: refusal.is_overload,
        is_untrusted: report.is_untrusted,
        delay,
        jitter: rand::random(),
        why: &refusal.error,
    };
    for pause in [
        Duration::from_millis(20),
        Duration::from_millis(200),
        Duration::ZERO,
    ] {
        match shared.throttles.refused(&throttle, &refused).await {
            Ok(paused) => return paused.alone,
            // A store that is slow for a moment must not cost another refusal.
            Err(_) if pause > Duration::ZERO => tokio::time::sleep(pause).await,
            Err(error) => {
                tracing::warn!(throttle.name = %throttle, %error, "pausing the refused key failed")
            }
        }
    }
    // No other worker knows of the refusal, so at least this job must not come back at once.
    Some(delay.unwrap_or(DEFAULT_PAUSE))
}
