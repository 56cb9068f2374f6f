//! The causes of decisions.

use crate::governor::law::Clamp;

/// The cause of a decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// No signal has had a sample yet.
    NoReading,
    /// A person wrote 0.
    StoppedByHand,
    /// The governor leaves the knob alone and follows it.
    Followed {
        /// The reason, for the sentence.
        why: String,
    },
    /// The manual mode has ended; the governor continues from the rate in force.
    HandedBack {
        /// The reason, for the sentence.
        why: String,
    },
    /// Signals without a new sample for too long.
    Stale {
        /// The names of the signals.
        names: Vec<String>,
    },
    /// The breaker is open.
    Open,
    /// A signal asked for the lowest rate, and these bounds limited it.
    Signal {
        /// The index of the signal in the policy.
        index: usize,
        /// The bounds that acted, in order.
        clamps: Vec<Clamp>,
    },
}

impl Cause {
    /// Creates the cause of following a knob that the governor leaves alone because of `why`.
    pub fn followed(why: impl Into<String>) -> Self {
        Self::Followed { why: why.into() }
    }
}
