//! The jobs that run now, and why each was told to stop.
//!
//! A run is named by job and fence: a job that was taken from this worker may come back to it while the old run is still
//! stopping, and the two must not be mixed up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Why a running job was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Somebody cancelled it.
    Cancelled,
    /// The worker is stopping.
    Draining,
    /// The worker lost its leases.
    Fenced,
}

struct Entry {
    token: CancellationToken,
    stop: Option<Stop>,
}

/// A job, and the fence of the lease under which it runs.
pub(super) type Run = (i64, i64);

/// The jobs that run now. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Running {
    entries: Arc<Mutex<HashMap<Run, Entry>>>,
    /// Rings whenever a job ends.
    pub(super) ended: Arc<Notify>,
}

impl Running {
    pub(super) fn begin(&self, run: Run) -> CancellationToken {
        let token = CancellationToken::new();
        self.lock().insert(run, Entry { token: token.clone(), stop: None });
        token
    }

    /// Takes the run off the list; why it was told to stop, if it was.
    pub(super) fn end(&self, run: Run) -> Option<Stop> {
        let entry = self.lock().remove(&run);
        self.ended.notify_one();
        entry.and_then(|entry| entry.stop)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Why the run was told to stop, if it was.
    pub(super) fn why(&self, run: Run) -> Option<Stop> {
        self.lock().get(&run)?.stop
    }

    pub(super) fn stop(&self, job_id: i64, why: Stop) {
        for (_, entry) in self.lock().iter_mut().filter(|((job, _), _)| *job == job_id) {
            entry.stop.get_or_insert(why);
            entry.token.cancel();
        }
    }

    pub(super) fn stop_all(&self, why: Stop) {
        for entry in self.lock().values_mut() {
            entry.stop.get_or_insert(why);
            entry.token.cancel();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Run, Entry>> {
        self.entries.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_came_back_is_not_taken_for_its_old_run() {
        let running = Running::default();
        let old = running.begin((1, 10));
        running.stop_all(Stop::Fenced);
        let new = running.begin((1, 11));

        assert_eq!(running.end((1, 10)), Some(Stop::Fenced));

        assert_eq!(running.len(), 1, "the new run keeps its permit");
        assert!(old.is_cancelled() && !new.is_cancelled());
        running.stop(1, Stop::Cancelled);
        assert!(new.is_cancelled());
        assert_eq!(running.end((1, 11)), Some(Stop::Cancelled));
    }
}
