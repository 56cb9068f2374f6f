//! Idle: jobs wait, and not for this throttle's tokens. Workers, a key's limit, a limit of concurrency or a parent is what they
//! wait for, so the governor can do nothing for them.

use crate::governor::actuator::Actuator;
use crate::governor::explain::{number, seconds};
use crate::governor::plan::Observation;

/// Nobody waits for tokens if somebody did for at most this share of the time.
const UNUSED: f64 = 0.2;
/// Work that waits is more than runs in this time, in seconds: less is on its way.
const WAITING_S: f64 = 5.0;
/// The rate is not the limit if this many times what runs would be allowed.
const ROOM: f64 = 1.5;
/// How long it must last, in seconds.
const LAST_S: f64 = 900.0;

/// Since when jobs have waited for something else.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Idle {
    since: Option<f64>,
}

impl Idle {
    /// One tick with the knob at `rps`. Without knowing what waits nothing is found: an empty queue looks the same.
    pub fn step(&mut self, now: f64, rps: f64, seen: &Observation) {
        let (Some(waiting), Some(share)) = (seen.waiting, seen.limiting_share) else {
            self.since = None;
            return;
        };
        // One interval in which a counter began again says nothing.
        let Some(achieved) = seen.achieved_rps else { return };
        let unused = share <= UNUSED && rps > ROOM * achieved;
        let waits = waiting >= 1.0 && waiting > WAITING_S * achieved;
        self.since = (unused && waits).then(|| self.since.unwrap_or(now));
    }

    /// What to tell a person.
    pub fn sentence(&self, now: f64, knob: f64, actuator: Actuator, seen: &Observation) -> Option<String> {
        let since = self.since.filter(|since| now - since >= LAST_S)?;
        let (unit, waited_for) = (actuator.unit(), actuator.waited_for());
        let other = if actuator == Actuator::Rps { "concurrency" } else { "rate" };
        Some(format!(
            "{} jobs wait, and for {} not for {waited_for}: {} of {} {unit} are taken; more workers, or a higher limit of a key, of a parent or of \
             {other}, would help",
            number(seen.waiting.unwrap_or(0.0).min(1e12)),
            seconds(now - since),
            number(seen.achieved_rps.unwrap_or(0.0).min(1e12)),
            number(knob)
        ))
    }
}
