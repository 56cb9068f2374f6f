//! Arguments of jobs of the kind `http`.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value};

use super::{signature, template};
use crate::jobs::{Issue, OnAmbiguous, Scope};

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

const DEFAULT_TIMEOUT_MS: u64 = 30_000;

/// Longest timeout of connecting, in milliseconds.
const MAX_CONNECT_TIMEOUT_MS: u64 = 60_000;

const DEFAULT_CONNECT_TIMEOUT_MS: u64 = 10_000;

/// Most redirects that may be followed.
const MAX_REDIRECTS: u64 = 10;

/// Most bytes of an answer's body that may be kept; the queue keeps errors of 4,000 characters.
const MAX_EXCERPT_BYTES: u64 = 3_000;

const DEFAULT_EXCERPT_BYTES: u64 = 1_024;

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
        let Some(args) = args.as_object() else {
            let message = format!("must be an object with the fields {}", FIELDS.join(", "));
            return Err(vec![Issue {
                pointer: String::new(),
                message,
            }]);
        };
        let mut issues = Vec::new();
        for field in args
            .keys()
            .filter(|field| !FIELDS.contains(&field.as_str()))
        {
            complain(
                &mut issues,
                &pointer(&[field]),
                format!("is not a field; fields are {}", FIELDS.join(", ")),
            );
        }
        let (body, body_is_json) = match args.get("body") {
            None | Some(Value::Null) => (None, false),
            Some(Value::String(text)) => (Some(text.clone()), false),
            Some(json) => (Some(json.to_string()), true),
        };
        let request = Self {
            method: method(args, &mut issues),
            url: url(args, &mut issues),
            headers: headers(args, &mut issues),
            body,
            body_is_json,
            template: template(args, &mut issues),
            secret: secret(args, &mut issues),
            timeout: millis(
                args,
                "timeout_ms",
                MAX_TIMEOUT_MS,
                DEFAULT_TIMEOUT_MS,
                &mut issues,
            ),
            connect_timeout: {
                let (most, usual) = (MAX_CONNECT_TIMEOUT_MS, DEFAULT_CONNECT_TIMEOUT_MS);
                millis(args, "connect_timeout_ms", most, usual, &mut issues)
            },
            redirects: whole(args, "redirects", 0..=MAX_REDIRECTS, 0, &mut issues) as u32,
            http2: flag(args, "http2_prior_knowledge", &mut issues),
            success: success(args, &mut issues),
            excerpt_bytes: whole(
                args,
                "excerpt_bytes",
                0..=MAX_EXCERPT_BYTES,
                DEFAULT_EXCERPT_BYTES,
                &mut issues,
            ) as usize,
            throttled_scope: read_choice(args, "throttled_scope", &SCOPES, &mut issues),
            on_ambiguous: read_choice(args, "on_ambiguous", &POLICIES, &mut issues),
        };
        if issues.is_empty() {
            Ok(request)
        } else {
            Err(issues)
        }
    }
}

fn method(args: &Map<String, Value>, issues: &mut Vec<Issue>) -> String {
    match args.get("method") {
        None => "GET".to_owned(),
        Some(Value::String(text)) if METHODS.contains(&text.to_ascii_uppercase().as_str()) => {
            text.to_ascii_uppercase()
        }
        Some(other) => {
            complain(
                issues,
                "/method",
                format!(
                    "{} is not allowed: use one of {}",
                    short(other),
                    METHODS.join(", ")
                ),
            );
            String::new()
        }
    }
}

fn url(args: &Map<String, Value>, issues: &mut Vec<Issue>) -> String {
    let url = match args.get("url") {
        Some(Value::String(url)) => url,
        Some(other) => {
            complain(
                issues,
                "/url",
                format!(
                    "must be a text such as \"https://example.com/hook\", not {}",
                    short(other)
                ),
            );
            return String::new();
        }
        None => {
            complain(
                issues,
                "/url",
                "is missing: say where to send the request, such as \"https://example.com/hook\"",
            );
            return String::new();
        }
    };
    let allowed = "it must begin with http:// or https://";
    match url
        .split_once("://")
        .map(|(scheme, rest)| (scheme.to_ascii_lowercase(), rest))
    {
        None => complain(issues, "/url", format!("has no scheme: {allowed}")),
        Some((scheme, _)) if scheme != "http" && scheme != "https" => {
            complain(
                issues,
                "/url",
                format!(
                    "has the scheme {:?}: {allowed}",
                    scheme.chars().take(32).collect::<String>()
                ),
            );
        }
        Some((_, rest)) if rest.split(['/', '?', '#']).next().is_none_or(str::is_empty) => {
            complain(
                issues,
                "/url",
                "has no host: it must be like https://example.com/hook",
            );
        }
        Some(_) if url.chars().any(|c| c.is_whitespace() || c.is_control()) => {
            complain(
                issues,
                "/url",
                "has blanks or control characters: encode them as %20 and the like",
            );
        }
        Some(_) => {}
    }
    url.clone()
}

fn headers(args: &Map<String, Value>, issues: &mut Vec<Issue>) -> Vec<(String, String)> {
    let headers = match args.get("headers") {
        None => return Vec::new(),
        Some(Value::Object(headers)) => headers,
        Some(other) => {
            complain(
                issues,
                "/headers",
                format!("must be an object of names and texts, not {}", short(other)),
            );
            return Vec::new();
        }
    };
    let mut list = Vec::new();
    for (name, value) in headers {
        let at = pointer(&["headers", name]);
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if name.is_empty() || !name.chars().all(token) {
            complain(
                issues,
                &at,
                "is not a header's name: use letters, digits and any of ! # $ % & ' * + - . ^ _ ` | ~",
            );
        } else if RESERVED.contains(&name.to_ascii_lowercase().as_str()) {
            complain(issues, &at, "belongs to the connection and cannot be set");
        }
        match value {
            Value::String(text) if text.chars().all(|c| c == '\t' || !c.is_control()) => {
                list.push((name.clone(), text.clone()));
            }
            // The value may be a secret, so it is not shown.
            Value::String(_) => complain(
                issues,
                &at,
                "has control characters: a header's value is one line of text",
            ),
            _ => complain(issues, &at, "must be a text"),
        }
    }
    list
}

fn template(args: &Map<String, Value>, issues: &mut Vec<Issue>) -> Option<(String, Value)> {
    let data = args.get("data");
    if data.is_some_and(|data| !data.is_object()) {
        complain(
            issues,
            "/data",
            format!(
                "must be an object, not {}",
                short(data.unwrap_or(&Value::Null))
            ),
        );
    }
    match args.get("template") {
        None | Some(Value::Null) => {
            if data.is_some() {
                complain(issues, "/data", "fills in a template, and there is none");
            }
            None
        }
        Some(Value::String(text)) => {
            if args.get("body").is_some_and(|body| !body.is_null()) {
                complain(
                    issues,
                    "/template",
                    "cannot be used together with body: it makes the body",
                );
            }
            if let Err(error) = template::check(text) {
                complain(issues, "/template", error);
            }
            Some((
                text.clone(),
                data.cloned().unwrap_or_else(|| Map::new().into()),
            ))
        }
        Some(other) => {
            complain(
                issues,
                "/template",
                format!("must be a text, not {}", short(other)),
            );
            None
        }
    }
}

fn secret(args: &Map<String, Value>, issues: &mut Vec<Issue>) -> Option<String> {
    let name = match args.get("secret") {
        None | Some(Value::Null) => return None,
        // The secret itself may be here by mistake, so it is not shown.
        Some(Value::String(name)) if signature::is_name(name) && !name.starts_with("whsec_") => {
            name
        }
        Some(_) => {
            let message = format!(
                "must be the name of a secret, {}: the secret itself is in the variable {}<NAME> of the workers",
                signature::NAMES,
                signature::PREFIX
            );
            complain(issues, "/secret", message);
            return None;
        }
    };
    let headers = args.get("headers").and_then(Value::as_object);
    for header in headers.into_iter().flat_map(Map::keys) {
        if signature::HEADERS.contains(&header.to_ascii_lowercase().as_str()) {
            complain(
                issues,
                &pointer(&["headers", header]),
                "is set by the signature and cannot be given beside a secret",
            );
        }
    }
    Some(name.clone())
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

/// Reads one of a few values; an absent field gives the default.
fn read_choice<T: Copy + Default>(
    args: &Map<String, Value>,
    field: &str,
    words: &[(&str, T)],
    issues: &mut Vec<Issue>,
) -> T {
    let Some(value) = args.get(field) else {
        return T::default();
    };
    let found = words.iter().find(|(word, _)| value == word);
    found.map_or_else(
        || {
            let allowed: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            complain(
                issues,
                &pointer(&[field]),
                format!(
                    "{} is not allowed: use {}",
                    short(value),
                    allowed.join(" or ")
                ),
            );
            T::default()
        },
        |(_, meaning)| *meaning,
    )
}

fn flag(args: &Map<String, Value>, field: &str, issues: &mut Vec<Issue>) -> bool {
    match args.get(field) {
        None => false,
        Some(Value::Bool(flag)) => *flag,
        Some(other) => {
            complain(
                issues,
                &pointer(&[field]),
                format!("{} is not allowed: it must be true or false", short(other)),
            );
            false
        }
    }
}

fn millis(
    args: &Map<String, Value>,
    field: &str,
    most: u64,
    usual: u64,
    issues: &mut Vec<Issue>,
) -> Duration {
    Duration::from_millis(whole(args, field, 1..=most, usual, issues))
}

fn whole(
    args: &Map<String, Value>,
    field: &str,
    allowed: RangeInclusive<u64>,
    usual: u64,
    issues: &mut Vec<Issue>,
) -> u64 {
    let Some(value) = args.get(field) else {
        return usual;
    };
    value
        .as_u64()
        .filter(|n| allowed.contains(n))
        .unwrap_or_else(|| {
            let (least, most) = (allowed.start(), allowed.end());
            let message = format!(
                "{} is not allowed: it must be a whole number from {least} to {most}",
                short(value)
            );
            complain(issues, &pointer(&[field]), message);
            usual
        })
}

fn success(args: &Map<String, Value>, issues: &mut Vec<Issue>) -> Vec<RangeInclusive<u16>> {
    let allowed = "use statuses from 100 to 599, such as 204, and ranges, such as \"200-299\"";
    match args.get("success") {
        None => vec![200..=299],
        Some(Value::Array(list)) if !list.is_empty() => {
            let mut ranges = Vec::new();
            for (at, value) in list.iter().enumerate() {
                match range(value) {
                    Some(range) => ranges.push(range),
                    None => complain(
                        issues,
                        &pointer(&["success", &at.to_string()]),
                        format!("{} is not allowed: {allowed}", short(value)),
                    ),
                }
            }
            ranges
        }
        Some(other) => {
            complain(
                issues,
                "/success",
                format!(
                    "{} is not allowed: it must be a list that is not empty; {allowed}",
                    short(other)
                ),
            );
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

fn complain(issues: &mut Vec<Issue>, pointer: &str, message: impl Into<String>) {
    issues.push(Issue {
        pointer: pointer.to_owned(),
        message: message.into(),
    });
}

/// Builds a JSON pointer (RFC 6901).
fn pointer(parts: &[&str]) -> String {
    parts
        .iter()
        .map(|part| format!("/{}", part.replace('~', "~0").replace('/', "~1")))
        .collect()
}

fn short(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        other => other.to_string().chars().take(64).collect(),
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
