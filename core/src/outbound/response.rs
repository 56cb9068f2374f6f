//! Outcomes of answers for the job.
//!
//! ```text
//!   listed as success (200 to 299)    done
//!   429, or 503 with Retry-After      throttled: the scope it names waits, no attempt is used
//!   408, other 5xx                    retry
//!   everything else                   dead: a retry would get the same answer
//! ```

use std::ops::RangeInclusive;

use super::Request;
use super::credentials::Credentials;
use super::retry_after::{Headers, any_delay, retry_after};
use crate::jobs::{Outcome, Scope};

/// Headers of an answer that are kept with a failed job, because they help to find the cause.
const KEPT_HEADERS: [&str; 6] = [
    "location",
    "retry-after",
    "www-authenticate",
    "x-request-id",
    "request-id",
    "cf-ray",
];

/// Most characters of each kept header.
const KEPT_CHARS: usize = 100;

/// The shortest secret header value that is masked in an answer; shorter ones could be common
/// words.
const SECRET_BYTES: usize = 8;

/// Least length of a secret's beginning that is masked at the end of an answer, in bytes.
const BEGUN_BYTES: usize = 4;

/// An answer, as far as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    pub status: u16,
    pub headers: Headers,
    /// The beginning of the body, at most as long as the request wants to keep.
    pub excerpt: Vec<u8>,
}

/// Returns true if the status counts as success.
pub fn is_success(success: &[RangeInclusive<u16>], status: u16) -> bool {
    success.iter().any(|range| range.contains(&status))
}

impl Response {
    /// Returns the outcome of an answered request; `now_s` in unix seconds.
    pub fn outcome(&self, request: &Request, now_s: i64) -> Outcome {
        let requested = retry_after(&self.headers, now_s);
        let scope = scope(&self.headers).unwrap_or(request.throttled_scope);
        let (brief, whole) = (request.excerpt_bytes / 4, request.excerpt_bytes);
        let error = |bytes| self.error(request, bytes);
        match self.status {
            status if is_success(&request.success, status) => Outcome::Done,
            429 => Outcome::Throttled {
                scope,
                delay: any_delay(&self.headers, now_s),
                error: error(brief),
            },
            503 if requested.is_some() => Outcome::Overloaded {
                scope,
                delay: requested,
                error: error(brief),
            },
            408 | 500..=599 => Outcome::Retry {
                after: None,
                error: error(brief),
            },
            300..=399 => {
                let why = match request.redirects {
                    0 => "redirects are not followed".to_owned(),
                    most => format!(
                        "at most {most} redirects are followed, and only with a Location header"
                    ),
                };
                Outcome::Dead {
                    error: format!("{}; {why}", error(brief)),
                }
            }
            _ => Outcome::Dead {
                error: error(whole),
            },
        }
    }

    /// Returns status, some headers and the beginning of the body, all in the server's words.
    ///
    /// Our own headers are masked in them, because they may be secrets that the server repeats.
    fn error(&self, request: &Request, most: usize) -> String {
        let secrets = secrets(request);
        let kept = KEPT_HEADERS.iter().filter_map(|name| {
            let value = self.headers.get(*name)?;
            let place = (*name == "location").then(|| without_secret_parts(value));
            let value = place.as_deref().unwrap_or(value);
            let value: String = tidy(value, &secrets).chars().take(KEPT_CHARS).collect();
            (!value.is_empty()).then(|| format!("{name}: {value}"))
        });
        let kept: Vec<String> = kept.collect();
        let kept = if kept.is_empty() {
            String::new()
        } else {
            format!(" ({})", kept.join("; "))
        };
        let bytes = &self.excerpt[..self.excerpt.len().min(most)];
        match tidy(&String::from_utf8_lossy(bytes), &secrets) {
            body if body.is_empty() => format!("answered {}{kept}", self.status),
            body => format!("answered {}{kept}: {body}", self.status),
        }
    }
}

/// Returns an address without its name and password, and without the part after the path, which may
/// be a secret as well.
fn without_secret_parts(address: &str) -> String {
    let whole = address.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = whole.split_once("//") else {
        return whole.to_owned();
    };
    let (authority, path) = rest.split_at(rest.find(['/', '\\']).unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}//***@{host}{path}"),
        None => whole.to_owned(),
    }
}

/// Returns the scope that an answer slows down, if it names one.
fn scope(headers: &Headers) -> Option<Scope> {
    let word = |name: &str| {
        headers
            .get(name)
            .map(|text| text.trim().to_ascii_lowercase())
    };
    match word("x-ratelimit-scope").as_deref() {
        Some("user" | "key" | "shared") => Some(Scope::Key),
        Some("account" | "project" | "org") => Some(Scope::Account),
        Some("global" | "ip" | "app" | "throttle") => Some(Scope::Throttle),
        _ => (word("x-ratelimit-global").as_deref() == Some("true")).then_some(Scope::Throttle),
    }
}

/// Returns the texts of the request that must be masked.
fn secrets(request: &Request) -> Vec<String> {
    let mut secrets = Vec::new();
    for (_, value) in &request.headers {
        // `Bearer x` and `Basic x` may come back without their first word.
        secrets.extend(value.split_once(' ').map(|(_, secret)| secret.to_owned()));
        secrets.push(value.clone());
    }
    secrets.extend(
        Credentials::of(&request.url)
            .iter()
            .flat_map(Credentials::forms),
    );
    secrets.retain(|secret| secret.len() >= SECRET_BYTES);
    // The longer first, so that nothing is left of one that contains another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets
}

/// Puts a server's text on one line and masks secrets in it. The text may be cut off, so the
/// beginning of a secret at its end is masked too.
fn tidy(text: &str, secrets: &[String]) -> String {
    let mut text = secrets.iter().fold(text.to_owned(), |text, secret| {
        text.replace(secret.as_str(), "***")
    });
    let begun = |secret: &String| {
        let ends = secret
            .char_indices()
            .map(|(at, _)| at)
            .filter(|at| *at >= BEGUN_BYTES)
            .rev();
        ends.into_iter().find(|at| text.ends_with(&secret[..*at]))
    };
    if let Some(begun) = secrets.iter().filter_map(begun).max() {
        text.truncate(text.len() - begun);
        text.push_str("***");
    }
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn outcome(status: u16, headers: &[(&str, &str)], body: &str) -> Outcome {
        let args = json!({"url": "http://a", "headers": {"Authorization": "Bearer very-secret", "X": "ok"}});
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let response = Response {
            status,
            headers,
            excerpt: body.as_bytes().to_vec(),
        };
        response.outcome(&Request::parse(&args).unwrap(), 0)
    }

    fn error_of(args: &serde_json::Value, body: &str) -> String {
        let response = Response {
            status: 400,
            headers: Headers::new(),
            excerpt: body.as_bytes().to_vec(),
        };
        let Outcome::Dead { error } = response.outcome(&Request::parse(args).unwrap(), 0) else {
            panic!("dead")
        };
        error
    }

    #[test]
    fn credentials_of_the_url_are_crossed_out_however_they_come_back() {
        let args = json!({"url": "http://user:pass%21word@a/"});
        assert_eq!(
            error_of(&args, "Basic dXNlcjpwYXNzIXdvcmQ= pass!word pass%21word"),
            "answered 400: Basic *** *** ***"
        );
        let token = json!({"url": "http://a-secret-token@a/"});
        assert_eq!(
            error_of(&token, "a-secret-token or YS1zZWNyZXQtdG9rZW46"),
            "answered 400: *** or ***"
        );
    }

    #[test]
    fn the_beginning_of_a_secret_at_the_end_of_what_was_read_is_crossed_out() {
        let args = json!({"url": "http://a", "headers": {"X-Key": "very-secret"}});
        assert_eq!(
            error_of(&args, "your key is very-sec"),
            "answered 400: your key is ***"
        );
        assert_eq!(
            error_of(&args, "your key is ver"),
            "answered 400: your key is ver"
        );
    }

    #[test]
    fn each_status_has_its_meaning() {
        let after = [("retry-after", "7")];
        let seven = Some(Duration::from_secs(7));
        assert_eq!(outcome(204, &[], ""), Outcome::Done);
        assert_eq!(
            outcome(429, &after, ""),
            Outcome::Throttled {
                scope: Scope::Key,
                delay: seven,
                error: "answered 429 (retry-after: 7)".to_owned()
            }
        );
        assert_eq!(
            outcome(429, &[], "slow"),
            Outcome::Throttled {
                scope: Scope::Key,
                delay: None,
                error: "answered 429: slow".to_owned()
            }
        );
        assert_eq!(
            outcome(503, &after, ""),
            Outcome::Overloaded {
                scope: Scope::Key,
                delay: seven,
                error: "answered 503 (retry-after: 7)".to_owned()
            }
        );
        for status in [408, 500, 502, 503, 504, 599] {
            assert!(
                matches!(
                    outcome(status, &[("x-ratelimit-reset", "3")], ""),
                    Outcome::Retry { after: None, .. }
                ),
                "{status}"
            );
        }
        for status in [400, 401, 403, 404, 410, 422, 301, 302, 304, 199] {
            assert!(
                matches!(outcome(status, &after, ""), Outcome::Dead { .. }),
                "{status}"
            );
        }
    }

    #[test]
    fn listed_statuses_and_only_those_mean_done() {
        let listed = |success| {
            let request = Request::parse(&json!({"url": "http://a", "success": success})).unwrap();
            move |status| {
                Response {
                    status,
                    headers: Headers::new(),
                    excerpt: Vec::new(),
                }
                .outcome(&request, 0)
            }
        };
        assert_eq!(listed(json!([404]))(404), Outcome::Done);
        assert_eq!(listed(json!(["300-399"]))(302), Outcome::Done);
        assert_eq!(listed(json!([429]))(429), Outcome::Done);
        assert!(matches!(listed(json!([200]))(202), Outcome::Dead { .. }));
    }

    #[test]
    fn errors_keep_a_short_excerpt_on_one_line_and_none_of_our_headers() {
        let Outcome::Dead { error } = outcome(
            400,
            &[],
            "no\r\ntoken Bearer very-secret or very-secret here ok",
        ) else {
            panic!("dead")
        };
        assert_eq!(error, "answered 400: no  token *** or *** here ok");

        let Outcome::Dead { error } = outcome(400, &[], &"é".repeat(5000)) else {
            panic!("dead")
        };
        assert!(
            error.len() <= "answered 400: ".len() + 1024 + 3,
            "{}",
            error.len()
        );
    }

    #[test]
    fn the_answer_names_whom_it_slows_down_and_else_the_job_does() {
        let scope = |headers: &[(&str, &str)], args: &str| {
            let args = json!({"url": "http://a", "throttled_scope": args});
            let headers = headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            let response = Response {
                status: 429,
                headers,
                excerpt: Vec::new(),
            };
            match response.outcome(&Request::parse(&args).unwrap(), 0) {
                Outcome::Throttled { scope, .. } => scope,
                other => panic!("{other:?}"),
            }
        };
        for (word, expected) in [
            ("user", Scope::Key),
            ("key", Scope::Key),
            ("shared", Scope::Key),
            ("Account", Scope::Account),
            ("project", Scope::Account),
            ("org", Scope::Account),
            (" global ", Scope::Throttle),
            ("ip", Scope::Throttle),
            ("app", Scope::Throttle),
            ("throttle", Scope::Throttle),
        ] {
            let other = if expected == Scope::Key {
                "throttle"
            } else {
                "key"
            };
            assert_eq!(
                scope(&[("x-ratelimit-scope", word)], other),
                expected,
                "{word}"
            );
        }
        assert_eq!(
            scope(&[("x-ratelimit-global", "true")], "key"),
            Scope::Throttle
        );
        assert_eq!(
            scope(
                &[
                    ("x-ratelimit-global", "true"),
                    ("x-ratelimit-scope", "user")
                ],
                "account"
            ),
            Scope::Key
        );
        assert_eq!(
            scope(&[("x-ratelimit-global", "false")], "account"),
            Scope::Account
        );
        assert_eq!(
            scope(&[("x-ratelimit-scope", "galaxy")], "throttle"),
            Scope::Throttle
        );
        assert_eq!(scope(&[], "key"), Scope::Key);
    }

    #[test]
    fn the_place_of_a_redirect_is_shown_without_its_name_and_password() {
        for (place, shown) in [
            (
                "https://ann:pw@b.example/p@q?token=abc",
                "https://***@b.example/p@q",
            ),
            ("//ann:p@w@b.example", "//***@b.example"),
            ("https://b.example/p@q", "https://b.example/p@q"),
            ("/login@home#token", "/login@home"),
        ] {
            let Outcome::Dead { error } = outcome(302, &[("location", place)], "") else {
                panic!("dead")
            };
            let told = format!("(location: {shown})");
            assert!(error.contains(&told), "{error}");
        }
    }

    #[test]
    fn some_headers_are_kept_and_none_of_what_is_ours_in_them() {
        let headers = [
            ("x-request-id", "req-1"),
            ("location", "https://b.example/p?token=abc"),
            ("set-cookie", "id=1"),
            ("www-authenticate", "Bearer realm=very-secret"),
        ];
        let Outcome::Dead { error } = outcome(401, &headers, "no") else {
            panic!("dead")
        };
        assert_eq!(
            error,
            "answered 401 (location: https://b.example/p; www-authenticate: Bearer realm=***; x-request-id: req-1): no"
        );
        let args = json!({"url": "https://ann:pass-word-1@a.example/", "excerpt_bytes": 18});
        let response = Response {
            status: 400,
            headers: Headers::new(),
            excerpt: b"is pass-word-1, and more".to_vec(),
        };
        let outcome = response.outcome(&Request::parse(&args).unwrap(), 0);
        assert_eq!(
            outcome,
            Outcome::Dead {
                error: "answered 400: is ***, an".to_owned()
            }
        );
    }
}
