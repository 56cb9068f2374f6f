//! Claims whose answer got lost. Postgres may have carried them out, and then jobs are leased to a worker that does not run them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::jobs::{Error, Queue};

/// A claim that was sent before its connection broke may arrive late, so it is looked for as long as this.
const LOOK_FOR: Duration = Duration::from_secs(60);

struct Doubt {
    worker_id: i32,
    fence: i64,
    since: Instant,
}

/// The claims in doubt. A fence belongs to one claim, so what is found under it can be given back without a second thought.
#[derive(Default)]
pub(super) struct Doubts(Mutex<Vec<Doubt>>);

impl Doubts {
    /// Keeps a claim in mind that failed.
    pub(super) fn note(&self, worker_id: i32, fence: i64) {
        self.lock().push(Doubt { worker_id, fence, since: Instant::now() });
    }

    /// Gives back what the claims took after all; how many jobs.
    pub(super) async fn settle(&self, queue: &Queue) -> Result<u64, Error> {
        let open: Vec<(i32, i64)> = self.lock().iter().map(|doubt| (doubt.worker_id, doubt.fence)).collect();
        let begun = Instant::now();
        let mut given_back = 0;
        for (worker_id, fence) in open {
            given_back += queue.disown(worker_id, fence).await?;
        }
        self.lock().retain(|doubt| begun.duration_since(doubt.since) < LOOK_FOR);
        Ok(given_back)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Doubt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
