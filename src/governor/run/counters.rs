//! The rates of a throttle's own counters since they were last read.

use crate::throttle::{RateLimit, Status};

/// A throttle's cumulative counters, by its store's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counters {
    /// The store's time, in unix microseconds.
    pub at_us: i64,
    /// The tokens taken, net of refunds.
    pub used: f64,
    /// The time with waiters, in microseconds.
    pub limited_us: f64,
}

/// The share of a knob in use from which it counts as the limit, whatever the waiting time: a
/// worker that asks for many tokens at a time waits only for the next one and is served again much
/// later.
const KNOB_LIMITED_SHARE: f64 = 0.9;

/// The counters' increase as rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// The tokens taken per second.
    pub achieved_rps: f64,
    /// The share of the time with waiters, 0 to 1.
    pub limiting_share: f64,
}

impl Flow {
    /// Returns the flow without its waits, for a throttle whose rolling windows make jobs wait as
    /// well: only the tokens taken tell then that the rate is the limit.
    #[must_use]
    pub fn without_waits(self) -> Self {
        Self {
            limiting_share: 0.0,
            ..self
        }
    }

    /// Returns the share of the time in which `limit` was the limit.
    pub fn limited_by(&self, limit: RateLimit) -> f64 {
        let used = limit.rate().map_or(0.0, |rps| self.achieved_rps / rps);
        if used >= KNOB_LIMITED_SHARE {
            used.min(1.0).max(self.limiting_share)
        } else {
            self.limiting_share
        }
    }
}

impl Counters {
    /// Reads the counters of a status.
    pub fn of(status: &Status) -> Self {
        Self {
            at_us: status.at_us,
            used: status.used,
            limited_us: status.limited_us,
        }
    }

    /// Returns the rates since `earlier`; `None` if no time passed or the counters restarted.
    pub fn since(&self, earlier: &Self) -> Option<Flow> {
        let us = self.at_us.checked_sub(earlier.at_us)? as f64;
        let (used, limited_us) = (
            self.used - earlier.used,
            self.limited_us - earlier.limited_us,
        );
        // Refunds lower `used` a little; a restart lowers it to zero, and never leaves the waiting
        // time unchanged.
        let began_again = limited_us < 0.0 || (used < 0.0 && self.used < 0.5 * earlier.used);
        if us <= 0.0 || began_again || !used.is_finite() || !limited_us.is_finite() {
            return None;
        }
        Some(Flow {
            achieved_rps: used.max(0.0) * 1e6 / us,
            limiting_share: (limited_us / us).clamp(0.0, 1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLIER: Counters = Counters {
        at_us: 1_000_000,
        used: 100.0,
        limited_us: 500_000.0,
    };

    fn since(at_us: i64, used: f64, limited_us: f64) -> Option<(f64, f64)> {
        Counters {
            at_us,
            used,
            limited_us,
        }
        .since(&EARLIER)
        .map(|f| (f.achieved_rps, f.limiting_share))
    }

    #[test]
    fn counters_become_rates_by_the_stores_clock() {
        assert_eq!(since(6_000_000, 150.0, 3_000_000.0), Some((10.0, 0.5)));
        assert_eq!(
            since(6_000_000, 99.0, 500_000.0),
            Some((0.0, 0.0)),
            "refunds"
        );
        assert_eq!(since(6_000_000, 100.0, 9e9), Some((0.0, 1.0)));
    }

    #[test]
    fn a_knob_that_is_used_up_is_the_limit_whatever_the_waiting_time_says() {
        let flow = |achieved_rps, limiting_share| {
            Flow {
                achieved_rps,
                limiting_share,
            }
            .limited_by(RateLimit::PerSecond(100.0))
        };
        assert_eq!(
            (
                flow(95.0, 0.1),
                flow(120.0, 0.1),
                flow(50.0, 0.1),
                flow(50.0, 0.8)
            ),
            (0.95, 1.0, 0.1, 0.8)
        );
        assert_eq!(
            Flow {
                achieved_rps: 0.0,
                limiting_share: 0.2
            }
            .limited_by(RateLimit::Stopped),
            0.2
        );
    }

    #[test]
    fn beside_windows_only_a_knob_that_is_used_up_is_the_limit() {
        let flow = |achieved_rps| {
            Flow {
                achieved_rps,
                limiting_share: 1.0,
            }
            .without_waits()
            .limited_by(RateLimit::PerSecond(100.0))
        };
        assert_eq!((flow(95.0), flow(1.0)), (0.95, 0.0));
    }

    #[test]
    fn counters_that_began_again_or_a_clock_that_stands_say_nothing() {
        assert_eq!(since(6_000_000, 3.0, 10.0), None);
        assert_eq!(since(6_000_000, 3.0, 600_000.0), None);
        assert_eq!(since(1_000_000, 150.0, 3_000_000.0), None);
        assert_eq!(since(500_000, 150.0, 3_000_000.0), None);
    }
}
