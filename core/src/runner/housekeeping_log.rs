//! The log of housekeeping: steps that fail, and days that no process empties.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::jobs::postgres::MaintenanceReport;
use crate::service::FailureLog;

/// The time after which days that no process empties are logged, and until they are logged again.
const OVERDUE_AFTER: Duration = Duration::from_secs(3600);

/// The faults that rounds of housekeeping have logged, so that each is logged when it begins and
/// every few minutes.
#[derive(Debug, Default)]
pub(super) struct HousekeepingLog {
    failing: BTreeMap<&'static str, FailureLog>,
    overdue: Option<OverdueDays>,
}

/// Days past their retention of which none was emptied for a while.
#[derive(Clone, Copy, Debug)]
struct OverdueDays {
    days: u64,
    since: Instant,
}

impl HousekeepingLog {
    /// Logs the result of a round, as far as it is news.
    pub(super) fn note(&mut self, done: &MaintenanceReport, now: Instant) {
        if done.pruned_days > 0 {
            tracing::info!(
                days = done.pruned_days,
                "deleted job history past its retention"
            );
        }
        for one in &done.failed {
            let (step, error) = (one.step, &one.error);
            if self.is_logged(step, now) {
                tracing::warn!(
                    step,
                    error,
                    "a step of housekeeping failed; the others go on"
                );
            } else {
                tracing::debug!(step, error, "this step of housekeeping still fails");
            }
        }
        self.failing.retain(|step, failures| {
            let has_failed = done.failed.iter().any(|one| one.step == *step);
            let is_over = !has_failed && failures.succeeded(now);
            if is_over {
                tracing::info!(step, "this step of housekeeping works again");
            }
            !is_over
        });
        if self.is_overdue(done, now) {
            tracing::warn!(
                days = done.unpruned_days,
                "no process has emptied these days past their retention for an hour"
            );
        }
    }

    /// Returns true if the failure of a step is to be logged as one.
    fn is_logged(&mut self, step: &'static str, now: Instant) -> bool {
        self.failing.entry(step).or_default().failed(now)
    }

    /// Returns true once an hour while days past their retention wait and none is emptied.
    fn is_overdue(&mut self, done: &MaintenanceReport, now: Instant) -> bool {
        let days = done.unpruned_days;
        let before = self.overdue.filter(|_| days > 0);
        let since = match before {
            Some(before) if done.pruned_days == 0 && days >= before.days => before.since,
            _ => now,
        };
        let is_overdue = now.duration_since(since) >= OVERDUE_AFTER;
        let since = if is_overdue { now } else { since };
        self.overdue = (days > 0).then_some(OverdueDays { days, since });
        is_overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_keeps_failing_is_told_again_and_ends_with_the_first_success() {
        let (mut log, began) = (HousekeepingLog::default(), Instant::now());
        let at = |minutes: u64| began + Duration::from_secs(60 * minutes);
        assert!(log.is_logged("prune", at(0)));
        assert!(!log.is_logged("prune", at(1)) && !log.is_logged("prune", at(4)));
        assert!(log.is_logged("thin", at(4)), "another step");
        assert!(
            log.is_logged("prune", at(5)),
            "a log of hours must not forget"
        );

        log.note(&MaintenanceReport::default(), at(6));

        assert!(log.failing.is_empty());
        assert!(log.is_logged("prune", at(7)), "another fault");
    }

    #[test]
    fn days_that_no_process_empties_are_told_once_an_hour() {
        let (mut log, began) = (HousekeepingLog::default(), Instant::now());
        let mut at = |minutes: u64, pruned_days: u64, unpruned_days: u64| {
            let done = MaintenanceReport {
                pruned_days,
                unpruned_days,
                ..MaintenanceReport::default()
            };
            log.is_overdue(&done, began + Duration::from_secs(60 * minutes))
        };

        assert!(!at(0, 0, 3));
        assert!(!at(59, 0, 3));
        assert!(at(60, 0, 3));
        assert!(!at(61, 0, 4), "told a minute before");
        assert!(at(121, 0, 4));

        // Another process empties some, then this one, then all are done.
        assert!(!at(182, 0, 3));
        assert!(!at(243, 1, 3));
        assert!(!at(302, 0, 0));
        assert!(!at(400, 0, 1));
    }
}
