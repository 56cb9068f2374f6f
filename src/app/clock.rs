//! The one place where the composed process looks at the time of day.

/// The time of this machine, for ages that people read; decisions take the servers' clocks.
#[expect(clippy::disallowed_methods, reason = "this is the place that hands the time in")]
pub(super) fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// As unix seconds.
pub(super) fn unix_s() -> f64 {
    now().as_microsecond() as f64 / 1e6
}
