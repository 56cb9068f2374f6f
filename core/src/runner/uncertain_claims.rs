//! Claims whose answer was lost. Postgres may have carried them out, so that jobs are leased to a
//! worker that does not run them. So are those of a claim that could not be put back.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::jobs::{Error, Queue};

/// Time for which a lost claim, or a job to put back, is looked for, because a statement may arrive
/// late if it was sent before its connection broke.
const LOOK_FOR: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct UncertainClaim {
    worker_id: i32,
    fence: i64,
    /// The jobs that do not run; `None` for all of the claim.
    jobs: Option<Vec<i64>>,
    since: Instant,
}

/// The uncertain claims. A fence belongs to one claim, so the jobs found under it can safely be
/// given back.
#[derive(Default)]
pub(super) struct UncertainClaims(Mutex<Vec<UncertainClaim>>);

impl UncertainClaims {
    /// Records a claim that failed.
    pub(super) fn note(&self, worker_id: i32, fence: i64) {
        self.add(worker_id, fence, None);
    }

    /// Records jobs of a claim that were not put back. Others of the claim may run, so that its
    /// fence does not show that these do not.
    pub(super) fn note_jobs(&self, worker_id: i32, fence: i64, jobs: Vec<i64>) {
        self.add(worker_id, fence, Some(jobs));
    }

    fn add(&self, worker_id: i32, fence: i64, jobs: Option<Vec<i64>>) {
        self.lock().push(UncertainClaim {
            worker_id,
            fence,
            jobs,
            since: Instant::now(),
        });
    }

    /// Gives back the jobs that lost claims took after all, and those that were not put back;
    /// returns their number.
    pub(super) async fn settle(&self, queue: &Queue) -> Result<u64, Error> {
        let open = self.lock().clone();
        let begun = Instant::now();
        let mut given_back = 0;
        for claim in open {
            let (worker_id, fence) = (claim.worker_id, claim.fence);
            given_back += match claim.jobs {
                None => queue.disown(worker_id, fence).await?,
                Some(jobs) => queue.put_back(worker_id, fence, &jobs).await?,
            };
        }
        self.lock()
            .retain(|claim| begun.duration_since(claim.since) < LOOK_FOR);
        Ok(given_back)
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Vec<UncertainClaim>> {
        self.0.lock()
    }
}
