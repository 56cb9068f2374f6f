//! Errors as RFC 9457 problems: one shape for every error on every route.

use std::sync::LazyLock;
use std::time::Instant;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;

pub use super::code::Code;
use super::fields::{Errors, FieldError};
use crate::api::read_error::ReadError;
use crate::input::json::JsonReadError;
use crate::jobs::postgres::{DISK_FULL, DISK_FULL_REMEDY, READ_ONLY, READ_ONLY_REMEDY};
use crate::service::FailureLog;
use crate::{jobs, throttle};

/// The media type of a problem.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// The time after which a sender should retry a full lane, in seconds.
pub const LANE_FULL_RETRY_S: u64 = 5;

/// The reasons for which Postgres answers and takes no writes, each with its remedy.
const REFUSALS: [(&str, &str); 2] = [(READ_ONLY, READ_ONLY_REMEDY), (DISK_FULL, DISK_FULL_REMEDY)];

/// The requests that Postgres did not answer.
static LOST_BY_QUEUE: LazyLock<Mutex<FailureLog>> = LazyLock::new(Mutex::default);

/// The requests that Redis did not answer.
static LOST_BY_THROTTLES: LazyLock<Mutex<FailureLog>> = LazyLock::new(Mutex::default);

/// Returns true if a request that a store did not answer is to be logged: the first of an outage,
/// and one every few minutes.
pub(super) fn is_logged(lost: &Mutex<FailureLog>) -> bool {
    lost.lock().failed_anew(Instant::now())
}

/// An error answer.
#[derive(Debug)]
pub struct Problem {
    pub code: Code,
    /// The cause of this occurrence, and the remedy.
    pub detail: String,
    /// Every wrong field.
    pub errors: Errors,
    /// The time after which the client may retry, in seconds.
    pub retry_after_s: Option<u64>,
    /// The ready jobs and the limit of the full lane.
    pub backlog: Option<jobs::Backlog>,
    /// The part that only problems of admission have.
    pub admission: Option<Box<AdmissionProblem>>,
    /// The cap of a recipient that refuses a message.
    pub cap: Option<Box<RefusingCap>>,
    /// True if the detail says that a change may have been made, which a request that only reads
    /// does not get told.
    pub is_unsure: bool,
}

/// The problem of a request that only reads, beside an answer that tells of changes.
#[derive(Clone)]
struct ProblemOfRead {
    code: Code,
    detail: String,
}

/// The cap of a recipient that refuses a message.
#[derive(Clone, Debug)]
pub struct RefusingCap {
    /// The rule, such as `per_hour 5 per 1h`.
    pub rule: String,
    /// The time at which there is room.
    pub reset_at: Timestamp,
}

/// The part of a problem that only admission has. Apart, so that all others stay small.
#[derive(Debug, Default)]
pub struct AdmissionProblem {
    /// The type in place of the usual one.
    pub kind: String,
    /// The message that was accepted all the same.
    pub queued: Option<QueuedMessage>,
}

/// A message that was accepted and waits.
#[derive(Debug)]
pub struct QueuedMessage {
    /// Its id.
    pub id: i64,
    /// The priority with which it is sent.
    pub priority: &'static str,
    /// Warnings for its sender.
    pub warnings: Vec<String>,
}

/// A problem as it is sent.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Problem)]
pub struct ProblemBody {
    /// The name of this kind of problem: `urn:flyball:problem:` and the code, or a URL for those of
    /// the setting `problem_types`.
    #[serde(rename = "type")]
    kind: String,
    /// One line, the same for every problem of this kind.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// The cause of this occurrence, and the remedy.
    detail: String,
    /// The code, which programs match.
    code: &'static str,
    /// Every wrong field; at most 100 are listed.
    errors: Vec<FieldError>,
    /// The number of wrong fields that are not listed.
    #[serde(skip_serializing_if = "is_zero")]
    errors_omitted: usize,
    /// With `lane_full`: the ready jobs of the lane.
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<i64>,
    /// With `lane_full`: the throttle's knob `max_backlog`.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_backlog: Option<i64>,
    /// With `RATE_LIMIT_EXCEEDED`: the message, which was accepted and waits.
    #[serde(rename = "notificationId", skip_serializing_if = "Option::is_none")]
    notification_id: Option<String>,
    /// With `RATE_LIMIT_EXCEEDED`: the priority with which the message is sent: `critical`, `high`,
    /// `normal` or `low`.
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<&'static str>,
    /// With `RATE_LIMIT_EXCEEDED`: warnings for the sender, for example that a critical message is
    /// sent as `high`.
    #[serde(skip_serializing_if = "Option::is_none")]
    warnings: Option<Vec<String>>,
    /// With `RECIPIENT_CAPPED`: the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    /// With `RECIPIENT_CAPPED`: the time at which there is room.
    #[serde(rename = "resetAt", skip_serializing_if = "Option::is_none")]
    reset_at: Option<Timestamp>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks for a reference"
)]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Problem {
    /// Creates a problem with its own sentence.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            errors: Errors::default(),
            retry_after_s: None,
            backlog: None,
            admission: None,
            cap: None,
            is_unsure: false,
        }
    }

    /// Creates the problem that the queue did not answer: `what` happened, and what a `change` has
    /// to know.
    pub fn unsure(code: Code, what: &str, change: &str) -> Self {
        Self {
            is_unsure: true,
            ..Self::new(code, format!("{what}; {change}"))
        }
        .retry_after(1)
    }

    /// Creates the problem of a recipient that got as many messages as its caps allow.
    pub fn capped(rule: String, reset_at: Timestamp) -> Self {
        let detail = format!(
            "the recipient got as many messages as the rule {rule} allows; there is room at \
             {reset_at}; nothing was accepted"
        );
        Self {
            cap: Some(Box::new(RefusingCap { rule, reset_at })),
            ..Self::new(Code::RecipientCapped, detail)
        }
    }

    /// Creates a problem that lists wrong fields.
    pub fn fields(code: Code, errors: Errors) -> Self {
        let detail = match (errors.total, errors.listed.first()) {
            (1, Some(only)) => format!(
                "{}: {}",
                if only.pointer.is_empty() {
                    "the body"
                } else {
                    &only.pointer
                },
                only.message
            ),
            (n, _) => format!("{n} fields are wrong; nothing was changed"),
        };
        Self {
            errors,
            ..Self::new(code, detail)
        }
    }

    /// Creates a problem with one wrong place outside the body.
    pub fn at(
        code: Code,
        place: super::fields::FieldLocation,
        name: &str,
        message: impl Into<String>,
    ) -> Self {
        let mut errors = Errors::default();
        errors.push(place, format!("/{name}"), message.into());
        Self::fields(code, errors)
    }

    /// Sets the time after which the client may retry.
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Returns the status of the answer.
    pub fn status(&self) -> StatusCode {
        self.code.status()
    }

    /// Creates the problem of a method that a path does not have.
    pub fn method_not_allowed(method: &Method, path: &str) -> Self {
        Self::new(Code::MethodNotAllowed, unsupported(method, path))
    }

    /// Creates the problem of a missing throttle, with the way to create it if there is one.
    pub fn throttle_not_found(name: &throttle::Name) -> Self {
        let how = format!(
            "; create it with: flyball throttle set {name} rps=10, or PATCH it with ?create=true, which only operators may"
        );
        let missing = throttle::no_throttle(name.as_str(), &how);
        Self::new(Code::ThrottleNotFound, missing)
    }

    /// Creates the problem of a missing job.
    pub fn job_not_found(id: i64) -> Self {
        Self::new(
            Code::JobNotFound,
            format!("there is no job {id}; finished jobs are kept for a limited time"),
        )
    }

    /// Creates the problem of a missing message.
    pub fn notification_not_found(id: i64) -> Self {
        Self::new(
            Code::NotificationNotFound,
            format!("there is no notification {id}; finished ones are kept for a limited time"),
        )
    }

    /// Converts a refusal of the queue, for example of a field that our own checks accepted;
    /// `batch` puts the job's index into the pointer.
    pub fn from_queue(error: jobs::Error, batch: bool) -> Self {
        match error {
            jobs::Error::Refused {
                index,
                field,
                message,
            } => {
                let below = super::fields::place_of(&field);
                let mut errors = Errors::default();
                errors.body(
                    if batch {
                        format!("/{}{below}", index.unwrap_or(0))
                    } else {
                        below
                    },
                    message,
                );
                Self::fields(Code::InvalidFields, errors)
            }
            full @ jobs::Error::Full { backlog, .. } => {
                let detail =
                    format!("{full}; nothing was enqueued: try again when some of them have run");
                Self {
                    backlog: Some(backlog),
                    ..Self::new(Code::LaneFull, detail)
                }
                .retry_after(LANE_FULL_RETRY_S)
            }
            jobs::Error::QueueFull { retry_after_s, .. } => Self::new(
                Code::QueueFull,
                "Notification queue is at capacity. Retry after existing notifications are processed.",
            )
            .retry_after(retry_after_s),
            jobs::Error::Capped { rule, reset_at, .. } => Self::capped(rule, reset_at),
            jobs::Error::Lost(reason) => {
                if is_logged(&LOST_BY_QUEUE) {
                    tracing::warn!(%reason, "the queue store did not answer a request");
                } else {
                    tracing::debug!(%reason, "the queue store still does not answer requests");
                }
                let refusal = REFUSALS.iter().find(|(what, _)| reason.starts_with(what));
                if let Some((what, remedy)) = refusal {
                    let detail = format!("{what}; nothing was changed; {remedy}");
                    return Self::new(Code::QueueUnavailable, detail).retry_after(1);
                }
                let change = "a change may have been made: check, or send it again with a \
                              unique_key, which creates a job once";
                Self::unsure(Code::QueueUnavailable, "Postgres does not answer", change)
            }
            error if error.was_broken_off() => {
                tracing::warn!(%error, "the queue store broke a request off");
                let detail = "an open transaction holds what the request needs; nothing was \
                              changed: send it again";
                Self::new(Code::QueueUnavailable, detail).retry_after(1)
            }
            error if error.was_cut_off() => {
                tracing::warn!(%error, "Postgres cut the statement of a request off");
                let detail = "Postgres ended the statement, because it took longer than \
                              statement_timeout allows or was cancelled; nothing was changed: send \
                              it again";
                Self::new(Code::QueueUnavailable, detail).retry_after(1)
            }
            jobs::Error::Store(error) => {
                // Postgres' message may quote the data of a job, so it goes to the log of the
                // server only.
                tracing::error!(error = %error, "the queue store failed");
                Self::new(
                    Code::Internal,
                    "the queue store failed; the server's log has the reason",
                )
            }
        }
    }

    fn response(self, status: StatusCode) -> Response {
        let what = self.detail.split_once("; ").map(|(what, _)| what);
        let of_read = what.filter(|_| self.is_unsure);
        let of_read = of_read.map(|what| ProblemOfRead {
            code: self.code,
            detail: format!("{what}; try again soon"),
        });
        let (kind, queued) = match self.admission {
            Some(admission) => (admission.kind, admission.queued),
            None => (format!("urn:flyball:problem:{}", self.code.slug()), None),
        };
        let body = ProblemBody {
            kind,
            title: self.code.title(),
            status: status.as_u16(),
            detail: self.detail,
            code: self.code.slug(),
            errors_omitted: self.errors.total - self.errors.listed.len(),
            errors: self.errors.listed,
            depth: self.backlog.map(|backlog| backlog.depth),
            max_backlog: self.backlog.map(|backlog| backlog.max),
            notification_id: queued.as_ref().map(|queued| queued.id.to_string()),
            priority: queued.as_ref().map(|queued| queued.priority),
            warnings: queued.map(|queued| queued.warnings),
            rule: self.cap.as_ref().map(|cap| cap.rule.clone()),
            reset_at: self.cap.map(|cap| cap.reset_at),
        };
        let text = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = (status, [(CONTENT_TYPE, MEDIA_TYPE)], text).into_response();
        if let Some(of_read) = of_read {
            response.extensions_mut().insert(of_read);
        }
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.code == Code::Unauthorized {
            headers.insert(
                WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"flyball\""),
            );
        }
        response
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.code.status();
        self.response(status)
    }
}

impl From<JsonReadError> for Problem {
    fn from(error: JsonReadError) -> Self {
        match error {
            JsonReadError::Malformed(malformed) => {
                Self::new(Code::MalformedJson, malformed.to_string())
            }
            JsonReadError::Items(most) => {
                let mut errors = Errors::default();
                errors.body(
                    "",
                    format!("the batch has more than {most} jobs; allowed: at most {most}"),
                );
                Self::fields(Code::InvalidFields, errors)
            }
            JsonReadError::LongInteger(found) => {
                let mut errors = Errors::default();
                let refusal = found.refusal();
                errors.body(found.pointer, refusal);
                Self::fields(Code::InvalidFields, errors)
            }
            JsonReadError::Bytes(_) => {
                let detail = format!(
                    "{error}; keep large data elsewhere and pass a reference, or send several batches"
                );
                Self::new(Code::TooLarge, detail)
            }
            JsonReadError::NoRoom => {
                Self::new(Code::Overloaded, format!("{error}; try again soon")).retry_after(1)
            }
        }
    }
}

impl From<jobs::Error> for Problem {
    fn from(error: jobs::Error) -> Self {
        Self::from_queue(error, false)
    }
}

impl From<throttle::Error> for Problem {
    fn from(error: throttle::Error) -> Self {
        match error {
            throttle::Error::Lost(reason) => {
                if is_logged(&LOST_BY_THROTTLES) {
                    tracing::warn!(%reason, "the throttle store did not answer a request");
                } else {
                    tracing::debug!(%reason, "the throttle store still does not answer requests");
                }
                let code = Code::ThrottlesUnavailable;
                match throttle::reason_meaning(&reason) {
                    Some(answer) => {
                        Self::new(code, format!("Redis refuses: {answer}")).retry_after(1)
                    }
                    None => Self::unsure(
                        code,
                        "Redis does not answer",
                        "a change may have been made: check, and try again soon",
                    ),
                }
            }
            throttle::Error::Unknown(name) => Self::throttle_not_found(&name),
            conflict @ throttle::Error::Conflict { .. } => {
                Self::new(Code::Conflict, conflict.to_string())
            }
            throttle::Error::Invalid(problems) => {
                let mut errors = Errors::default();
                for problem in problems {
                    errors.body(super::fields::pointer("", &problem.field), problem.message);
                }
                Self::fields(Code::InvalidFields, errors)
            }
        }
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Lost(reason) => jobs::Error::Lost(reason).into(),
            ReadError::ThrottlesLost(reason) => throttle::Error::Lost(reason).into(),
            ReadError::Failed(reason) => {
                tracing::error!(%reason, "a read failed");
                Self::new(
                    Code::Internal,
                    "the store failed; the server's log has the reason",
                )
            }
        }
    }
}

/// Turns every error answer that is not a problem yet into one: those of the router, the extractors
/// and the layers. Tells a request that only reads nothing of changes.
pub async fn dress(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = next.run(request).await;
    let status = response.status();
    if let Some(of_read) = response.extensions_mut().remove::<ProblemOfRead>()
        && method.is_safe()
    {
        let told = Problem::new(of_read.code, of_read.detail).retry_after(1);
        let mut told = told.response(status);
        copy_headers(response.into_parts().0.headers, told.headers_mut());
        return told;
    }
    let is_an_error = status.is_client_error() || status.is_server_error();
    if !is_an_error || has_media(&response, MEDIA_TYPE) || has_media(&response, "text/html") {
        return response;
    }
    let (parts, body) = response.into_parts();
    let code = Code::of(status);
    let detail = match code {
        Code::RouteNotFound => format!(
            "there is no route {}; /openapi.json lists them",
            super::fields::clipped(&path)
        ),
        Code::MethodNotAllowed => unsupported(&method, &path),
        _ => plain(body).await.unwrap_or_else(|| code.title().to_owned()),
    };
    let mut dressed = Problem::new(code, detail).response(status);
    copy_headers(parts.headers, dressed.headers_mut());
    dressed
}

/// Describes a method that a path does not have. The router adds the Allow header outside of all
/// layers.
fn unsupported(method: &Method, path: &str) -> String {
    format!(
        "{} does not support {method}; the Allow header lists the supported methods",
        super::fields::clipped(path)
    )
}

fn has_media(response: &Response, media: &str) -> bool {
    response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(media.as_bytes()))
}

/// Returns the message of the library, if it is short text.
async fn plain(body: Body) -> Option<String> {
    let bytes = axum::body::to_bytes(body, 4096).await.ok()?;
    String::from_utf8(bytes.to_vec())
        .ok()
        .filter(|text| !text.is_empty())
}

fn copy_headers(from: HeaderMap, to: &mut HeaderMap) {
    for (name, value) in from {
        if let Some(name) = name.filter(|name| *name != CONTENT_TYPE && *name != CONTENT_LENGTH) {
            to.entry(name).or_insert(value);
        }
    }
}

/// Returns the answer after a panic of a handler; the panic hook has written the reason to the log.
pub fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    Problem::new(
        Code::Internal,
        "a defect of Flyball; the server's log has the reason",
    )
    .into_response()
}

#[cfg(test)]
#[path = "problem_tests.rs"]
mod tests;
