//! The bounds of a governed knob.

use crate::control::clamp_finite;
use crate::throttle::RateLimit;

/// The knobs that bound a governor, in jobs per second or slots (see [`super::actuator`]).
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Bounds {
    /// The lowest rate that the governor may set.
    pub min: f64,
    /// The highest rate that the governor may set.
    pub max: f64,
    /// The rate to which it falls while signals are stale.
    pub safe_rps: f64,
}

impl Bounds {
    /// The highest rate ever set.
    pub const MAX_RATE: f64 = 1e9;
    /// The lowest rate ever set, except 0.
    pub const MIN_RATE: f64 = 1e-6;

    /// Returns valid bounds: positive, finite and in order.
    pub fn sound(self) -> Self {
        let max = if self.max > 0.0 {
            clamp_finite(self.max, Self::MIN_RATE, Self::MAX_RATE)
        } else {
            Self::MAX_RATE
        };
        let min = clamp_finite(self.min, Self::MIN_RATE, max);
        Self {
            min,
            max,
            safe_rps: clamp_finite(self.safe_rps, 0.0, max),
        }
    }

    /// Returns the lowest rate: `min`, or a lower rate that a person set.
    pub(super) fn lowest(self, held: Option<f64>) -> f64 {
        let held = held.unwrap_or(f64::INFINITY);
        self.min.min(held).max(Self::MIN_RATE)
    }

    /// Returns the highest rate: `max`, or a lower rate that a person set.
    pub(super) fn highest(self, held: Option<f64>) -> f64 {
        self.max.min(held.unwrap_or(f64::INFINITY))
    }

    /// Returns a rate within the bounds for a knob: a stop is the lowest, no limit the highest.
    pub(super) fn rate_of(self, knob: RateLimit) -> f64 {
        match knob {
            RateLimit::PerSecond(rps) => rps.clamp(Self::MIN_RATE, self.max),
            RateLimit::Unlimited => self.max,
            RateLimit::Stopped => self.min,
        }
    }
}
