//! The share that a process without workers takes of a rate while Redis is lost.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::jobs::Queue;
use crate::service::{LoopOptions, periodic};
use crate::throttle::Store;

/// Time between two counts of the live workers.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// Counts the live workers, which take shares as well: the process grants tokens to programs that
/// ask over HTTP.
pub(super) async fn run(store: Arc<dyn Store>, queue: Queue, cancel: CancellationToken) {
    let pace = LoopOptions {
        name: "share",
        every: COUNT_INTERVAL,
        wake: None,
    };
    periodic(pace, cancel, || {
        let (store, queue) = (store.clone(), queue.clone());
        async move {
            let workers = u32::try_from(queue.live_workers().await?).unwrap_or(0);
            store.set_workers(workers.saturating_add(1));
            anyhow::Ok(())
        }
    })
    .await;
}
