//! The outcome of a test: a refusal, the findings before it, the reason for its end and its result.

use super::fit::Fit;
use crate::{signals, throttle};

/// The reason for which a test is refused.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// The throttle is in no state for a test.
    #[error("{0}")]
    State(String),
    /// The store did not carry out a request.
    #[error(transparent)]
    Store(#[from] throttle::Error),
    /// A signal's address cannot be used.
    #[error(transparent)]
    Signal(#[from] signals::Error),
}

/// The findings before a test.
#[derive(Clone, Debug)]
pub struct Preflight {
    /// The rate in force, in jobs per second.
    pub rps: f64,
    /// The load of the signal, in setpoints.
    pub load: f64,
    /// The knobs `min` and `max`, which bound the test.
    pub bounds: (f64, f64),
    /// The highest rate that the test may set, in jobs per second.
    pub most_rps: f64,
    /// Shortest and longest duration of the test, in seconds.
    pub lengths_s: (f64, f64),
}

/// The result of a test.
#[derive(Clone, Debug)]
pub struct CalibrationResult {
    /// Reason for an early end; `None` for a complete test.
    pub early: Option<String>,
    /// The final state of the knob, as a sentence.
    pub knob: String,
    /// The fit; `None` after an early end, or if the samples do not determine it.
    pub fit: Option<Fit>,
    /// Usual spacing of the samples, in seconds.
    pub spacing_s: f64,
    /// Mean time from a sample's timestamp until it was seen, in seconds.
    pub late_s: f64,
}

/// The reason for which a test ended.
pub(super) enum CalibrationEnd {
    /// The test is complete.
    Whole,
    /// The caller cancelled the test.
    Interrupted,
    /// The test was hindered, but not by its own rates.
    Hindered(String),
    /// The load was too high.
    Overload(String),
    /// Another writer has changed the knob.
    Lost(String),
}
