//! Keeps the worker's row alive, tells how jobs ended, hears which shall stop, and fences the worker when it must be taken for dead.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::running::Stop;
use super::shared::Shared;
use crate::jobs::Error;

/// Heartbeats also carry cancellations, so they come at least this often.
const MAX_BEAT: Duration = Duration::from_secs(1);

/// The share of its time to live after which a worker without a heartbeat stops its jobs.
const FENCE_AT: f64 = 0.85;

pub(super) async fn beat(shared: Arc<Shared>, cancel: CancellationToken) {
    tokio::select! {
        () = cancel.cancelled() => {}
        () = beat_on(&shared) => {}
    }
}

async fn beat_on(shared: &Shared) {
    let ttl = shared.config.ttl;
    let every = (ttl / 6).min(MAX_BEAT);
    let mut last = Instant::now();
    let mut fenced = false;
    // Whether to beat on the connections of everybody: the way that worked last, and the other one where it fails.
    let mut beside = false;
    loop {
        tokio::time::sleep(every).await;
        // The time is taken before asking: an answer that was long under way proves life only at its beginning.
        let asked = Instant::now();
        // An answer that does not come must not hold up the fence.
        let patience =
            if fenced { ttl / 3 } else { ttl.mul_f64(FENCE_AT).saturating_sub(last.elapsed()).clamp(every / 5, ttl / 3) };
        match pulse(shared, beside, patience).await {
            Ok(true) => {
                (last, fenced) = (asked, false);
                unfence(shared);
            }
            Ok(false) => {
                fence(shared, "this worker was taken for dead");
                match timeout(ttl / 3, shared.register()).await {
                    Ok(Ok(())) => {
                        (last, fenced) = (Instant::now(), false);
                        unfence(shared);
                    }
                    Ok(Err(error)) => tracing::warn!(%error, "the worker could not register again yet"),
                    Err(_) => tracing::warn!("the worker could not register again yet: no answer in time"),
                }
            }
            Err(error) => {
                tracing::debug!(%error, "no heartbeat");
                beside = !beside;
                if last.elapsed() >= ttl.mul_f64(FENCE_AT) && !fenced {
                    fenced = true;
                    fence(shared, "no heartbeat got through for most of the worker's time to live");
                }
            }
        }
    }
}

async fn pulse(shared: &Shared, beside: bool, patience: Duration) -> Result<bool, Error> {
    let worker_id = shared.worker_id.load(Ordering::Acquire);
    let tallies = shared.tallies.take_untold();
    let asked = async {
        if beside {
            shared.queue.pulse_beside_others(worker_id, &tallies).await
        } else {
            shared.queue.pulse(worker_id, &tallies).await
        }
    };
    let answer = timeout(patience, asked).await.unwrap_or_else(|_| Err(Error::Lost("no answer in time".to_owned())));
    let pulse = answer.inspect_err(|_| shared.tallies.tell_again(&tallies))?;
    shared.paused.store(pulse.paused, Ordering::Relaxed);
    for job in pulse.cancel {
        shared.running.stop(job, Stop::Cancelled);
    }
    Ok(pulse.alive)
}

/// Stops what runs and lets nothing begin: the flag comes first, so that a claim whose answer comes just now either sees it or
/// is stopped with the others.
fn fence(shared: &Shared, why: &str) {
    shared.fenced.store(true, Ordering::SeqCst);
    tracing::warn!(jobs = shared.running.len(), "stopping all running jobs: {why}");
    shared.running.stop_all(Stop::Fenced);
}

fn unfence(shared: &Shared) {
    if shared.fenced.swap(false, Ordering::SeqCst) {
        shared.bell.ring(&[]);
    }
}
