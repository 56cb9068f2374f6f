//! Reads the delay that a server asks for, in any of the usual forms.
//!
//! In this order: `Retry-After` (seconds or a date), `RateLimit` with `t` or `reset` (IETF drafts),
//! `RateLimit-Reset`, `X-RateLimit-Reset-After`, `X-RateLimit-Reset` (seconds from now, or a unix
//! time in seconds or milliseconds), and as the last resort the window `w` of `RateLimit-Policy`.
//! Dates and unix times are compared with the answer's own `Date`, so that a wrong clock on either
//! side does no harm.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

/// The longest delay, even if the server asks for more.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A server's headers by their names in lower case; the values of repeated ones are joined by
/// commas.
pub type Headers = BTreeMap<String, String>;

/// Returns the delay of `Retry-After`, at most [`MAX_RETRY_AFTER`]; 0 and past dates mean at once.
/// `now_s` (unix seconds) counts if there is no `Date`.
pub fn retry_after(headers: &Headers, now_s: i64) -> Option<Duration> {
    let text = headers.get("retry-after")?.trim();
    let seconds = seconds(text).or_else(|| Some((date(text)? - clock(headers, now_s)) as f64))?;
    Some(clamped(seconds))
}

/// Returns the delay of the first header that has one, as [`retry_after`] does.
pub fn any_delay(headers: &Headers, now_s: i64) -> Option<Duration> {
    let number = |name: &str| headers.get(name).and_then(|text| seconds(text.trim()));
    retry_after(headers, now_s).or_else(|| {
        let seconds = headers
            .get("ratelimit")
            .and_then(|text| reset_of_rate_limit(text))
            .or_else(|| number("ratelimit-reset"))
            .or_else(|| number("x-ratelimit-reset-after"))
            .or_else(|| {
                number("x-ratelimit-reset").map(|reset| from_now(reset, clock(headers, now_s)))
            })
            .or_else(|| {
                headers
                    .get("ratelimit-policy")
                    .and_then(|text| longest(text, "w"))
            });
        seconds.map(clamped)
    })
}

fn clamped(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, MAX_RETRY_AFTER.as_secs_f64()))
}

/// Parses a number of seconds that is not negative.
pub(super) fn seconds(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.parse().ok().filter(|n: &f64| plain && n.is_finite())
}

/// Parses an HTTP date as unix seconds.
fn date(text: &str) -> Option<i64> {
    let since = httpdate::parse_http_date(text)
        .ok()?
        .duration_since(UNIX_EPOCH)
        .ok()?;
    i64::try_from(since.as_secs()).ok()
}

/// Returns the server's clock if it sends a `Date`, else ours.
pub(super) fn clock(headers: &Headers, now_s: i64) -> i64 {
    headers
        .get("date")
        .and_then(|text| date(text.trim()))
        .unwrap_or(now_s)
}

/// Returns the seconds from now of a reset in seconds from now, unix seconds or unix milliseconds;
/// a number above 3e8, nearly ten years, must be a time.
pub(super) fn from_now(reset: f64, clock_s: i64) -> f64 {
    match reset {
        ms if ms > 1e11 => ms / 1000.0 - clock_s as f64,
        unix if unix > 3e8 => unix - clock_s as f64,
        delta => delta,
    }
}

/// Returns the longest wait of a limit that has nothing left, or else the longest of all, from
/// `limit=100, remaining=0, reset=50` or `"burst";r=0;t=5, "day";r=9;t=400`.
fn reset_of_rate_limit(text: &str) -> Option<f64> {
    if let Some(reset) = longest(text, "reset") {
        return Some(reset);
    }
    let spent: Vec<&str> = text
        .split(',')
        .filter(|item| parameter(item, "r") == Some(0.0))
        .collect();
    longest(&spent.join(","), "t").or_else(|| longest(text, "t"))
}

/// Returns the largest value of a parameter over all items of a list.
fn longest(text: &str, name: &str) -> Option<f64> {
    text.split(',')
        .filter_map(|item| parameter(item, name))
        .reduce(f64::max)
}

pub(super) fn parameter(item: &str, name: &str) -> Option<f64> {
    item.split(';').find_map(|part| {
        let (found, value) = part.split_once('=')?;
        found
            .trim()
            .eq_ignore_ascii_case(name)
            .then(|| seconds(value.trim()))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const DATE_S: i64 = 784_111_777;

    fn delay(headers: &[(&str, &str)]) -> Option<f64> {
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        any_delay(&headers, DATE_S + 10).map(|delay| delay.as_secs_f64())
    }

    #[test]
    fn every_way_of_saying_it_is_understood() {
        let cases: &[(&[(&str, &str)], f64)] = &[
            (&[("retry-after", "120")], 120.0),
            (&[("retry-after", " 2.5 ")], 2.5),
            (
                &[
                    ("retry-after", "Sun, 06 Nov 1994 08:50:37 GMT"),
                    ("date", DATE),
                ],
                60.0,
            ),
            (&[("retry-after", "Sun, 06 Nov 1994 08:50:37 GMT")], 50.0),
            (
                &[
                    ("retry-after", "Sunday, 06-Nov-94 08:50:37 GMT"),
                    ("date", DATE),
                ],
                60.0,
            ),
            (&[("ratelimit", "limit=100, remaining=0, reset=50")], 50.0),
            (
                &[("ratelimit", "\"burst\";r=0;t=5, \"day\";r=9;t=400")],
                5.0,
            ),
            (&[("ratelimit", "\"default\";r=1;t=30")], 30.0),
            (&[("ratelimit-reset", "17")], 17.0),
            (&[("x-ratelimit-reset-after", "1.25")], 1.25),
            (&[("x-ratelimit-reset", "42")], 42.0),
            (&[("x-ratelimit-reset", "784111807"), ("date", DATE)], 30.0),
            (
                &[("x-ratelimit-reset", "784111807000"), ("date", DATE)],
                30.0,
            ),
            (&[("ratelimit-policy", "\"default\";q=100;w=60")], 60.0),
            (&[("retry-after", "soon"), ("x-ratelimit-reset", "9")], 9.0),
            (&[("retry-after", "3"), ("x-ratelimit-reset", "900")], 3.0),
            (
                &[("retry-after", "3"), ("ratelimit", "\"a\";r=0;t=60")],
                3.0,
            ),
        ];
        for (headers, expected) in cases {
            assert_eq!(delay(headers), Some(*expected), "{headers:?}");
        }
    }

    #[test]
    fn zero_and_what_is_past_mean_at_once_and_no_pause_is_longer_than_a_day() {
        for headers in [
            &[("retry-after", "0")][..],
            &[
                ("retry-after", "Sun, 06 Nov 1994 07:00:00 GMT"),
                ("date", DATE),
            ],
            &[("x-ratelimit-reset", "784111700"), ("date", DATE)],
            &[("retry-after", "0"), ("ratelimit", "\"a\";r=0;t=60")],
        ] {
            assert_eq!(delay(headers), Some(0.0), "{headers:?}");
        }
        assert_eq!(delay(&[("retry-after", "86400")]), Some(86_400.0));
        assert_eq!(
            delay(&[("retry-after", "99999999999999999999999999")]),
            Some(86_400.0)
        );
        assert_eq!(
            delay(&[("x-ratelimit-reset", "99999999999999999")]),
            Some(86_400.0)
        );
    }

    #[test]
    fn nonsense_says_nothing() {
        for text in [
            "",
            "soon",
            "-5",
            "NaN",
            "inf",
            "1e3",
            "12 monkeys",
            "Sun, 99 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(delay(&[("retry-after", text)]), None, "{text}");
        }
        assert_eq!(delay(&[("ratelimit", "\"x\";r=0")]), None);
        assert_eq!(delay(&[]), None);
    }
}
