//! The knob that a governor sets: the rate or the number of concurrent jobs.
//!
//! The law is the same for both, on the logarithm of the knob. This file holds the differences: the
//! name and spelling of the field, the unit in a sentence, the bounds, and the rounding of slots to
//! whole numbers. A rate has a lease and lapses to `safe_rps`; slots keep their last value, because
//! they limit the concurrent work by themselves: slower responses already mean fewer jobs per
//! second.

use std::collections::BTreeMap;

use super::bounds::Bounds;
use crate::throttle::{RateLimit, Status};

/// The breaker's zero as written into the knob: a unique spelling, so that it is never taken for a
/// manual stop, even if this process dies between writing and recording it.
pub const BREAKERS_ZERO: &str = "0.000";

/// Returns true if an open breaker wrote the knob `field`.
pub fn is_breakers_zero(raw: &BTreeMap<String, String>, field: &str) -> bool {
    raw.get(field).is_some_and(|text| text == BREAKERS_ZERO)
}

/// Returns true if an open breaker wrote the rate or the number of concurrent jobs.
pub fn is_stopped_by_breaker(raw: &BTreeMap<String, String>) -> bool {
    is_breakers_zero(raw, "rps") || is_breakers_zero(raw, "concurrency")
}

/// The maximum number of slots of a knob.
const SLOTS_MAX: f64 = 1e6;
/// The distance within which a whole knob keeps its value: with 0.5 it would alternate between two
/// values.
const SLOT_DEADBAND: f64 = 0.6;
/// The share of slots in use from which the slots count as the limit.
const SLOT_LIMITED_SHARE: f64 = 0.9;
/// The share of slots in use from which the slots count as the limit while jobs wait; lower,
/// because short jobs free their slots between two checks.
const USED_WHILE_WAITING: f64 = 0.5;

/// The kind of knob that a governor sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Actuator {
    /// Tokens per second.
    #[default]
    Rps,
    /// Concurrent jobs over all processes.
    Concurrency,
}

impl Actuator {
    /// Returns the name of the knob, which is also its name in a policy.
    pub fn field(self) -> &'static str {
        match self {
            Self::Rps => "rps",
            Self::Concurrency => "concurrency",
        }
    }

    /// Returns a number with its unit, such as `34.2 rps` or `1 slot`.
    pub fn amount(self, number: &str) -> String {
        match (self, number) {
            (Self::Concurrency, "1") => "1 slot".to_owned(),
            _ => format!("{number} {}", self.unit()),
        }
    }

    /// Returns the unit in a sentence, in the plural.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Rps => "rps",
            Self::Concurrency => "slots",
        }
    }

    /// Returns the name of the things that jobs wait for.
    pub fn waited_for(self) -> &'static str {
        match self {
            Self::Rps => "tokens",
            Self::Concurrency => "slots",
        }
    }

    /// Returns the name of the knob to which it falls while signals are stale.
    pub fn refuge(self) -> &'static str {
        match self {
            Self::Rps => "safe_rps",
            Self::Concurrency => "min",
        }
    }

    /// Returns the knob's text in the hash; an absent concurrency limit is the empty text.
    pub fn text(self, raw: &BTreeMap<String, String>) -> Option<&str> {
        let text = raw.get(self.field()).map(String::as_str);
        if self == Self::Concurrency {
            text.or(Some(""))
        } else {
            text
        }
    }

    /// Returns the knob as set, in its own unit.
    pub fn setting(self, status: &Status) -> RateLimit {
        match self {
            Self::Rps => status.knobs.rps,
            Self::Concurrency => slots(status.knobs.concurrency),
        }
    }

    /// Returns the knob in force, in its own unit.
    pub fn in_force(self, status: &Status) -> RateLimit {
        match self {
            Self::Rps => status.effective_rps,
            // A paused or stopped throttle lets nothing through, however many slots it has.
            Self::Concurrency if status.effective_rps.is_stopped() => RateLimit::Stopped,
            Self::Concurrency => slots(status.knobs.concurrency),
        }
    }

    /// Returns the start value of a governor without a state: the knob in force, or the maximum for
    /// an unlimited number of slots.
    pub fn start(self, status: &Status, bounds: Bounds) -> RateLimit {
        match self {
            Self::Rps => status.effective_rps,
            Self::Concurrency => match slots(status.knobs.concurrency) {
                RateLimit::Unlimited => RateLimit::new(bounds.max),
                limited => limited,
            },
        }
    }

    /// Returns the bounds in this knob's own unit.
    pub fn bounds(self, bounds: Bounds) -> Bounds {
        match self {
            Self::Rps => bounds,
            Self::Concurrency => {
                let max = if bounds.max > 0.0 {
                    bounds.max.floor().clamp(1.0, SLOTS_MAX)
                } else {
                    SLOTS_MAX
                };
                let min = if bounds.min > 0.0 {
                    bounds.min.ceil().clamp(1.0, max)
                } else {
                    1.0
                };
                Bounds {
                    min,
                    max,
                    safe_rps: min,
                }
            }
        }
    }

    /// Returns the knob to set for `wanted`, given `before` and the allowed range `least` to
    /// `most`.
    ///
    /// Slots are rounded to whole numbers; the state keeps the exact value, so that changes of less
    /// than one add up.
    pub fn rounded(self, wanted: f64, before: f64, least: f64, most: f64) -> f64 {
        if self == Self::Rps || !wanted.is_finite() {
            return wanted;
        }
        let is_kept =
            before >= 1.0 && before.fract() == 0.0 && (wanted - before).abs() <= SLOT_DEADBAND;
        let whole = if is_kept { before } else { wanted.round() };
        whole
            .min(most.floor())
            .max(least.ceil())
            .clamp(1.0, SLOTS_MAX)
    }

    /// Formats the knob: a rate in five digits, as a person would write it.
    pub fn spell(self, knob: f64) -> String {
        match self {
            _ if knob <= 0.0 => BREAKERS_ZERO.to_owned(),
            Self::Rps => format!("{knob:.4e}")
                .parse::<f64>()
                .unwrap_or(knob)
                .to_string(),
            Self::Concurrency => format!("{:.0}", knob.max(1.0)),
        }
    }
}

/// Returns a limit of jobs at once as a knob.
pub fn slots(concurrency: Option<u32>) -> RateLimit {
    concurrency.map_or(RateLimit::Unlimited, |slots| {
        RateLimit::new(f64::from(slots))
    })
}

/// Returns the share of the time in which a limit of `knob` slots was the bottleneck, with `in_use`
/// slots used and `waiting` jobs ready to run.
pub fn limited_by_slots(in_use: f64, knob: RateLimit, waiting: Option<f64>) -> f64 {
    let Some(slots) = knob.rate().filter(|_| !in_use.is_nan()) else {
        return 0.0;
    };
    let used = (in_use / slots).clamp(0.0, 1.0);
    let is_limit = used >= SLOT_LIMITED_SHARE
        || (used >= USED_WHILE_WAITING && waiting.is_some_and(|jobs| jobs >= 1.0));
    if is_limit {
        used.max(SLOT_LIMITED_SHARE)
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::throttle::rules::number;

    #[test]
    fn rates_are_written_as_people_write_them_and_slots_are_whole() {
        let texts =
            [118.372_91, 20.0, 0.000_123_456, 2000.0, 1e9, 0.0].map(|rps| Actuator::Rps.spell(rps));
        assert_eq!(
            texts,
            ["118.37", "20", "0.00012346", "2000", "1000000000", "0.000"]
        );
        assert_eq!(
            [0.0, 1.0, 8.0, 1e6].map(|slots| Actuator::Concurrency.spell(slots)),
            ["0.000", "1", "8", "1000000"]
        );
        assert_eq!(
            number("concurrency", BREAKERS_ZERO),
            Some(0.0),
            "the throttle can read the breaker's zero"
        );
    }

    #[test]
    fn one_slot_is_told_in_the_singular() {
        assert_eq!(Actuator::Concurrency.amount("1"), "1 slot");
        assert_eq!(Actuator::Concurrency.amount("12"), "12 slots");
        assert_eq!(Actuator::Rps.amount("1"), "1 rps");
    }

    #[test]
    fn changes_of_less_than_a_slot_add_up() {
        let mut knob = 4.0;
        let mut steps = Vec::new();
        for n in 0..=20 {
            knob = Actuator::Concurrency.rounded(4.0 + 0.1 * f64::from(n), knob, 1.0, 100.0);
            steps.push(knob);
        }
        assert_eq!(steps.last(), Some(&6.0));
        assert!(
            steps.windows(2).all(|two| two[1] - two[0] <= 1.0),
            "{steps:?}"
        );
        // Between two values it keeps its own.
        assert_eq!(Actuator::Concurrency.rounded(4.55, 4.0, 1.0, 100.0), 4.0);
        assert_eq!(Actuator::Concurrency.rounded(4.45, 5.0, 1.0, 100.0), 5.0);
    }

    #[test]
    fn the_slots_are_the_bottleneck_where_they_are_used_up_or_half_used_while_jobs_wait() {
        let limited =
            |in_use, waiting| limited_by_slots(in_use, RateLimit::PerSecond(10.0), waiting) > 0.5;
        assert!(limited(9.0, None) && limited(12.0, Some(0.0)) && limited(6.0, Some(3.0)));
        assert!(!limited(6.0, Some(0.0)) && !limited(6.0, None) && !limited(4.0, Some(100.0)));
        assert_eq!(
            limited_by_slots(3.0, RateLimit::Unlimited, Some(9.0)),
            0.0,
            "without a limit nothing is limited"
        );
    }

    proptest! {
        #[test]
        fn what_is_set_is_whole_at_least_one_and_within_its_bounds(
            wanted in prop_oneof![any::<f64>(), 0.0..50.0f64],
            before in prop_oneof![Just(0.0), Just(-1.0), (1u32..60).prop_map(f64::from)],
            min in prop_oneof![any::<f64>(), 0.01..5.0f64],
            max in prop_oneof![any::<f64>(), 1.0..60.0f64],
        ) {
            let bounds = Actuator::Concurrency.bounds(Bounds { min, max, safe_rps: 1.0 });
            prop_assert!(bounds.min >= 1.0 && bounds.min <= bounds.max && bounds.min.fract() == 0.0 && bounds.max.fract() == 0.0);
            if wanted.is_finite() {
                let knob = Actuator::Concurrency.rounded(wanted, before, bounds.min, bounds.max);
                prop_assert!(knob.fract() == 0.0 && knob >= bounds.min && knob <= bounds.max, "{knob}");
                prop_assert_eq!(number("concurrency", &Actuator::Concurrency.spell(knob)), Some(knob));
            }
        }
    }
}
