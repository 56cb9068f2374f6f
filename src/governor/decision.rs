//! A decision as the journal stores and people read it.

use jiff::Timestamp;

use super::law::Phase;
use super::plan::Plan;
use super::time::timestamp;
use crate::throttle::{Mode, RateLimit};

/// The relative change of the rate from which a decision is journaled again.
const RATE_MOVED: f64 = 0.01;
/// The interval after which an unchanged decision is journaled again, in seconds, so that a
/// thousand decisions reach far back and a quiet hour is still visible.
const AT_LEAST_EVERY_S: f64 = 60.0;

/// One decision of a governor.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct Decision {
    /// The number of the decision; later decisions have higher numbers. 0 until it is journaled.
    pub id: i64,
    /// The throttle of the decision.
    pub throttle: String,
    /// The time of the decision.
    pub at: Timestamp,
    /// The rate that the governor set, in tokens per second, or the number of slots.
    pub rps: f64,
    /// The rate before the decision, in tokens per second or slots; -1 is unlimited.
    #[cfg_attr(feature = "api", schema(value_type = f64))]
    pub previous_rps: RateLimit,
    /// The state of the breaker: `closed`, `half_open` or `open`.
    #[cfg_attr(feature = "api", schema(value_type = String, example = "closed"))]
    pub breaker: Phase,
    /// The throttle's mode at that time; in `shadow` nothing was written.
    #[cfg_attr(feature = "api", schema(value_type = String, example = "auto"))]
    pub mode: Mode,
    /// The signal or the bound that limits.
    pub limiting: String,
    /// The reason, in one sentence.
    pub reason: String,
    /// Readings, terms and clamps, as recorded by the governor.
    pub terms: serde_json::Value,
}

impl Decision {
    /// Creates the decision of `plan`, made at `now` (unix seconds) with `previous_rps` in force.
    pub fn new(throttle: &str, now: f64, plan: &Plan, previous_rps: RateLimit, mode: Mode) -> Self {
        Self {
            id: 0,
            throttle: throttle.to_owned(),
            at: timestamp(now),
            rps: plan.rps,
            previous_rps,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(at_s: f64, rps: f64, limiting: &str) -> Decision {
        let plan = Plan {
            rps,
            limiting: limiting.to_owned(),
            ..Plan::default()
        };
        Decision::new(
            "reindex",
            at_s,
            &plan,
            RateLimit::PerSecond(100.0),
            Mode::Auto,
        )
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
}
