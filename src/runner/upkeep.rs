//! What some worker must do for all: promote what is due, rescue what was lost, keep house.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::worker::Shared;
use crate::jobs::Error;
use crate::service::{Pace, periodic};

const PROMOTE_EVERY: Duration = Duration::from_millis(200);
const RESCUE_EVERY: Duration = Duration::from_secs(2);
const MAINTAIN_EVERY: Duration = Duration::from_secs(60);

pub(super) async fn promote(shared: Arc<Shared>, cancel: CancellationToken) {
    let pace = Pace { name: "promote", every: PROMOTE_EVERY, wake: None };
    periodic(pace, cancel, || {
        let shared = shared.clone();
        async move {
            loop {
                let (moved, more) = shared.queue.promote().await?;
                if moved > 0 {
                    shared.bell.notify_one();
                }
                if !more {
                    return Ok::<(), Error>(());
                }
            }
        }
    })
    .await;
}

pub(super) async fn rescue(shared: Arc<Shared>, cancel: CancellationToken) {
    let pace = Pace { name: "rescue", every: RESCUE_EVERY, wake: None };
    periodic(pace, cancel, || {
        let shared = shared.clone();
        async move {
            let found = shared.doubts.settle(&shared.queue).await?;
            if found > 0 {
                tracing::warn!(jobs = found, "gave back jobs of claims whose answer had got lost");
                shared.bell.notify_one();
            }
            let rescued = shared.queue.rescue().await?;
            if rescued.workers > 0 || !rescued.ready.is_empty() || !rescued.dead.is_empty() {
                tracing::warn!(
                    workers = rescued.workers,
                    ready = rescued.ready.len(),
                    dead = rescued.dead.len(),
                    "gave back the jobs of dead workers"
                );
                shared.metrics.workers_lost.inc_by(rescued.workers as u64);
                shared.metrics.rescued.inc_by((rescued.ready.len() + rescued.dead.len()) as u64);
                shared.bell.notify_one();
            }
            shared.throttles.set_workers(shared.queue.live_workers().await?.max(1) as u32);
            Ok::<(), Error>(())
        }
    })
    .await;
}

pub(super) async fn maintain(shared: Arc<Shared>, cancel: CancellationToken) {
    let pace = Pace { name: "maintain", every: MAINTAIN_EVERY, wake: None };
    periodic(pace, cancel, || {
        let shared = shared.clone();
        async move {
            let done = shared.queue.maintain(shared.config.retention_days).await?;
            if done.pruned_days > 0 {
                tracing::info!(days = done.pruned_days, "emptied days past their retention");
            }
            Ok::<(), Error>(())
        }
    })
    .await;
}
