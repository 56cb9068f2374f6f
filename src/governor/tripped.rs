//! The last trip, remembered for people: the breaker itself forgets it when a person takes over.

use super::breaker::Phase;
use super::plan::State;

/// A trip of the breaker.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Tripped {
    /// When, in unix seconds.
    pub at: f64,
    /// The signal that tripped it.
    pub by: String,
    /// How high it was, in setpoints.
    pub height: f64,
}

impl State {
    /// Remembers the trip, if the breaker is open because of one that is not known yet.
    pub(super) fn remember_trip(&mut self) {
        let breaker = &self.breaker;
        if breaker.phase == Phase::Open && self.tripped.as_ref().is_none_or(|known| known.at < breaker.since) {
            let by = breaker.by.clone().unwrap_or_default();
            self.tripped = Some(Tripped { at: breaker.since, by, height: breaker.height });
        }
    }
}
