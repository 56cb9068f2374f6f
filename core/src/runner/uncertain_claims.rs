//! Claims whose answer was lost. Postgres may have carried them out, so that jobs are leased to a
//! worker that does not run them.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::jobs::{Error, Queue};

/// Time for which a lost claim is looked for, because it may arrive late if it was sent before its
/// connection broke.
const LOOK_FOR: Duration = Duration::from_secs(60);

struct UncertainClaim {
    worker_id: i32,
    fence: i64,
    since: Instant,
}

/// The uncertain claims. A fence belongs to one claim, so the jobs found under it can safely be
/// given back.
#[derive(Default)]
pub(super) struct UncertainClaims(Mutex<Vec<UncertainClaim>>);

impl UncertainClaims {
    /// Records a claim that failed.
    pub(super) fn note(&self, worker_id: i32, fence: i64) {
        self.lock().push(UncertainClaim {
            worker_id,
            fence,
            since: Instant::now(),
        });
    }

    /// Gives back the jobs that lost claims took after all; returns their number.
    pub(super) async fn settle(&self, queue: &Queue) -> Result<u64, Error> {
        let open: Vec<(i32, i64)> = self
            .lock()
            .iter()
            .map(|claim| (claim.worker_id, claim.fence))
            .collect();
        let begun = Instant::now();
        let mut given_back = 0;
        for (worker_id, fence) in open {
            given_back += queue.disown(worker_id, fence).await?;
        }
        self.lock()
            .retain(|claim| begun.duration_since(claim.since) < LOOK_FOR);
        Ok(given_back)
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Vec<UncertainClaim>> {
        self.0.lock()
    }
}
