//! Idle: jobs wait, but not for this throttle's tokens or slots. They wait for workers, a key's
//! limit, another limit or a parent throttle, so the governor cannot help them.

use crate::governor::actuator::Actuator;
use crate::governor::explain::format::{number, seconds};
use crate::governor::observation::Observation;

/// The largest share of the time with waiters at which the throttle counts as unused.
const UNUSED: f64 = 0.2;
/// The backlog that counts as waiting, in seconds of throughput: less is on its way.
const WAITING_S: f64 = 5.0;
/// The ratio of the knob to the throughput above which the knob is not the limit.
const HEADROOM_FACTOR: f64 = 1.5;
/// The duration before it is reported, in seconds.
const MIN_IDLE_S: f64 = 900.0;

/// Detects jobs that wait for something other than this throttle.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Idle {
    since: Option<f64>,
}

impl Idle {
    /// Runs one tick with the knob at `rps`; without a count of waiting jobs nothing is found,
    /// because an empty queue looks the same.
    pub fn step(&mut self, now: f64, rps: f64, seen: &Observation) {
        let (Some(waiting), Some(share)) = (seen.waiting, seen.limiting_share) else {
            self.since = None;
            return;
        };
        // An interval in which a counter restarted carries no information.
        let Some(achieved) = seen.achieved_rps else {
            return;
        };
        let unused = share <= UNUSED && rps > HEADROOM_FACTOR * achieved;
        let waits = waiting >= 1.0 && waiting > WAITING_S * achieved;
        self.since = (unused && waits).then(|| self.since.unwrap_or(now));
    }

    /// Returns the sentence for a person.
    pub fn sentence(
        &self,
        now: f64,
        knob: f64,
        actuator: Actuator,
        seen: &Observation,
    ) -> Option<String> {
        let since = self.since.filter(|since| now - since >= MIN_IDLE_S)?;
        let (unit, waited_for) = (actuator.unit(), actuator.waited_for());
        let other = if actuator == Actuator::Rps {
            "concurrency"
        } else {
            "rate"
        };
        let waiting = match number(seen.waiting.unwrap_or(0.0).min(1e12)).as_str() {
            "1" => "1 job waits".to_owned(),
            jobs => format!("{jobs} jobs wait"),
        };
        Some(format!(
            "{waiting}, but for {} not for {waited_for}: {} of {} {unit} are used; add workers, \
             or raise the limit of a key, of a parent or of {other}",
            seconds(now - since),
            number(seen.achieved_rps.unwrap_or(0.0).min(1e12)),
            number(knob)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_job_waits_in_the_singular() {
        let idle = Idle { since: Some(0.0) };
        let told = |waiting| {
            let seen = Observation {
                waiting: Some(waiting),
                ..Observation::default()
            };
            idle.sentence(1000.0, 10.0, Actuator::Rps, &seen).unwrap()
        };
        assert!(told(1.0).starts_with("1 job waits, but for "));
        assert!(told(2.0).starts_with("2 jobs wait, but for "));
    }
}
