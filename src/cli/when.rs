//! Times on the command line: a time, or a span before or after now.

use jiff::{SignedDuration, Timestamp};

/// Reads `2026-11-20T14:00:00Z`, or a span before now such as `2h` or `30m`.
pub(super) fn ago(text: &str) -> Result<Timestamp, String> {
    read(text, now(), -1)
}

/// Reads `2026-11-20T14:00:00Z`, or a span after now such as `2h` or `30m`.
pub(super) fn ahead(text: &str) -> Result<Timestamp, String> {
    read(text, now(), 1)
}

/// Reads a span such as `10m` or `2h`, or a number of seconds; the queue checks the range.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let span = text.parse::<SignedDuration>().map_err(|_| {
        "allowed are a span such as 90s, 10m or 2h and a number of seconds".to_owned()
    })?;
    Ok(span.as_secs_f64())
}

/// Returns the time of this machine, from which spans on the command line are counted.
#[expect(
    clippy::disallowed_methods,
    reason = "a span on the command line is relative to the local clock"
)]
pub(super) fn now() -> Timestamp {
    Timestamp::now()
}

/// Returns the time in so many seconds.
pub(super) fn in_seconds(seconds: u64) -> Option<Timestamp> {
    let span = SignedDuration::from_secs(i64::try_from(seconds).ok()?);
    now().checked_add(span).ok()
}

fn read(text: &str, now: Timestamp, direction: i32) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    text.parse::<SignedDuration>()
        .ok()
        .filter(|span| span.is_positive())
        .and_then(|span| span.checked_mul(direction))
        .and_then(|span| now.checked_add(span).ok())
        .ok_or_else(|| {
            "allowed are a time such as 2026-11-20T14:00:00Z and a span such as 90s, 30m or 2h"
                .to_owned()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_a_span_or_seconds() {
        assert_eq!(
            (seconds("10m"), seconds("1.5"), seconds("-1")),
            (Ok(600.0), Ok(1.5), Ok(-1.0))
        );
        assert!(
            seconds("ten minutes")
                .unwrap_err()
                .contains("90s, 10m or 2h")
        );
    }

    #[test]
    fn a_span_is_counted_from_now_and_a_time_is_itself() {
        let now = Timestamp::from_second(10_000).unwrap();
        assert_eq!(read("2h", now, -1).unwrap().as_second(), 10_000 - 7_200);
        assert_eq!(read("90s", now, 1).unwrap().as_second(), 10_090);
        assert_eq!(read("1970-01-01T00:00:07Z", now, 1).unwrap().as_second(), 7);
        for bad in ["", "soon", "-2h", "0s", "2026-11-20", "99999999999999h"] {
            assert!(read(bad, now, -1).is_err(), "{bad}");
        }
    }
}
