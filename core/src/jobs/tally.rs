//! The outcomes that a worker counts for its throttles.

use crate::control::durations::Durations;

/// The outcomes of the jobs of one throttle in one worker since it started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// The name of the throttle.
    pub throttle: String,
    /// Attempts that succeeded.
    pub completed: i64,
    /// Attempts whose handler failed, timed out or had an ambiguous outcome.
    pub failed: i64,
    /// Attempts that the receiver refused, such as with status 429.
    pub refused: i64,
    /// Seconds that the successful attempts took together.
    pub busy_s: f64,
    /// Handlers that are running now.
    pub running: i64,
    /// Successful attempts that neither `busy_s` nor `durations` counts.
    pub untimed: i64,
    /// The durations of the successful attempts.
    pub durations: Durations,
}
