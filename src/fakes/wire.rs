//! What the formats of all providers have in common: what a request asks for, and the answers that there are.

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Uri};

use super::{Fault, Whom};

/// A request as it came.
pub struct Came {
    /// GET, POST and so on.
    pub method: Method,
    /// Path and query.
    pub uri: Uri,
    /// The headers.
    pub headers: HeaderMap,
    /// The bytes.
    pub body: Bytes,
    /// Unix milliseconds.
    pub now_ms: u64,
}

impl Came {
    /// A header as text; empty where it is absent or no text.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The parts of the path.
    pub fn path(&self) -> Vec<&str> {
        self.uri.path().trim_matches('/').split('/').collect()
    }

    /// The fields of a form, URL-encoded or multipart; for repeated ones the first.
    pub fn form(&self) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        let kind = self.header("content-type");
        if let Some((_, boundary)) = kind.split_once("boundary=") {
            let text = String::from_utf8_lossy(&self.body);
            for part in text.split(&format!("--{}", boundary.trim_matches('"'))) {
                let Some((head, value)) = part.split_once("\r\n\r\n") else { continue };
                let Some(name) = head.split("name=\"").nth(1).and_then(|rest| rest.split('"').next()) else { continue };
                fields.entry(name.to_owned()).or_insert_with(|| value.strip_suffix("\r\n").unwrap_or(value).to_owned());
            }
        } else if kind.starts_with("application/x-www-form-urlencoded") {
            for (name, value) in url::form_urlencoded::parse(&self.body) {
                fields.entry(name.into_owned()).or_insert_with(|| value.into_owned());
            }
        }
        fields
    }

    /// The body as JSON; null where it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// What a request asks for.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Whose request it is.
    pub account: String,
    /// Whom it is for.
    pub to: String,
    /// Who sends it.
    pub sender: String,
    /// Which of the provider's doors it came through, where there are several; or an id that the answer repeats.
    pub door: String,
    /// Where the events of this message go, where the request says so.
    pub callback: Option<String>,
}

/// What a request turns out to be.
pub enum Read {
    /// A message to send.
    Message(Asked),
    /// A question about the quota of this account.
    Quota(String),
    /// Something else that has its answer, such as a refusal.
    Other(Reply),
    /// A refusal of what this account asked, which counts among its requests.
    Refused(String, Reply),
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: Vec<(&'static str, String)>,
    /// The bytes.
    pub body: String,
}

impl Reply {
    /// An answer in JSON.
    pub fn json(status: u16, body: &serde_json::Value) -> Self {
        Self { status, headers: vec![("content-type", "application/json".to_owned())], body: body.to_string() }
    }

    /// An answer in plain text.
    pub fn text(status: u16, body: &str) -> Self {
        Self { status, headers: vec![("content-type", "text/plain; charset=utf-8".to_owned())], body: body.to_owned() }
    }

    /// With one more header.
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }

    /// With `Retry-After` in whole seconds, where there is a delay.
    pub fn after(self, delay: Option<Duration>) -> Self {
        match delay {
            Some(delay) => self.with("retry-after", whole_seconds(delay)),
            None => self,
        }
    }
}

/// Seconds without a fraction, rounded up.
pub(super) fn whole_seconds(delay: Duration) -> u64 {
    delay.as_secs() + u64::from(delay.subsec_nanos() > 0)
}

/// How an account's quota stands.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// So many each second; `None` for no limit.
    pub limit: Option<f64>,
    /// What is left of this second, where there is a limit.
    pub left: u64,
    /// What was accepted in all.
    pub accepted: u64,
}

/// What a provider's format needs to know of its fake.
#[derive(Debug, Default)]
pub struct House {
    /// Known accounts and their secrets; empty for any.
    pub secrets: BTreeMap<String, String>,
    /// Where the fake listens, such as `http://127.0.0.1:4000`.
    pub url: String,
    /// Access tokens that were given out.
    pub tokens: Mutex<HashSet<String>>,
    /// Topics whose subscription was confirmed.
    pub confirmed: Mutex<HashSet<String>>,
}

impl House {
    /// Whether an account may come in with this secret.
    pub fn lets_in(&self, account: &str, secret: &str) -> bool {
        self.secrets.is_empty() || self.secrets.get(account).is_some_and(|known| known == secret)
    }

    /// Whether an account is known whose name is its secret.
    pub fn knows(&self, account: &str) -> bool {
        self.secrets.is_empty() || self.secrets.contains_key(account)
    }
}

/// The format of a provider.
pub trait Wire: Send + Sync + 'static {
    /// What a request is.
    fn read(&self, came: &Came, house: &House) -> Read;

    /// The id of the accepted message of this number, and the answer that tells it.
    fn accepted(&self, asked: &Asked, number: u64, now_ms: u64) -> (String, Reply);

    /// The provider's "slow down", with the delay in its own place.
    fn throttled(&self, asked: &Asked, whom: Whom, delay: Option<Duration>, now_ms: u64) -> Reply;

    /// An error with this status and the provider's own code, where one is asked for.
    fn failed(&self, asked: &Asked, status: u16, code: Option<&str>) -> Reply;

    /// The account is suspended.
    fn suspended(&self, asked: &Asked) -> Reply;

    /// The credentials are not valid.
    fn unauthorized(&self, asked: &Asked) -> Reply;

    /// The recipient is gone or wants nothing.
    fn gone(&self, asked: &Asked, now_ms: u64) -> Reply;

    /// How the quota of an account stands, for providers that tell.
    fn quota(&self, standing: Standing) -> Reply {
        let _ = standing;
        Reply::text(404, "not found")
    }

    /// Adds how the quota stands to the answer to an accepted request, for providers that tell.
    fn with_quota(&self, reply: Reply, standing: Standing, now_ms: u64) -> Reply {
        let _ = (standing, now_ms);
        reply
    }

    /// The answer to a fault that is one; `None` where the fault is none, or not an answer.
    fn faulty(&self, asked: &Asked, fault: &Fault, now_ms: u64) -> Option<Reply> {
        match fault {
            Fault::Throttle { whom, delay } => Some(self.throttled(asked, *whom, *delay, now_ms)),
            Fault::Status(status) => Some(self.failed(asked, *status, None)),
            Fault::Unavailable(delay) => Some(self.failed(asked, 503, None).after(Some(*delay))),
            Fault::Code(status, code) => Some(self.failed(asked, *status, Some(code))),
            Fault::Garbage => {
                let body =
                    "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><h1>502 Bad Gateway</h1></body></html>";
                Some(Reply { status: 502, headers: vec![("content-type", "text/html".to_owned())], body: body.to_owned() })
            }
            Fault::Nonsense => Some(Reply::text(200, "\u{fffd}{]<nonsense")),
            Fault::Suspend => Some(self.suspended(asked)),
            Fault::BadCredentials => Some(self.unauthorized(asked)),
            Fault::PermanentRecipient => Some(self.gone(asked, now_ms)),
            Fault::Hang | Fault::ResetAfterWrite | Fault::CloseBeforeRead | Fault::Slow(_) => None,
        }
    }
}
