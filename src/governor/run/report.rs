//! The outcome of a round.

use std::time::Instant;

use parking_lot::Mutex;

use super::postgres::Error as JournalError;
use crate::service::FailureLog;
use crate::throttle::{self, Name};

/// The result of a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoundReport {
    /// The number of throttles decided on.
    pub decided: usize,
    /// The number of knobs written.
    pub written: usize,
    /// The number of trips of the fast path.
    pub tripped: usize,
    /// True if a sample of the fast path was above a trip level; the next one decides.
    pub alarmed: bool,
    /// True if another process leads: the given term is over.
    pub fenced: bool,
    /// The errors, by throttle.
    pub problems: Vec<(Name, String)>,
}

/// The reason why a throttle could not be governed this time.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReconcileError {
    #[error(transparent)]
    Store(#[from] throttle::Error),
    #[error("{0}: {source}", source = std::error::Error::source(.0).map_or_else(String::new, ToString::to_string))]
    Journal(#[from] JournalError),
}

impl ReconcileError {
    /// Returns true if another process leads.
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Journal(JournalError::Fenced { .. }))
    }
}

impl RoundReport {
    /// Creates the report of one decision that wrote `written` knobs.
    pub(super) fn decided(written: usize) -> Self {
        Self {
            decided: 1,
            written,
            ..Self::default()
        }
    }

    /// Adds the outcome of one throttle; `work` names the kind of round in the log, which tells
    /// failures when they begin, every few minutes, and when the throttle is decided on again.
    pub(super) fn add(
        &mut self,
        name: &Name,
        failures: &Mutex<FailureLog>,
        outcome: Result<Self, ReconcileError>,
        work: &str,
        now: Instant,
    ) {
        match outcome {
            Ok(one) => {
                // A round in which nothing is due succeeds while the store is away, too.
                if one.decided > 0 && failures.lock().succeeded(now) {
                    tracing::info!(throttle.name = %name, "the governor's {work} works again");
                }
                self.decided += one.decided;
                self.written += one.written;
                self.tripped += one.tripped;
                self.alarmed |= one.alarmed;
            }
            Err(error) => {
                self.fenced |= error.is_fenced();
                if failures.lock().failed(now) {
                    tracing::warn!(throttle.name = %name, %error, "the governor's {work} failed");
                } else {
                    tracing::debug!(throttle.name = %name, %error, "the governor's {work} still fails");
                }
                self.problems.push((name.clone(), error.to_string()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_throttle_that_cannot_be_reached_is_told_once_and_anew_after_a_decision() {
        let name = Name::new("mail").unwrap();
        let (failures, began) = (Mutex::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut report = RoundReport::default();
        let mut add = |outcome, seconds| report.add(&name, &failures, outcome, "tick", at(seconds));
        let lost = || Err(throttle::Error::Lost("away".to_owned()).into());

        add(lost(), 0);
        assert!(!failures.lock().failed(at(1)), "it was told");
        add(Ok(RoundReport::default()), 20);
        assert!(!failures.lock().failed(at(21)), "nothing was due");
        add(Ok(RoundReport::decided(0)), 40);
        assert!(failures.lock().failed(at(41)), "another outage");
        assert_eq!(report.problems.len(), 1);
    }
}
