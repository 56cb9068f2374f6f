//! The last trip, kept for people: the breaker's own record is reset when a person takes over.

use super::breaker::Phase;
use super::plan::ControlState;

/// A trip of the breaker.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Tripped {
    /// The time in unix seconds.
    pub at: f64,
    /// The signal that tripped it.
    pub by: String,
    /// The height of the signal that tripped it, in setpoints.
    pub height: f64,
}

impl ControlState {
    /// Records the trip if the breaker is open because of a trip not yet recorded.
    pub(super) fn remember_trip(&mut self) {
        let breaker = &self.breaker;
        if breaker.phase == Phase::Open
            && self
                .tripped
                .as_ref()
                .is_none_or(|known| known.at < breaker.since)
        {
            let by = breaker.by.clone().unwrap_or_default();
            self.tripped = Some(Tripped {
                at: breaker.since,
                by,
                height: breaker.height,
            });
        }
    }
}
