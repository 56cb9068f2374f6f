//! The only module of the composed process that reads the wall clock.

/// Returns this machine's time, for ages that people read; decisions use the servers' clocks.
#[expect(clippy::disallowed_methods, reason = "the place that injects the time")]
pub(super) fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// Returns this machine's time in unix seconds.
pub(super) fn unix_s() -> f64 {
    now().as_microsecond() as f64 / 1e6
}
