//! The common interface of all providers' formats: requests and answers.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Uri};
use parking_lot::Mutex;

use super::{Fault, ThrottleScope};

/// A request as received.
pub struct IncomingRequest {
    pub method: Method,
    /// Path and query.
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The time of arrival, in unix milliseconds.
    pub now_ms: u64,
}

impl IncomingRequest {
    /// Returns a header as text; empty if it is absent or not text.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    /// Returns the segments of the path.
    pub fn path(&self) -> Vec<&str> {
        self.uri.path().trim_matches('/').split('/').collect()
    }

    /// Returns the fields of a form, URL-encoded or multipart; of repeated fields, the first.
    pub fn form(&self) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        let kind = self.header("content-type");
        if let Some((_, boundary)) = kind.split_once("boundary=") {
            let text = String::from_utf8_lossy(&self.body);
            for part in text.split(&format!("--{}", boundary.trim_matches('"'))) {
                let Some((head, value)) = part.split_once("\r\n\r\n") else {
                    continue;
                };
                let Some(name) = head
                    .split("name=\"")
                    .nth(1)
                    .and_then(|rest| rest.split('"').next())
                else {
                    continue;
                };
                fields
                    .entry(name.to_owned())
                    .or_insert_with(|| value.strip_suffix("\r\n").unwrap_or(value).to_owned());
            }
        } else if kind.starts_with("application/x-www-form-urlencoded") {
            for (name, value) in url::form_urlencoded::parse(&self.body) {
                fields
                    .entry(name.into_owned())
                    .or_insert_with(|| value.into_owned());
            }
        }
        fields
    }

    /// Parses the body as JSON; null if it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// A message that a request asks to send.
#[derive(Clone, Debug, Default)]
pub struct FakeRequest {
    /// The account that sends the request.
    pub account: String,
    /// The recipient of the message.
    pub to: String,
    /// The sender's number or address; empty if there is none.
    pub sender: String,
    /// The endpoint of the request, for providers with several, or a value that the answer repeats.
    pub endpoint: String,
    /// The URL for the events of this message, if the request names one.
    pub callback: Option<String>,
}

/// The kind of a request.
pub enum Read {
    /// A message to send.
    Message(FakeRequest),
    /// A query of this account's quota.
    Quota(String),
    /// Any other request, with its answer.
    Other(Reply),
    /// A refusal that counts among the requests of this account.
    Refused(String, Reply),
}

/// An HTTP answer of a fake.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
}

impl Reply {
    pub fn json(status: u16, body: &serde_json::Value) -> Self {
        Self {
            status,
            headers: vec![("content-type", "application/json".to_owned())],
            body: body.to_string(),
        }
    }

    /// Creates an answer in plain text.
    pub fn text(status: u16, body: &str) -> Self {
        Self {
            status,
            headers: vec![("content-type", "text/plain; charset=utf-8".to_owned())],
            body: body.to_owned(),
        }
    }

    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }

    /// Adds `Retry-After` in whole seconds, if there is a delay.
    pub fn after(self, delay: Option<Duration>) -> Self {
        match delay {
            Some(delay) => self.with("retry-after", whole_seconds(delay)),
            None => self,
        }
    }
}

/// Returns the seconds of a duration, rounded up.
pub(super) fn whole_seconds(delay: Duration) -> u64 {
    delay.as_secs() + u64::from(delay.subsec_nanos() > 0)
}

/// The state of an account's quota.
#[derive(Clone, Copy, Debug)]
pub struct QuotaStatus {
    /// The limit per window; `None` for no limit.
    pub limit: Option<f64>,
    /// The requests left in this window, if there is a limit.
    pub left: u64,
    /// The requests accepted since the start.
    pub accepted: u64,
}

/// The part of a fake that its provider's format uses.
#[derive(Debug, Default)]
pub struct FormatState {
    /// The known accounts and their secrets; if empty, all are valid.
    pub secrets: BTreeMap<String, String>,
    /// The base URL of the fake, such as `http://127.0.0.1:4000`.
    pub url: String,
    /// The issued access tokens.
    pub tokens: Mutex<HashSet<String>>,
    /// The topics with a confirmed subscription.
    pub confirmed: Mutex<HashSet<String>>,
}

impl FormatState {
    /// Returns true if an account may authenticate with this secret.
    pub fn lets_in(&self, account: &str, secret: &str) -> bool {
        self.secrets.is_empty()
            || self
                .secrets
                .get(account)
                .is_some_and(|known| known == secret)
    }

    /// Returns true if an account is known, for providers whose secret is the account.
    pub fn knows(&self, account: &str) -> bool {
        self.secrets.is_empty() || self.secrets.contains_key(account)
    }
}

/// The format of a provider.
pub trait WireFormat: Send + Sync + 'static {
    /// Reads a request and determines its kind.
    fn read(&self, came: &IncomingRequest, format_state: &FormatState) -> Read;

    /// Returns the id of accepted message `number` and the answer that reports it.
    fn accepted(&self, requested: &FakeRequest, number: u64, now_ms: u64) -> (String, Reply);

    /// Builds the provider's "slow down", with the delay in its own place.
    fn throttled(
        &self,
        requested: &FakeRequest,
        whom: ThrottleScope,
        delay: Option<Duration>,
        now_ms: u64,
    ) -> Reply;

    /// Builds an error with this status and the provider's own code, if one is given.
    fn failed(&self, requested: &FakeRequest, status: u16, code: Option<&str>) -> Reply;

    /// Builds the answer for a suspended account.
    fn suspended(&self, requested: &FakeRequest) -> Reply;

    /// Builds the answer to invalid credentials.
    fn unauthorized(&self, requested: &FakeRequest) -> Reply;

    /// Builds the answer for a recipient that is gone or accepts no messages.
    fn gone(&self, requested: &FakeRequest, now_ms: u64) -> Reply;

    /// Builds the answer to a query of an account's quota; a 404 for providers without such a
    /// query.
    fn quota(&self, standing: QuotaStatus) -> Reply {
        let _ = standing;
        Reply::text(404, "not found")
    }

    /// Adds the state of the quota to the answer to an accepted request, for providers that report
    /// it.
    fn with_quota(&self, reply: Reply, standing: QuotaStatus, now_ms: u64) -> Reply {
        let _ = (standing, now_ms);
        reply
    }

    /// Builds the answer to a fault; `None` for a fault that is no answer.
    fn faulty(&self, requested: &FakeRequest, fault: &Fault, now_ms: u64) -> Option<Reply> {
        match fault {
            Fault::Throttle { whom, delay } => {
                Some(self.throttled(requested, *whom, *delay, now_ms))
            }
            Fault::Status(status) => Some(self.failed(requested, *status, None)),
            Fault::Unavailable(delay) => {
                Some(self.failed(requested, 503, None).after(Some(*delay)))
            }
            Fault::Code(status, code) => Some(self.failed(requested, *status, Some(code))),
            Fault::Garbage => {
                let body = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><h1>502 Bad Gateway</h1></body></html>";
                Some(Reply {
                    status: 502,
                    headers: vec![("content-type", "text/html".to_owned())],
                    body: body.to_owned(),
                })
            }
            Fault::Nonsense => Some(Reply::text(200, "\u{fffd}{]<nonsense")),
            Fault::Suspend => Some(self.suspended(requested)),
            Fault::BadCredentials => Some(self.unauthorized(requested)),
            Fault::PermanentRecipient => Some(self.gone(requested, now_ms)),
            Fault::Hang | Fault::ResetAfterWrite | Fault::CloseBeforeRead | Fault::Slow(_) => None,
        }
    }
}
