//! A decision as the journal stores and people read it.

use jiff::Timestamp;

use super::breaker::Phase;
use super::plan::Plan;
use crate::throttle::Mode;

/// The relative change of the rate from which a decision is journaled again.
const RATE_MOVED: f64 = 0.01;
/// The interval after which an unchanged decision is journaled again, in seconds, so that a
/// thousand decisions reach far back and a quiet hour is still visible.
const AT_LEAST_EVERY_S: f64 = 60.0;

/// One decision of the governor.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Decision {
    /// The number in the journal; 0 until it is appended.
    pub id: i64,
    /// The name of the throttle.
    pub throttle: String,
    /// The time of the decision.
    pub at: Timestamp,
    /// The decided knob, in jobs per second or slots.
    pub rps: f64,
    /// The knob in force before; -1 is unlimited.
    pub previous_rps: f64,
    /// The phase of the breaker.
    pub breaker: Phase,
    /// The throttle's mode; in `shadow` nothing was written.
    pub mode: Mode,
    /// The deciding signal, or another value of [`Plan::limiting`].
    pub limiting: String,
    /// The reason, one sentence.
    pub reason: String,
    /// The numbers behind the reason, by name.
    pub terms: serde_json::Value,
}

impl Decision {
    /// Creates the decision of `plan`, made at `now` (unix seconds) with `previous_rps` in force.
    pub fn new(throttle: &str, now: f64, plan: &Plan, previous_rps: f64, mode: Mode) -> Self {
        Self {
            id: 0,
            throttle: throttle.to_owned(),
            at: timestamp(now),
            rps: plan.rps,
            previous_rps: if previous_rps.is_finite() {
                previous_rps
            } else {
                0.0
            },
            breaker: plan.breaker,
            mode,
            limiting: plan.limiting.clone(),
            reason: plan.reason.clone(),
            terms: serde_json::to_value(&plan.terms).unwrap_or_default(),
        }
    }

    /// Returns true if it differs from `last`, the newest decision journaled, or that one is old
    /// enough.
    pub fn is_news_after(&self, last: Option<&Self>) -> bool {
        let Some(last) = last else { return true };
        let kind = |d: &Self| {
            (
                d.breaker,
                d.mode,
                d.limiting.clone(),
                d.terms.get("findings").cloned(),
            )
        };
        let moved = (self.rps - last.rps).abs() > RATE_MOVED * last.rps.abs().max(self.rps.abs());
        let quiet_s = self.at.duration_since(last.at).as_secs_f64();
        moved || kind(self) != kind(last) || quiet_s.abs() >= AT_LEAST_EVERY_S
    }
}

/// Converts unix seconds to a timestamp; a time outside the calendar becomes its end.
pub fn timestamp(unix_s: f64) -> Timestamp {
    Timestamp::from_microsecond((unix_s * 1e6) as i64).unwrap_or(if unix_s < 0.0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    })
}

/// Converts a timestamp to unix seconds.
pub fn unix_s(at: Timestamp) -> f64 {
    at.as_microsecond() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(at_s: f64, rps: f64, limiting: &str) -> Decision {
        let plan = Plan {
            rps,
            limiting: limiting.to_owned(),
            ..Plan::default()
        };
        Decision::new("reindex", at_s, &plan, 100.0, Mode::Auto)
    }

    #[test]
    fn a_decision_is_kept_if_something_moved_or_a_minute_passed() {
        let last = decision(1000.0, 100.0, "load");
        assert!(last.is_news_after(None));
        assert!(!decision(1005.0, 100.5, "load").is_news_after(Some(&last)));
        assert!(decision(1005.0, 102.0, "load").is_news_after(Some(&last)));
        assert!(decision(1005.0, 100.0, "idle").is_news_after(Some(&last)));
        assert!(decision(1061.0, 100.0, "load").is_news_after(Some(&last)));
        assert!(!decision(1005.0, 0.0, "load").is_news_after(Some(&decision(1000.0, 0.0, "load"))));
    }

    #[test]
    fn times_beyond_the_calendar_do_no_harm() {
        assert_eq!(timestamp(1e300), Timestamp::MAX);
        assert_eq!(timestamp(-1e300), Timestamp::MIN);
        assert_eq!(unix_s(timestamp(1_700_000_000.5)), 1_700_000_000.5);
    }
}
