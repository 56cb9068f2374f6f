//! Keeps the worker's row alive, hears which jobs shall stop, and fences the worker when it must be taken for dead.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::running::Stop;
use super::worker::Shared;
use crate::jobs::Error;

/// Heartbeats also carry cancellations, so they come at least this often.
const MAX_BEAT: Duration = Duration::from_secs(1);

pub(super) async fn beat(shared: Arc<Shared>, cancel: CancellationToken) {
    let ttl = shared.config.ttl;
    let every = (ttl / 6).min(MAX_BEAT);
    let mut last = Instant::now();
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
        // The time is taken before asking: an answer that was long under way proves life only at its beginning.
        let asked = Instant::now();
        match pulse(&shared).await {
            Ok(true) => last = asked,
            Ok(false) => {
                fence(&shared, "this worker was taken for dead");
                if let Err(error) = shared.register().await {
                    tracing::warn!(%error, "the worker could not register again yet");
                } else {
                    last = Instant::now();
                }
            }
            Err(error) => {
                tracing::debug!(%error, "no heartbeat");
                if last.elapsed() > ttl.mul_f64(0.85) && shared.running.len() > 0 {
                    fence(&shared, "no heartbeat got through for most of the worker's time to live");
                }
            }
        }
    }
}

async fn pulse(shared: &Shared) -> Result<bool, Error> {
    let patience = shared.config.ttl / 3;
    let answer = tokio::time::timeout(patience, shared.queue.pulse(shared.worker_id.load(Ordering::Acquire))).await;
    let pulse = answer.map_err(|_| Error::Lost("no answer in time".to_owned()))??;
    for job in pulse.cancel {
        shared.running.stop(job, Stop::Cancelled);
    }
    Ok(pulse.alive)
}

fn fence(shared: &Shared, why: &str) {
    tracing::warn!(jobs = shared.running.len(), "stopping all running jobs: {why}");
    shared.running.stop_all(Stop::Fenced);
}
