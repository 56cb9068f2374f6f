//! The loops of a process that wait for work in Postgres, woken by the one that polls for all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The time after which a loop looks by itself, although nothing woke it.
pub const UNWOKEN_EVERY: Duration = Duration::from_secs(10);

/// The same while a worker looks for it.
const WATCHED_EVERY: Duration = Duration::from_secs(60);

/// The time for which a worker that looked is taken to look.
const WATCHED_FOR: Duration = Duration::from_secs(5);

/// Notifications of due work. A worker looks once a second for all of it, in one statement, so that
/// an idle process costs Postgres next to nothing. Cheap to clone; clones share everything.
#[derive(Clone, Debug, Default)]
pub struct DueWork {
    /// Occurrences of schedules.
    pub schedules: Arc<Notify>,
    /// Messages that are to be planned.
    pub messages: Arc<Notify>,
    /// Digests that close.
    pub digests: Arc<Notify>,
    /// Publications that no collector has moved.
    pub publications: Arc<Notify>,
    /// Messages of channels.
    pub channel_messages: Arc<Notify>,
    looked_at: Arc<Mutex<Option<Instant>>>,
}

impl DueWork {
    /// Records that a worker looked for all due work, and has woken those that have some.
    pub fn note_look(&self) {
        *self.looked_at.lock() = Some(Instant::now());
    }

    /// Returns true if a loop that nothing woke must poll by itself, `rested` after its last poll:
    /// always without a worker that looks for it, and once a minute with one.
    pub fn must_look(&self, rested: Duration) -> bool {
        let looked_at = *self.looked_at.lock();
        let is_watched = looked_at.is_some_and(|at| at.elapsed() < WATCHED_FOR);
        !is_watched || rested >= WATCHED_EVERY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_a_worker_would_wake_looks_by_itself_once_a_minute() {
        let due = DueWork::default();
        assert!(due.must_look(UNWOKEN_EVERY), "nobody looks for it");

        due.clone().note_look();

        assert!(!due.must_look(UNWOKEN_EVERY));
        assert!(due.must_look(WATCHED_EVERY));
    }
}
