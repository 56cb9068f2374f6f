//! The limit of a rate, in tokens per second.

use std::fmt;

use serde::{Serialize, Serializer};

/// The limit of a rate. The order is from the slowest to the fastest.
///
/// In knobs, answers and metrics it is one number, as [`RateLimit::number`] returns it: 0 is
/// stopped, -1 is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub enum RateLimit {
    /// Nothing passes.
    Stopped,
    /// So many tokens per second pass; above 0.
    PerSecond(f64),
    /// Everything passes.
    #[default]
    Unlimited,
}

impl RateLimit {
    /// Returns the limit of a number in tokens per second: 0 is stopped, a number below 0 is
    /// unlimited.
    pub fn new(rps: f64) -> Self {
        match rps {
            rps if rps > 0.0 => Self::PerSecond(rps),
            rps if rps < 0.0 => Self::Unlimited,
            _ => Self::Stopped,
        }
    }

    /// Returns the number that represents the limit in knobs, answers and metrics: tokens per
    /// second, 0 if stopped, -1 if unlimited.
    pub fn number(self) -> f64 {
        self.tokens().unwrap_or(-1.0)
    }

    /// Returns the tokens per second, 0 if stopped; `None` if unlimited.
    pub fn tokens(self) -> Option<f64> {
        match self {
            Self::Stopped => Some(0.0),
            Self::PerSecond(rps) => Some(rps),
            Self::Unlimited => None,
        }
    }

    /// Returns the tokens per second of a limit that is neither stopped nor unlimited.
    pub fn rate(self) -> Option<f64> {
        self.tokens().filter(|rps| *rps > 0.0)
    }

    /// Returns the slower of two limits.
    #[must_use]
    pub fn slower(self, other: Self) -> Self {
        if other < self { other } else { self }
    }

    /// Returns the limit of a part of the rate; stopped and unlimited stay what they are.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        match self {
            Self::PerSecond(rps) => Self::new((rps * factor).max(0.0)),
            other => other,
        }
    }

    /// Returns true if nothing passes.
    pub fn is_stopped(self) -> bool {
        self == Self::Stopped
    }

    /// Returns true if everything passes.
    pub fn is_unlimited(self) -> bool {
        self == Self::Unlimited
    }
}

impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

impl<'de> serde::Deserialize<'de> for RateLimit {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::Deserialize::deserialize(deserializer).map(Self::new)
    }
}

impl Serialize for RateLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.number().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_written_and_the_slower_one_counts() {
        for (number, limit) in [
            (-1.0, RateLimit::Unlimited),
            (0.0, RateLimit::Stopped),
            (2.5, RateLimit::PerSecond(2.5)),
        ] {
            assert_eq!((RateLimit::new(number), limit.number()), (limit, number));
        }
        let sorted = [
            RateLimit::Stopped,
            RateLimit::PerSecond(0.1),
            RateLimit::PerSecond(7.0),
            RateLimit::Unlimited,
        ];
        for (at, slow) in sorted.into_iter().enumerate() {
            for fast in &sorted[at..] {
                assert_eq!((slow.slower(*fast), fast.slower(slow)), (slow, slow));
            }
        }
    }

    #[test]
    fn only_a_rate_is_scaled() {
        assert_eq!(
            RateLimit::PerSecond(8.0).scaled(0.25),
            RateLimit::PerSecond(2.0)
        );
        assert_eq!(RateLimit::PerSecond(8.0).scaled(0.0), RateLimit::Stopped);
        assert_eq!(RateLimit::Unlimited.scaled(0.25), RateLimit::Unlimited);
        assert_eq!(RateLimit::Stopped.scaled(3.0), RateLimit::Stopped);
    }
}
