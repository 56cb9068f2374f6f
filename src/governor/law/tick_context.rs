//! The input that all parts of one signal share at one tick.

use crate::control::History;
use crate::governor::policy::{ControllerTuning, SignalPolicy};

/// The policy of a signal, the work let through, and the time of the tick.
#[derive(Clone, Copy, Debug)]
pub struct TickContext<'a> {
    /// The policy of the signal.
    pub policy: &'a SignalPolicy,
    /// The tuning of the whole policy.
    pub law: &'a ControllerTuning,
    /// The work rate that was let through.
    pub history: &'a History,
    /// The time of the tick, in unix seconds.
    pub now: f64,
}

impl TickContext<'_> {
    /// Returns true if the rate of the signal follows a model of its load.
    pub(super) fn has_model(&self) -> bool {
        self.policy.has_model(self.law)
    }
}
