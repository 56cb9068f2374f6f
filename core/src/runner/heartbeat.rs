//! Keeps the worker's row alive, reports the ends of jobs, receives cancellations, and fences the
//! worker when others may take it for dead.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::running::StopReason;
use super::shared::WorkerContext;
use crate::jobs::Error;

/// Longest interval between heartbeats, because they also carry cancellations.
const MAX_BEAT: Duration = Duration::from_secs(1);

/// Longest interval between heartbeats of a worker that runs nothing, while nothing happens in the
/// queue; a tenth of its time to live, if that is less.
const IDLE_BEAT: Duration = Duration::from_secs(2);

/// Share of its time to live after which a worker without a heartbeat stops its jobs.
const FENCE_AT: f64 = 0.85;

pub(super) async fn beat(shared: Arc<WorkerContext>, cancel: CancellationToken) {
    tokio::select! {
        () = cancel.cancelled() => {}
        () = beat_on(&shared) => {}
    }
}

async fn beat_on(shared: &WorkerContext) {
    let ttl = shared.config.ttl;
    let every = (ttl / 6).min(MAX_BEAT);
    let mut last = Instant::now();
    let mut fenced = false;
    // True while heartbeats use the shared connections instead of their own; changes after each
    // failure.
    let mut beside = false;
    loop {
        tokio::time::sleep(every).await;
        let rested = IDLE_BEAT.min(ttl / 10);
        if !fenced && is_idle(shared) && last.elapsed() + every / 2 < rested {
            continue;
        }
        // Taken before the request, because a slow answer only proves that the worker was alive
        // when it was sent.
        let requested = Instant::now();
        // A missing answer must not delay the fence.
        let patience = if fenced {
            ttl / 3
        } else {
            ttl.mul_f64(FENCE_AT)
                .saturating_sub(last.elapsed())
                .clamp(every / 5, ttl / 3)
        };
        match pulse(shared, beside, patience).await {
            Ok(true) => {
                (last, fenced) = (requested, false);
                unfence(shared);
            }
            Ok(false) => {
                fence(shared, "this worker was declared dead");
                match timeout(ttl / 3, shared.register()).await {
                    Ok(Ok(())) => {
                        (last, fenced) = (Instant::now(), false);
                        unfence(shared);
                    }
                    Ok(Err(error)) => {
                        tracing::warn!(%error, "registering the worker again failed")
                    }
                    Err(_) => {
                        tracing::warn!("registering the worker again failed: no answer in time")
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, "no heartbeat");
                beside = !beside;
                if last.elapsed() >= ttl.mul_f64(FENCE_AT) && !fenced {
                    fenced = true;
                    fence(
                        shared,
                        "no heartbeat succeeded for most of the worker's time to live",
                    );
                }
            }
        }
    }
}

/// Returns true if a heartbeat would carry nothing. The poll for due work also sees a pause of
/// everything.
fn is_idle(shared: &WorkerContext) -> bool {
    let is_paused = shared.paused.load(Ordering::Relaxed);
    !is_paused && shared.running.len() == 0 && shared.is_quiet()
}

async fn pulse(shared: &WorkerContext, beside: bool, patience: Duration) -> Result<bool, Error> {
    let worker_id = shared.worker_id.load(Ordering::Acquire);
    let tallies = shared.tallies.take_unreported();
    let requested = async {
        if beside {
            shared.queue.pulse_beside_others(worker_id, &tallies).await
        } else {
            shared.queue.pulse(worker_id, &tallies).await
        }
    };
    let answer = timeout(patience, requested)
        .await
        .unwrap_or_else(|_| Err(Error::Lost("no answer in time".to_owned())));
    let pulse = answer.inspect_err(|_| shared.tallies.mark_unreported(&tallies))?;
    shared.paused.store(pulse.paused, Ordering::Relaxed);
    for job in pulse.cancel {
        shared.running.stop(job, StopReason::Cancelled);
    }
    Ok(pulse.alive)
}

/// Stops all running jobs and lets none begin. The flag is set first, so that a claim answered at
/// this moment either sees it or is stopped with the others.
fn fence(shared: &WorkerContext, why: &str) {
    shared.fenced.store(true, Ordering::SeqCst);
    tracing::warn!(
        jobs = shared.running.len(),
        "stopping all running jobs: {why}"
    );
    shared.running.stop_all(StopReason::Fenced);
}

fn unfence(shared: &WorkerContext) {
    if shared.fenced.swap(false, Ordering::SeqCst) {
        shared.notifier.notify(&[]);
    }
}
