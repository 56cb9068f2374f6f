//! Arguments of jobs of the kind `http`.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value};

use super::{signature, template};
use crate::input::wording::{any_of, clipped, must_be};
use crate::input::{Issue, Reader, pointer};
use crate::jobs::{OnAmbiguous, Scope, webhook};

/// The fields of the arguments.
const FIELDS: [&str; 15] = [
    "method",
    "url",
    "headers",
    "body",
    "template",
    "data",
    "secret",
    "timeout_ms",
    "connect_timeout_ms",
    "redirects",
    "http2_prior_knowledge",
    "success",
    "excerpt_bytes",
    "throttled_scope",
    "on_ambiguous",
];

/// The allowed methods.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// Headers that belong to the connection and not to the job.
const RESERVED: [&str; 8] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Longest timeout of one request, in milliseconds.
pub const MAX_TIMEOUT_MS: u64 = 600_000;

const DEFAULT_TIMEOUT_MS: i64 = 30_000;

/// Longest timeout of connecting, in milliseconds.
const MAX_CONNECT_TIMEOUT_MS: i64 = 60_000;

const DEFAULT_CONNECT_TIMEOUT_MS: i64 = 10_000;

/// Longest read of a body after the status is known, where the status decides and not the body.
pub const STATUS_BODY_TIMEOUT: Duration = Duration::from_millis(500);

/// Most redirects that may be followed.
const MAX_REDIRECTS: i64 = 10;

/// Most bytes of an answer's body that may be kept; the queue keeps errors of 4,000 characters.
const MAX_EXCERPT_BYTES: i64 = 3_000;

const DEFAULT_EXCERPT_BYTES: i64 = 1_024;

/// A request whose arguments were checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The method, in capitals.
    pub method: String,
    /// The absolute URL, http or https.
    pub url: String,
    /// Names and values in the order of their names.
    pub headers: Vec<(String, String)>,
    /// The body as text.
    pub body: Option<String>,
    /// True if the body was given as JSON, so that `content-type` defaults to it.
    pub body_is_json: bool,
    /// A template for the body, with its data.
    pub template: Option<(String, Value)>,
    /// The name of the secret that signs it.
    pub secret: Option<String>,
    /// The time from connecting to the head of the answer, over all redirects.
    pub timeout: Duration,
    /// The time for connecting alone, for each connection.
    pub connect_timeout: Duration,
    /// The time for the body of the answer, within `timeout`.
    pub body_timeout: Duration,
    /// Redirects that are followed.
    pub redirects: u32,
    /// True if the server is known to speak HTTP/2 without negotiation.
    pub http2: bool,
    /// Statuses that count as success.
    pub success: Vec<RangeInclusive<u16>>,
    /// Bytes of the answer's body that are kept with a dead job.
    pub excerpt_bytes: usize,
    /// The scope that a throttling answer slows down if it names none.
    pub throttled_scope: Scope,
    /// The treatment of a job that got no answer.
    pub on_ambiguous: OnAmbiguous,
}

impl Request {
    /// Parses a job's arguments, or lists everything that is wrong with them.
    pub fn parse(args: &Value) -> Result<Self, Vec<Issue>> {
        let mut issues = Vec::new();
        let request =
            Reader::of(args, "", &FIELDS, &mut issues).map(|mut fields| Self::read(&mut fields));
        match request {
            Some(request) if issues.is_empty() => Ok(request),
            _ => Err(issues),
        }
    }

    /// Returns true if the job sets this header itself.
    pub fn has_header(&self, name: &str) -> bool {
        let mut headers = self.headers.iter();
        headers.any(|(own, _)| own.eq_ignore_ascii_case(name))
    }

    fn read(fields: &mut Reader<'_>) -> Self {
        let (body, body_is_json) = match fields.take_nullable("body") {
            None => (None, false),
            Some(Value::String(text)) => (Some(text), false),
            Some(json) => (Some(json.to_string()), true),
        };
        Self {
            method: method(fields),
            url: url(fields),
            headers: headers(fields),
            body,
            body_is_json,
            template: template(fields),
            secret: secret(fields),
            timeout: millis(
                fields,
                "timeout_ms",
                MAX_TIMEOUT_MS as i64,
                DEFAULT_TIMEOUT_MS,
            ),
            connect_timeout: millis(
                fields,
                "connect_timeout_ms",
                MAX_CONNECT_TIMEOUT_MS,
                DEFAULT_CONNECT_TIMEOUT_MS,
            ),
            body_timeout: STATUS_BODY_TIMEOUT,
            redirects: fields
                .whole("redirects", 0..=MAX_REDIRECTS, "")
                .unwrap_or(0) as u32,
            http2: fields.flag("http2_prior_knowledge").unwrap_or_default(),
            success: success(fields),
            excerpt_bytes: fields
                .whole("excerpt_bytes", 0..=MAX_EXCERPT_BYTES, "")
                .unwrap_or(DEFAULT_EXCERPT_BYTES) as usize,
            throttled_scope: fields
                .choice("throttled_scope", &SCOPES)
                .unwrap_or_default(),
            on_ambiguous: fields.choice("on_ambiguous", &POLICIES).unwrap_or_default(),
        }
    }
}

fn method(fields: &mut Reader<'_>) -> String {
    let Some(given) = fields.take("method") else {
        return "GET".to_owned();
    };
    let method = given.as_str().unwrap_or_default().to_ascii_uppercase();
    if !METHODS.contains(&method.as_str()) {
        fields.refuse("method", &any_of(&METHODS), &given);
    }
    method
}

fn url(fields: &mut Reader<'_>) -> String {
    const ALLOWED: &str = "a URL that begins with http:// or https://";
    let url = match fields.take("url") {
        Some(Value::String(url)) => url,
        Some(other) => {
            fields.refuse("url", "a text such as \"https://example.com/hook\"", &other);
            return String::new();
        }
        None => {
            fields.missing("url", "a text such as \"https://example.com/hook\"");
            return String::new();
        }
    };
    let (scheme, rest) = url.split_once("://").unwrap_or(("", &url));
    if scheme.is_empty() {
        fields.wrong(
            "url",
            format!("must be {ALLOWED}, not one without a scheme"),
        );
    } else if !["http", "https"].contains(&scheme.to_ascii_lowercase().as_str()) {
        let scheme = clipped(scheme);
        fields.wrong("url", format!("must be {ALLOWED}, not {scheme}://"));
    } else if rest.split(['/', '?', '#']).next().is_none_or(str::is_empty) {
        fields.wrong("url", "must have a host, as in https://example.com/hook");
    } else if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        fields.wrong(
            "url",
            "must be without blanks and control characters: write them as %20 and the like",
        );
    }
    url
}

fn headers(fields: &mut Reader<'_>) -> Vec<(String, String)> {
    let headers = match fields.take("headers") {
        None => return Vec::new(),
        Some(Value::Object(headers)) => headers,
        Some(other) => {
            fields.refuse("headers", "an object of names and texts", &other);
            return Vec::new();
        }
    };
    let mut list = Vec::new();
    for (name, value) in headers {
        let below = pointer("/headers", &name);
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if name.is_empty() || !name.chars().all(token) {
            fields.wrong_at(
                &below,
                "must have a header's name: letters, digits and any of ! # $ % & ' * + - . ^ _ ` | ~",
            );
        } else if RESERVED.contains(&name.to_ascii_lowercase().as_str()) {
            fields.wrong_at(&below, "must be left out: it belongs to the connection");
        }
        match value {
            Value::String(text) if text.chars().all(|c| c == '\t' || !c.is_control()) => {
                list.push((name, text));
            }
            // The value may be a secret, so it is not shown.
            _ => fields.wrong_at(&below, "must be a text of one line"),
        }
    }
    list
}

fn template(fields: &mut Reader<'_>) -> Option<(String, Value)> {
    let data = fields.take("data");
    if let Some(other) = data.as_ref().filter(|data| !data.is_object()) {
        fields.refuse("data", "an object", other);
    }
    if !fields.has("template") {
        if data.is_some() {
            fields.wrong("data", "must be left out without a template to fill in");
        }
        return None;
    }
    let text = fields.any_text("template")?;
    if fields.has("body") {
        fields.wrong(
            "template",
            "must be left out beside body: it makes the body",
        );
    }
    if let Err(error) = template::check(&text) {
        fields.wrong("template", error);
    }
    Some((text, data.unwrap_or_else(|| Map::new().into())))
}

fn secret(fields: &mut Reader<'_>) -> Option<String> {
    let name = match fields.take_nullable("secret")? {
        // The secret itself may be here by mistake, so it is not shown.
        Value::String(name) if webhook::secret_problem(&name).is_none() => name,
        _ => {
            fields.wrong("secret", webhook::SECRET);
            return None;
        }
    };
    let headers = fields.get("headers").and_then(Value::as_object);
    let signed: Vec<String> = headers
        .into_iter()
        .flat_map(Map::keys)
        .filter(|header| signature::HEADERS.contains(&header.to_ascii_lowercase().as_str()))
        .cloned()
        .collect();
    for header in signed {
        fields.wrong_at(
            &pointer("/headers", &header),
            "must be left out beside a secret: the signature sets it",
        );
    }
    Some(name)
}

/// The names of scopes.
const SCOPES: [(&str, Scope); 3] = [
    ("key", Scope::Key),
    ("account", Scope::Account),
    ("throttle", Scope::Throttle),
];

/// The names of treatments of a job without an answer.
const POLICIES: [(&str, OnAmbiguous); 2] =
    [("retry", OnAmbiguous::Retry), ("dead", OnAmbiguous::Dead)];

fn millis(fields: &mut Reader<'_>, name: &str, most: i64, usual: i64) -> Duration {
    let millis = fields.whole(name, 1..=most, "").unwrap_or(usual);
    Duration::from_millis(millis.unsigned_abs())
}

fn success(fields: &mut Reader<'_>) -> Vec<RangeInclusive<u16>> {
    const STATUS: &str = "a status from 100 to 599, such as 204, or a range, such as \"200-299\"";
    match fields.take("success") {
        None => vec![200..=299],
        Some(Value::Array(list)) if !list.is_empty() => {
            let mut ranges = Vec::new();
            for (at, value) in list.iter().enumerate() {
                match range(value) {
                    Some(range) => ranges.push(range),
                    None => fields.wrong_at(&format!("/success/{at}"), must_be(STATUS, value)),
                }
            }
            ranges
        }
        Some(other) => {
            let allowed = format!("a list that is not empty, each {STATUS}");
            fields.refuse("success", &allowed, &other);
            Vec::new()
        }
    }
}

fn range(value: &Value) -> Option<RangeInclusive<u16>> {
    let status = |n: u16| (100..=599).contains(&n).then_some(n);
    match value {
        Value::Number(n) => {
            let n = status(u16::try_from(n.as_u64()?).ok()?)?;
            Some(n..=n)
        }
        Value::String(text) => {
            let (from, to) = text.split_once('-').unwrap_or((text, text));
            let (from, to) = (
                status(from.trim().parse().ok()?)?,
                status(to.trim().parse().ok()?)?,
            );
            (from <= to).then_some(from..=to)
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
