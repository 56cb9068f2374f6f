//! The HTTP client of drivers: one request, one answer, and whether the request may have left where there is none.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::jobs::{OnAmbiguous, Scope};
use crate::outbound::hyper::{Failure, HttpClient};
use crate::outbound::resolve::Resolver;
use crate::outbound::retry_after::Headers;
use crate::outbound::{Guard, Request};

/// Most bytes of a body that are read.
const BODY_BYTES: usize = 64 * 1024;

/// Longest that connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A request.
#[derive(Clone, Debug)]
pub struct Call {
    /// In capitals.
    pub method: &'static str,
    /// Absolute.
    pub url: String,
    /// Names and values; values may be credentials.
    pub headers: Vec<(String, String)>,
    /// The bytes to send, as text.
    pub body: String,
    /// From connecting to the head of the answer.
    pub timeout: Duration,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpAnswer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: Headers,
    /// The beginning of the body.
    pub body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// Nothing was sent, so it is safe to send again.
    #[error("{0}")]
    Unsent(String),
    /// Nothing was sent, because this process has no descriptor left.
    #[error("{0}")]
    Short(String),
    /// It may have been sent.
    #[error("{0}")]
    Ambiguous(String),
    /// The address must not be reached, or the request cannot be made.
    #[error("{0}")]
    Refused(String),
}

/// The client of a process.
pub struct Http(HttpClient);

impl Http {
    /// A client that reaches what `guard` lets it.
    pub fn new(guard: Guard) -> std::io::Result<Self> {
        let resolver = Resolver::new(guard.clone(), None);
        Ok(Self(HttpClient::new(guard, resolver)?))
    }

    /// What is wrong with a URL that looks good on paper.
    pub fn check_url(&self, url: &str) -> Result<(), String> {
        self.0.check_url(url)
    }

    /// Sends once, over a connection that is kept. Redirects are answers like others.
    pub async fn send(&self, call: Call, stop: &CancellationToken) -> Result<HttpAnswer, Unanswered> {
        let request = Request {
            method: call.method.to_owned(),
            url: call.url,
            headers: call.headers,
            body: None,
            body_is_json: false,
            template: None,
            secret: None,
            timeout: call.timeout,
            connect_timeout: CONNECT_TIMEOUT,
            redirects: 0,
            http2: false,
            success: vec![200..=299],
            excerpt_bytes: BODY_BYTES,
            throttled_scope: Scope::Key,
            on_ambiguous: OnAmbiguous::Retry,
        };
        match self.0.send(&request, &[], Some(call.body), stop).await {
            Ok(response) => Ok(HttpAnswer { status: response.status, headers: response.headers, body: response.excerpt }),
            Err(Failure::Unsent(error)) => Err(Unanswered::Unsent(error)),
            Err(short @ Failure::Short(_)) => Err(Unanswered::Short(short.to_string())),
            Err(Failure::Unanswered(error)) => Err(Unanswered::Ambiguous(error)),
            Err(stopped @ Failure::Stopped { sent: true }) => Err(Unanswered::Ambiguous(stopped.to_string())),
            Err(stopped @ Failure::Stopped { sent: false }) => Err(Unanswered::Unsent(stopped.to_string())),
            Err(never @ (Failure::Refused(_) | Failure::Unsendable(_))) => Err(Unanswered::Refused(never.to_string())),
        }
    }
}
