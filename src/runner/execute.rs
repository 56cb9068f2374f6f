//! Runs one job and says how it ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;

use super::metrics::{Ended, OfKind};
use super::running::Stop;
use super::worker::Shared;
use crate::jobs::postgres::{Ending, Finish};
use crate::jobs::{Context, Issue, Job, Outcome, retry};
use crate::throttle::Name;

/// Pause after a 429 that does not say how long.
const DEFAULT_PAUSE: Duration = Duration::from_secs(5);

/// How long a job waits whose kind this worker does not run.
const STRANGER_WAIT: Duration = Duration::from_secs(5);

/// How long a handler that was told to stop may go on before it is dropped. Where the lease was lost, the next worker may
/// begin when this one's time to live is over, so the wait is a tenth of that at most.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn execute(shared: Arc<Shared>, job: Job, cancelled: tokio_util::sync::CancellationToken) {
    let begun = Instant::now();
    let (id, fence, kind) = (job.id, job.fence, job.kind.clone());
    // Nothing that a handler does may keep its permit and its lease for ever, so every panic ends here.
    let ran = std::panic::AssertUnwindSafe(run(&shared, job.clone(), cancelled)).catch_unwind().await;
    let outcome = ran.unwrap_or_else(|_| Outcome::Retry { after: None, error: "the handler panicked".to_owned() });
    let stop = shared.running.end((id, fence));
    shared.metrics.running.set(shared.running.len() as i64);
    let ending = judge(&shared, &job, outcome, stop).await;
    shared.metrics.duration.get_or_create(&OfKind { kind: kind.clone() }).observe(begun.elapsed().as_secs_f64());
    shared.metrics.finished.get_or_create(&Ended { kind, outcome: word(&ending) }).inc();
    // The receiver lives until every sender is gone, so this can fail only while the process is being torn down.
    let _ = shared.ends.send(Finish { job_id: id, fence, ending }).await;
}

async fn run(shared: &Shared, job: Job, cancelled: tokio_util::sync::CancellationToken) -> Outcome {
    let Some(handler) = shared.kinds.get(&job.kind) else {
        return Outcome::Snooze { delay: STRANGER_WAIT };
    };
    let issues = handler.check(&job.args);
    if !issues.is_empty() {
        return Outcome::Dead { error: listed(&issues) };
    }
    let context =
        Context { cancelled: cancelled.clone(), throttles: shared.throttles.clone(), checkpoints: shared.checkpoints.clone() };
    let limit = handler.timeout();
    let run = (job.id, job.fence);
    let work = handler.run(job, context);
    let timed_out = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    let ignored = async {
        cancelled.cancelled().await;
        let fenced = shared.running.why(run) == Some(Stop::Fenced);
        let patience = if fenced { STOP_PATIENCE.min(shared.config.ttl / 10) } else { STOP_PATIENCE };
        tokio::time::sleep(patience).await;
    };
    tokio::select! {
        ended = work => ended,
        () = timed_out => Outcome::Retry {
            after: None,
            error: format!("timed out after {} s", limit.unwrap_or_default().as_secs_f64()),
        },
        () = ignored => Outcome::HandedBack,
    }
}

async fn judge(shared: &Shared, job: &Job, outcome: Outcome, stop: Option<Stop>) -> Ending {
    match (outcome, stop) {
        (Outcome::Done, _) => Ending::Completed,
        (Outcome::Dead { error }, _) => Ending::Dead { error },
        // Told to stop by a person, the job ends here, however its handler put it.
        (_, Some(Stop::Cancelled)) | (Outcome::Cancelled, _) => Ending::Cancelled,
        // Where the lease was lost the fence refuses this word. Where it was not (Postgres came back just in time), the job
        // must not stay leased to a worker that no longer runs it.
        (Outcome::HandedBack, _) | (_, Some(Stop::Draining | Stop::Fenced)) => Ending::HandedBack,
        (Outcome::Snooze { delay }, _) => Ending::Snoozed { delay, why: stranger(shared, job) },
        (Outcome::Throttled { delay, error }, _) => {
            pause(shared, job, delay.unwrap_or(DEFAULT_PAUSE), &error).await;
            Ending::Throttled { error }
        }
        (Outcome::Retry { error, .. }, _) if job.attempt >= job.max_attempts => Ending::Dead { error },
        (Outcome::Retry { after, error }, _) => {
            let delay = after.unwrap_or_else(|| retry::delay(job.attempt, rand::random()));
            Ending::Failed { delay, error }
        }
    }
}

fn stranger(shared: &Shared, job: &Job) -> String {
    match shared.kinds.get(&job.kind) {
        Some(_) => String::new(),
        None => format!("this worker does not run the kind {}; waiting for one that does", job.kind),
    }
}

/// Pauses the job's key for everybody. A store that is away only means that the next job will hear the same answer.
async fn pause(shared: &Shared, job: &Job, delay: Duration, why: &str) {
    let Ok(throttle) = Name::new(job.throttle.clone()) else { return };
    // Jitter goes upwards only: coming back early earns the next refusal.
    let delay = delay.mul_f64(1.0 + rand::random::<f64>() * 0.1);
    if let Err(error) = shared.throttles.pause_key(&throttle, &job.key, delay, why).await {
        tracing::warn!(throttle.name = %throttle, %error, "the key could not be paused");
    }
}

fn listed(issues: &[Issue]) -> String {
    let each: Vec<String> = issues.iter().map(|issue| format!("args{}: {}", issue.pointer, issue.message)).collect();
    each.join("; ")
}

fn word(ending: &Ending) -> &'static str {
    match ending {
        Ending::Completed => "completed",
        Ending::Failed { .. } => "failed",
        Ending::Throttled { .. } => "throttled",
        Ending::Snoozed { .. } => "snoozed",
        Ending::Dead { .. } => "dead",
        Ending::Cancelled => "cancelled",
        Ending::HandedBack => "handed_back",
    }
}
