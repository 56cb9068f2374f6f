//! What an answer means for the job.
//!
//! ```text
//!   listed as success (200 to 299)    done
//!   429, or 503 with Retry-After      throttled: the key waits, no attempt is used
//!   408, other 5xx, no answer         retry
//!   everything else                   dead: it would be answered the same again
//! ```

use std::ops::RangeInclusive;

use super::Request;
use super::retry_after::{Headers, any_delay, retry_after};
use crate::jobs::{Outcome, Scope};

/// Most bytes of a body that are kept with a dead job; other errors keep a quarter.
pub const EXCERPT_BYTES: usize = 1024;

/// The shortest header value of ours that is looked for in an answer, so that no common word is crossed out.
const SECRET_BYTES: usize = 8;

/// An answer, as far as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: Headers,
    /// The beginning of the body, at most [`EXCERPT_BYTES`].
    pub excerpt: Vec<u8>,
}

/// True if the status means done.
pub fn is_success(success: &[RangeInclusive<u16>], status: u16) -> bool {
    success.iter().any(|range| range.contains(&status))
}

impl Response {
    /// The outcome of a request that was answered; `now_s` in unix seconds.
    pub fn outcome(&self, request: &Request, now_s: i64) -> Outcome {
        let asked = retry_after(&self.headers, now_s);
        let error = |bytes| self.error(request, bytes);
        match self.status {
            status if is_success(&request.success, status) => Outcome::Done,
            429 => {
                Outcome::Throttled { scope: Scope::Key, delay: any_delay(&self.headers, now_s), error: error(EXCERPT_BYTES / 4) }
            }
            503 if asked.is_some() => Outcome::Throttled { scope: Scope::Key, delay: asked, error: error(EXCERPT_BYTES / 4) },
            408 | 500..=599 => Outcome::Retry { after: None, error: error(EXCERPT_BYTES / 4) },
            300..=399 => Outcome::Dead { error: format!("{}; redirects are not followed", error(EXCERPT_BYTES / 4)) },
            _ => Outcome::Dead { error: error(EXCERPT_BYTES) },
        }
    }

    /// Status and the beginning of the body: the server's words only. A server that repeats our headers gets them
    /// crossed out, because they may be secrets.
    fn error(&self, request: &Request, most: usize) -> String {
        let bytes = &self.excerpt[..self.excerpt.len().min(most)];
        let mut body = String::from_utf8_lossy(bytes).into_owned();
        for (_, value) in request.headers.iter().filter(|(_, value)| value.len() >= SECRET_BYTES) {
            body = body.replace(value.as_str(), "***");
            // `Bearer x` and `Basic x` may come back without their first word.
            if let Some((_, secret)) = value.split_once(' ').filter(|(_, secret)| secret.len() >= SECRET_BYTES) {
                body = body.replace(secret, "***");
            }
        }
        let body: String = body.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        match body.trim() {
            "" => format!("answered {}", self.status),
            body => format!("answered {}: {body}", self.status),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn outcome(status: u16, headers: &[(&str, &str)], body: &str) -> Outcome {
        let args = json!({"url": "http://a", "headers": {"Authorization": "Bearer very-secret", "X": "ok"}});
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let response = Response { status, headers, excerpt: body.as_bytes().to_vec() };
        response.outcome(&Request::parse(&args).unwrap(), 0)
    }

    #[test]
    fn each_status_has_its_meaning() {
        let after = [("retry-after", "7")];
        let seven = Some(Duration::from_secs(7));
        assert_eq!(outcome(204, &[], ""), Outcome::Done);
        assert_eq!(
            outcome(429, &after, ""),
            Outcome::Throttled { scope: Scope::Key, delay: seven, error: "answered 429".to_owned() }
        );
        assert_eq!(
            outcome(429, &[], "slow"),
            Outcome::Throttled { scope: Scope::Key, delay: None, error: "answered 429: slow".to_owned() }
        );
        assert_eq!(
            outcome(503, &after, ""),
            Outcome::Throttled { scope: Scope::Key, delay: seven, error: "answered 503".to_owned() }
        );
        for status in [408, 500, 502, 503, 504, 599] {
            assert!(matches!(outcome(status, &[("x-ratelimit-reset", "3")], ""), Outcome::Retry { after: None, .. }), "{status}");
        }
        for status in [400, 401, 403, 404, 410, 422, 301, 302, 304, 199] {
            assert!(matches!(outcome(status, &after, ""), Outcome::Dead { .. }), "{status}");
        }
    }

    #[test]
    fn listed_statuses_and_only_those_mean_done() {
        let listed = |success| {
            let request = Request::parse(&json!({"url": "http://a", "success": success})).unwrap();
            move |status| Response { status, headers: Headers::new(), excerpt: Vec::new() }.outcome(&request, 0)
        };
        assert_eq!(listed(json!([404]))(404), Outcome::Done);
        assert_eq!(listed(json!(["300-399"]))(302), Outcome::Done);
        assert_eq!(listed(json!([429]))(429), Outcome::Done);
        assert!(matches!(listed(json!([200]))(202), Outcome::Dead { .. }));
    }

    #[test]
    fn errors_keep_a_short_excerpt_on_one_line_and_none_of_our_headers() {
        let Outcome::Dead { error } = outcome(400, &[], "no\r\ntoken Bearer very-secret or very-secret here ok") else {
            panic!("dead")
        };
        assert_eq!(error, "answered 400: no  token *** or *** here ok");

        let Outcome::Dead { error } = outcome(400, &[], &"é".repeat(5000)) else { panic!("dead") };
        assert!(error.len() <= "answered 400: ".len() + EXCERPT_BYTES + 3, "{}", error.len());
    }
}
