//! Counts of the ends of each throttle's jobs in this worker, reported with every heartbeat for the
//! governor.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::jobs::Tally;

/// Most throttles reported by one heartbeat; the others follow with the next.
const MAX_TALLIES_REPORTED: usize = 500;

/// Number of throttles beyond which those without running jobs are forgotten; a forgotten one
/// counts from 0 again.
const MAX_REMEMBERED: usize = 10_000;

/// The end of an attempt, as its throttle's governor sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptOutcome {
    Completed,
    /// The handler failed, timed out, or does not know the outcome.
    Failed,
    /// The receiver refused it.
    Refused,
    /// The attempt was stopped, given back or put off, which says nothing about the receiver.
    Otherwise,
}

/// The tallies of all throttles.
#[derive(Default)]
pub(super) struct Tallies(Mutex<HashMap<String, (Tally, ReportState)>>);

/// The report state of a tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportState {
    Reported,
    Unreported,
}

impl Tallies {
    /// Records that a handler begins.
    pub(super) fn begin(&self, throttle: &str) {
        self.change(throttle, |tally| tally.running += 1);
    }

    /// Records the end of an attempt, its duration if that is meaningful, and the refusals that it
    /// got around.
    pub(super) fn end(
        &self,
        throttle: &str,
        how: AttemptOutcome,
        took: Option<Duration>,
        refusals: u32,
    ) {
        self.change(throttle, |tally| {
            tally.running = (tally.running - 1).max(0);
            tally.refused += i64::from(refusals);
            match how {
                AttemptOutcome::Completed => {
                    tally.completed += 1;
                    match took {
                        Some(took) => {
                            tally.busy_s += took.as_secs_f64();
                            tally.durations.note(took);
                        }
                        None => tally.untimed += 1,
                    }
                }
                AttemptOutcome::Failed => tally.failed += 1,
                AttemptOutcome::Refused => tally.refused += 1,
                AttemptOutcome::Otherwise => {}
            }
        });
    }

    /// Returns the tallies that changed since their last report, and marks them as reported.
    pub(super) fn take_unreported(&self) -> Vec<Tally> {
        let mut all = self.lock();
        if all.len() > MAX_REMEMBERED {
            all.retain(|_, (tally, answer)| {
                tally.running > 0 || *answer == ReportState::Unreported
            });
        }
        let unreported = all
            .values_mut()
            .filter(|(_, answer)| *answer == ReportState::Unreported)
            .take(MAX_TALLIES_REPORTED);
        unreported
            .map(|(tally, answer)| {
                *answer = ReportState::Reported;
                tally.clone()
            })
            .collect()
    }

    /// Marks tallies as not reported, because their report may have been lost.
    pub(super) fn mark_unreported(&self, tallies: &[Tally]) {
        let mut all = self.lock();
        for tally in tallies {
            if let Some((_, answer)) = all.get_mut(&tally.throttle) {
                *answer = ReportState::Unreported;
            }
        }
    }

    /// Restarts the counts at 0, as for a worker with a new identity.
    pub(super) fn begin_again(&self) {
        self.lock().retain(|throttle, (tally, answer)| {
            *tally = Tally {
                throttle: throttle.clone(),
                running: tally.running,
                ..Tally::default()
            };
            *answer = ReportState::Unreported;
            tally.running > 0
        });
    }

    fn change(&self, throttle: &str, change: impl FnOnce(&mut Tally)) {
        let mut all = self.lock();
        if let Some((tally, answer)) = all.get_mut(throttle) {
            change(tally);
            *answer = ReportState::Unreported;
            return;
        }
        let mut tally = Tally {
            throttle: throttle.to_owned(),
            ..Tally::default()
        };
        change(&mut tally);
        all.insert(throttle.to_owned(), (tally, ReportState::Unreported));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (Tally, ReportState)>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::durations::Durations;
    use crate::jobs::AttemptReport as OfAttempt;

    #[test]
    fn what_has_changed_is_reported_once_and_again_where_nobody_heard_it() {
        let tallies = Tallies::default();
        tallies.begin("mail");
        tallies.begin("mail");
        tallies.end(
            "mail",
            AttemptOutcome::Completed,
            Some(Duration::from_millis(500)),
            0,
        );

        let reported = tallies.take_unreported();
        let mut durations = Durations::default();
        durations.note(Duration::from_millis(500));
        let expected = Tally {
            throttle: "mail".into(),
            completed: 1,
            busy_s: 0.5,
            running: 1,
            durations,
            ..Tally::default()
        };
        assert_eq!(reported, [expected]);
        assert_eq!(tallies.take_unreported(), []);

        tallies.mark_unreported(&reported);
        tallies.end(
            "mail",
            AttemptOutcome::Refused,
            Some(Duration::from_secs(9)),
            0,
        );
        let again = tallies.take_unreported().remove(0);
        assert_eq!(
            (again.completed, again.refused, again.busy_s, again.running),
            (1, 1, 0.5, 0)
        );
    }

    #[test]
    fn ends_that_say_nothing_about_the_other_side_are_not_counted() {
        let tallies = Tallies::default();
        tallies.begin("mail");
        tallies.end(
            "mail",
            AttemptOutcome::Otherwise,
            Some(Duration::from_secs(1)),
            0,
        );
        assert_eq!(
            tallies.take_unreported(),
            [Tally {
                throttle: "mail".into(),
                ..Tally::default()
            }]
        );
    }

    #[test]
    fn what_says_nothing_of_duration_is_counted_apart_and_what_was_got_around_is_refused() {
        let tallies = Tallies::default();
        tallies.end("mail", AttemptOutcome::Completed, None, 2);
        tallies.end(
            "mail",
            AttemptOutcome::Completed,
            Some(Duration::from_millis(500)),
            0,
        );
        tallies.end(
            "mail",
            AttemptOutcome::Refused,
            Some(Duration::from_secs(9)),
            1,
        );
        let reported = tallies.take_unreported().remove(0);
        assert_eq!(
            (
                reported.completed,
                reported.untimed,
                reported.refused,
                reported.busy_s
            ),
            (2, 1, 4, 0.5)
        );
        assert_eq!(reported.durations.count(), 1);
    }

    #[test]
    fn after_rejected_tokens_the_slowest_hundredth_is_of_those_that_were_not_discounted() {
        let tallies = Tallies::default();
        for nth in 0..1000 {
            // Every tenth job comes after a rejection, a hundred times as late, and its handler
            // marks the duration as meaningless.
            let is_late = nth % 10 == 0;
            let ran = Duration::from_millis(if is_late { 10_000 } else { 100 });
            let answer = OfAttempt {
                untimed: is_late,
                ..OfAttempt::default()
            };
            tallies.end("push", AttemptOutcome::Completed, answer.duration(ran), 0);
        }
        let reported = tallies.take_unreported().remove(0);
        assert_eq!((reported.completed, reported.untimed), (1000, 100));
        let p99 = reported.durations.quantile_s(0.99).unwrap();
        assert!(p99 < 0.13, "{p99}");
    }

    #[test]
    fn a_new_identity_counts_from_zero_and_still_knows_what_runs() {
        let tallies = Tallies::default();
        tallies.begin("mail");
        tallies.begin("mail");
        tallies.end("mail", AttemptOutcome::Failed, Some(Duration::ZERO), 0);
        tallies.begin("bulk");
        tallies.end("bulk", AttemptOutcome::Completed, Some(Duration::ZERO), 0);
        tallies.begin_again();
        assert_eq!(
            tallies.take_unreported(),
            [Tally {
                throttle: "mail".into(),
                running: 1,
                ..Tally::default()
            }]
        );
    }
}
