//! The HTTP client of drivers: one request, and its answer or the reason for having none.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::jobs::{OnAmbiguous, Scope};
use crate::outbound::hyper::{HttpClient, TransportError};
use crate::outbound::request::STATUS_BODY_TIMEOUT;
use crate::outbound::resolve::Resolver;
use crate::outbound::retry_after::Headers;
use crate::outbound::{Guard, Request};

/// The maximum number of bytes read from a body.
const BODY_BYTES: usize = 64 * 1024;

/// The timeout for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A request.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method, in capitals.
    pub method: &'static str,
    /// The absolute URL.
    pub url: String,
    /// Names and values; values may be credentials.
    pub headers: Vec<(String, String)>,
    /// The body, as text.
    pub body: String,
    /// The timeout from connecting to the end of the answer.
    pub timeout: Duration,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpAnswer {
    /// The status code.
    pub status: u16,
    pub headers: Headers,
    /// The beginning of the body, at most 64 KiB.
    pub body: Vec<u8>,
}

/// The reason for having no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// Nothing was sent, so a retry is safe.
    #[error("{0}")]
    Unsent(String),
    /// Nothing was sent, because the process is out of file descriptors.
    #[error("{0}")]
    Short(String),
    /// The request may have been sent.
    #[error("{0}")]
    Ambiguous(String),
    /// The address is forbidden, or the request cannot be built.
    #[error("{0}")]
    Refused(String),
}

/// The HTTP client of a process.
pub struct Http(HttpClient);

impl Http {
    /// Creates a client that reaches only the addresses that `guard` allows.
    pub fn new(guard: Guard) -> std::io::Result<Self> {
        let resolver = Resolver::new(guard.clone(), None);
        Ok(Self(HttpClient::new(guard, resolver)?))
    }

    /// Checks that a URL is well-formed and allowed by the guard, without resolving its name.
    pub fn check_url(&self, url: &str) -> Result<(), String> {
        self.0.check_url(url)
    }

    /// Sends one request over a pooled connection and reads its answer. Redirects are not followed.
    pub async fn send(
        &self,
        call: Call,
        stop: &CancellationToken,
    ) -> Result<HttpAnswer, ExchangeError> {
        let body_timeout = call.timeout;
        self.exchange(call, body_timeout, stop).await
    }

    /// Sends one request, of whose answer only the head matters: a slow body is not waited for.
    pub async fn send_for_status(
        &self,
        call: Call,
        stop: &CancellationToken,
    ) -> Result<HttpAnswer, ExchangeError> {
        self.exchange(call, STATUS_BODY_TIMEOUT, stop).await
    }

    async fn exchange(
        &self,
        call: Call,
        body_timeout: Duration,
        stop: &CancellationToken,
    ) -> Result<HttpAnswer, ExchangeError> {
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
            body_timeout,
            redirects: 0,
            http2: false,
            success: vec![200..=299],
            excerpt_bytes: BODY_BYTES,
            throttled_scope: Scope::Key,
            on_ambiguous: OnAmbiguous::Retry,
        };
        match self.0.send(&request, &[], Some(call.body), stop).await {
            Ok(response) => Ok(HttpAnswer {
                status: response.status,
                headers: response.headers,
                body: response.excerpt,
            }),
            Err(TransportError::Unsent(error)) => Err(ExchangeError::Unsent(error)),
            Err(short @ TransportError::Short(_)) => Err(ExchangeError::Short(short.to_string())),
            Err(TransportError::Unanswered(error)) => Err(ExchangeError::Ambiguous(error)),
            Err(stopped @ TransportError::Stopped { sent: true }) => {
                Err(ExchangeError::Ambiguous(stopped.to_string()))
            }
            Err(stopped @ TransportError::Stopped { sent: false }) => {
                Err(ExchangeError::Unsent(stopped.to_string()))
            }
            Err(never @ (TransportError::Refused(_) | TransportError::Unsendable(_))) => {
                Err(ExchangeError::Refused(never.to_string()))
            }
        }
    }
}
