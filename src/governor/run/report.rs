//! The outcome of a round.

use super::postgres::Error as JournalError;
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
    /// True if a look of the fast path was above a trip level; the next one decides.
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

    /// Adds the outcome of one throttle; `work` names the kind of round in the log.
    pub(super) fn add(&mut self, name: Name, outcome: Result<Self, ReconcileError>, work: &str) {
        match outcome {
            Ok(one) => {
                self.decided += one.decided;
                self.written += one.written;
                self.tripped += one.tripped;
                self.alarmed |= one.alarmed;
            }
            Err(error) => {
                self.fenced |= error.is_fenced();
                tracing::warn!(throttle.name = %name, %error, "the governor's {work} failed");
                self.problems.push((name, error.to_string()));
            }
        }
    }
}
