//! Times of the law, which are unix seconds, as timestamps.

use jiff::Timestamp;

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

    #[test]
    fn times_beyond_the_calendar_do_no_harm() {
        assert_eq!(timestamp(1e300), Timestamp::MAX);
        assert_eq!(timestamp(-1e300), Timestamp::MIN);
        assert_eq!(unix_s(timestamp(1_700_000_000.5)), 1_700_000_000.5);
    }
}
