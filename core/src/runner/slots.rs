//! Slots of running handlers, and the number of jobs that are claimed before a slot is free.
//!
//! A claim costs a round trip to Postgres whether it takes one job or five hundred, so a worker
//! whose jobs take microseconds must not claim only as many as may run at once. A worker whose jobs
//! take seconds must: what it claims early waits here, while another worker could run it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Time in which the jobs that are claimed early find a slot, at the pace of those before them.
const EARLY: Duration = Duration::from_millis(20);

/// Most jobs that are claimed early.
const MAX_EARLY: usize = 2000;

/// Longest wait of a claimed job for a slot. The jobs before it take longer than those that set the
/// pace, so it is handed back: another worker may be free.
pub(super) const MAX_WAIT: Duration = Duration::from_millis(200);

/// The slots in which handlers run.
pub(super) struct RunSlots {
    free: Semaphore,
    total: usize,
    /// Number of jobs that were completed. Jobs that are put off at once do not show the pace.
    completed: AtomicU64,
}

impl RunSlots {
    pub(super) fn new(total: usize) -> Self {
        Self {
            free: Semaphore::new(total),
            total,
            completed: AtomicU64::new(0),
        }
    }

    /// Takes a slot if one is free and nobody waits for it.
    pub(super) fn try_take(&self) -> Option<SemaphorePermit<'_>> {
        self.free.try_acquire().ok()
    }

    /// Waits for a slot, in the order of the calls; returns `None` if none became free in time.
    pub(super) async fn take(&self, max_wait: Duration) -> Option<SemaphorePermit<'_>> {
        match self.try_take() {
            Some(permit) => Some(permit),
            None => tokio::time::timeout(max_wait, self.free.acquire())
                .await
                .ok()?
                .ok(),
        }
    }

    /// Returns the number of handlers that run.
    pub(super) fn taken(&self) -> usize {
        self.total.saturating_sub(self.free.available_permits())
    }

    pub(super) fn note_completed(&self) {
        self.completed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }
}

/// The pace at which jobs are completed.
pub(super) struct EarlyClaims {
    since: Instant,
    /// Number of jobs that were completed by then.
    completed: u64,
    early: usize,
}

impl EarlyClaims {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            completed: 0,
            early: 0,
        }
    }

    /// Returns the number of jobs to claim before slots are free, for a number of jobs that were
    /// completed until now.
    pub(super) fn early(&mut self, completed: u64, now: Instant) -> usize {
        let past = now.duration_since(self.since);
        if past >= EARLY {
            let jobs = completed.saturating_sub(self.completed) as f64;
            let early = jobs * EARLY.as_secs_f64() / past.as_secs_f64();
            *self = Self {
                since: now,
                completed,
                early: (early as usize).min(MAX_EARLY),
            };
        }
        self.early
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn as_many_are_claimed_early_as_end_in_the_time_that_they_may_wait() {
        let start = Instant::now();
        let mut pace = EarlyClaims::new(start);

        assert_eq!(pace.early(0, start), 0, "nothing is known yet");
        assert_eq!(pace.early(500, at(start, 10)), 0, "the window is not over");
        assert_eq!(pace.early(800, at(start, 20)), 800);
        assert_eq!(
            pace.early(900, at(start, 25)),
            800,
            "until the next window is over"
        );
        assert_eq!(
            pace.early(800, at(start, 40)),
            0,
            "no handler ends any more"
        );
        assert_eq!(pace.early(801, at(start, 1040)), 0, "one in a second");
        assert_eq!(pace.early(801 + 5000, at(start, 2040)), 100);
        assert_eq!(pace.early(1_000_000, at(start, 2060)), MAX_EARLY);
    }

    #[tokio::test]
    async fn a_slot_is_for_one_and_who_waits_too_long_gets_none() {
        let slots = RunSlots::new(1);
        let first = slots.take(MAX_WAIT).await.unwrap();
        assert_eq!(slots.taken(), 1);

        assert!(slots.take(Duration::ZERO).await.is_none());

        let waits = slots.take(MAX_WAIT);
        drop(first);
        assert!(waits.await.is_some());
        assert_eq!(slots.taken(), 0);
    }
}
