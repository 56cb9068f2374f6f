//! Reads the rest of a quota from an answer's headers, in any of the usual forms.
//!
//! ```text
//!   RateLimit: "tenant";r=43;t=18, "day";r=900;t=4000   the newest form: the item that leaves
//!                                                       least for each second
//!   RateLimit: limit=50, remaining=0, reset=60          draft 7
//!   RateLimit-Remaining, RateLimit-Reset                draft 6: seconds from now
//!   X-RateLimit-Remaining, X-RateLimit-Reset(-After)    seconds from now, or a unix time in
//!                                                       seconds or milliseconds
//! ```
//!
//! The first of them that can be read counts. A field that is malformed or incomplete is ignored.

use std::time::Duration;

use super::retry_after::{Headers, clock, from_now, parameter, seconds};
use crate::jobs::Quota;

/// The latest end of a window that is believed, in seconds: a day. The throttle decides how long
/// the quota then counts.
const LONGEST_S: f64 = 86_400.0;

/// Returns the rest of the quota in the headers; `now_s` (unix seconds) counts if there is no
/// `Date`.
pub fn quota(headers: &Headers, now_s: i64) -> Option<Quota> {
    let number = |name: &str| headers.get(name).and_then(|text| seconds(text.trim()));
    let policy = headers.get("ratelimit-policy").map_or("", String::as_str);
    headers
        .get("ratelimit")
        .and_then(|text| draft_7(text).or_else(|| newest(text, policy)))
        .or_else(|| left(number("ratelimit-remaining")?, number("ratelimit-reset")?))
        .or_else(|| {
            let reset = number("x-ratelimit-reset-after").or_else(|| {
                number("x-ratelimit-reset").map(|reset| from_now(reset, clock(headers, now_s)))
            })?;
            left(number("x-ratelimit-remaining")?, reset)
        })
}

/// Parses one list of parameters, none of which belongs to a name.
fn draft_7(text: &str) -> Option<Quota> {
    let find = |name| text.split(',').find_map(|item| parameter(item, name));
    left(find("remaining")?, find("reset")?)
}

/// Parses a list of items with parameters. An item without `t` lasts as long as its policy's window
/// `w`.
fn newest(text: &str, policy: &str) -> Option<Quota> {
    let items = items(text).into_iter().filter_map(|item| {
        let window = || {
            items(policy)
                .into_iter()
                .find(|other| name(other) == name(item))
                .and_then(|other| parameter(other, "w"))
        };
        left(parameter(item, "r")?, parameter(item, "t").or_else(window)?)
    });
    items.min_by(|a, b| pace(a).total_cmp(&pace(b)))
}

/// Returns the requests left per second; all of them for a window that ends now.
fn pace(quota: &Quota) -> f64 {
    quota.remaining / quota.reset.as_secs_f64().max(1e-3)
}

/// Splits a list into its items; commas within quotes belong to a name.
fn items(text: &str) -> Vec<&str> {
    let mut quoted = false;
    text.split(|c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    })
    .collect()
}

fn name(item: &str) -> &str {
    item.split(';').next().unwrap_or_default().trim()
}

fn left(remaining: f64, reset_s: f64) -> Option<Quota> {
    let reset = Duration::try_from_secs_f64(reset_s.clamp(0.0, LONGEST_S)).ok()?;
    Some(Quota { remaining, reset })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    fn parsed_quota(headers: &[(&str, &str)]) -> Option<(f64, f64)> {
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        quota(&headers, 784_111_787).map(|quota| (quota.remaining, quota.reset.as_secs_f64()))
    }

    /// Headers, and the rest of the quota with its seconds.
    type Case<'a> = (&'a [(&'a str, &'a str)], (f64, f64));

    #[test]
    fn every_way_of_saying_it_is_understood() {
        let cases: &[Case<'_>] = &[
            (&[("ratelimit", "\"tenant\";r=43;t=18")], (43.0, 18.0)),
            (
                &[("ratelimit", "\"burst\";r=5;t=1, \"day\";r=900;t=40000")],
                (900.0, 40_000.0),
            ),
            (
                &[("ratelimit", "\"a, b\";r=7;t=9, \"c\";r=800;t=9")],
                (7.0, 9.0),
            ),
            (
                &[("ratelimit", "\"day\";r=0;t=400, \"burst\";r=3;t=1")],
                (0.0, 400.0),
            ),
            (&[("ratelimit", "\"a\";r=x;t=1, \"b\";r=6;t=2")], (6.0, 2.0)),
            (
                &[
                    ("ratelimit", "\"a\";r=60"),
                    ("ratelimit-policy", "\"b\";q=1;w=5, \"a\";q=100;w=30"),
                ],
                (60.0, 30.0),
            ),
            (
                &[("ratelimit", "limit=50, remaining=0, reset=60")],
                (0.0, 60.0),
            ),
            (
                &[
                    ("ratelimit", "limit=100, remaining=50, reset=5"),
                    ("ratelimit-remaining", "1"),
                ],
                (50.0, 5.0),
            ),
            (
                &[
                    ("ratelimit-limit", "10"),
                    ("ratelimit-remaining", "9"),
                    ("ratelimit-reset", "30"),
                ],
                (9.0, 30.0),
            ),
            (
                &[("x-ratelimit-remaining", "4"), ("x-ratelimit-reset", "12")],
                (4.0, 12.0),
            ),
            (
                &[
                    ("x-ratelimit-remaining", "4"),
                    ("x-ratelimit-reset-after", "1.5"),
                    ("x-ratelimit-reset", "12"),
                ],
                (4.0, 1.5),
            ),
            (
                &[
                    ("x-ratelimit-remaining", "4"),
                    ("x-ratelimit-reset", "784111807"),
                    ("date", DATE),
                ],
                (4.0, 30.0),
            ),
            (
                &[
                    ("x-ratelimit-remaining", "4"),
                    ("x-ratelimit-reset", "784111807000"),
                    ("date", DATE),
                ],
                (4.0, 30.0),
            ),
            (
                &[
                    ("x-ratelimit-remaining", "4"),
                    ("x-ratelimit-reset", "784111807"),
                ],
                (4.0, 20.0),
            ),
            (
                &[
                    ("x-ratelimit-remaining", "4"),
                    ("x-ratelimit-reset", "784111000"),
                    ("date", DATE),
                ],
                (4.0, 0.0),
            ),
            (
                &[
                    ("ratelimit", "nonsense"),
                    ("x-ratelimit-remaining", "4"),
                    ("x-ratelimit-reset", "12"),
                ],
                (4.0, 12.0),
            ),
        ];
        for (headers, expected) in cases {
            assert_eq!(parsed_quota(headers), Some(*expected), "{headers:?}");
        }
    }

    #[test]
    fn what_is_malformed_or_half_of_it_says_nothing() {
        let cases: &[&[(&str, &str)]] = &[
            &[],
            &[("ratelimit", "")],
            &[("ratelimit", "\"a\";r=-3;t=5")],
            &[("ratelimit", "\"a\";r=3")],
            &[("ratelimit", "remaining=3")],
            &[("ratelimit", "remaining=3, reset=soon")],
            &[("ratelimit-remaining", "3")],
            &[("ratelimit-remaining", "3"), ("ratelimit-reset", "NaN")],
            &[("x-ratelimit-remaining", "1e3"), ("x-ratelimit-reset", "3")],
            &[
                ("x-ratelimit-remaining", "many"),
                ("x-ratelimit-reset", "3"),
            ],
            &[("x-ratelimit-reset", "3")],
        ];
        for headers in cases {
            assert_eq!(parsed_quota(headers), None, "{headers:?}");
        }
    }
}
