//! The jobs that run now, and why each was told to stop.

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

/// The jobs that run now. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Running {
    entries: Arc<Mutex<HashMap<i64, Entry>>>,
    /// Rings whenever a job ends.
    pub(super) ended: Arc<Notify>,
}

impl Running {
    pub(super) fn begin(&self, job_id: i64) -> CancellationToken {
        let token = CancellationToken::new();
        self.lock().insert(job_id, Entry { token: token.clone(), stop: None });
        token
    }

    /// Takes the job off the list; why it was told to stop, if it was.
    pub(super) fn end(&self, job_id: i64) -> Option<Stop> {
        let entry = self.lock().remove(&job_id);
        self.ended.notify_one();
        entry.and_then(|entry| entry.stop)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn stop(&self, job_id: i64, why: Stop) {
        if let Some(entry) = self.lock().get_mut(&job_id) {
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

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<i64, Entry>> {
        self.entries.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
