//! The HTTP client of jobs: one request for each attempt.
//!
//! It follows redirects only if a job asks for it, never repeats a request that was sent, uses no
//! proxies, reads bounded answers, and connects only to addresses that the guard allows.
//!
//! It always knows if a request may have been sent, because nothing is written before the request
//! has a connection. So it distinguishes a failure to connect from a request that was sent and not
//! answered.

use std::error::Error as _;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT,
};
use http::{Method, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::{HttpConnector, capture_connection};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower_service::Service;
use url::Url;

use super::credentials::Credentials;
use super::descriptors;
use super::guard::{BlockedAddress, Guard};
use super::request::Request;
use super::resolve::{ResolveError, Resolver, parse_url};
use super::response::{Response, is_success};
use super::retry_after::Headers;

/// Longest read of a body after a stop.
const STOPPED_BODY_TIMEOUT: Duration = Duration::from_millis(500);

/// Most bytes of a successful answer's body that are read, so that the connection can be reused.
const DRAIN_BYTES: usize = 64 * 1024;

/// Headers of a job that are also sent to another origin. Any other header may be a credential.
const HARMLESS: [HeaderName; 4] = [
    ACCEPT,
    http::header::ACCEPT_LANGUAGE,
    CONTENT_TYPE,
    USER_AGENT,
];

/// The reason for a missing answer.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The guard does not allow the address.
    #[error(transparent)]
    Refused(#[from] BlockedAddress),
    /// The request is invalid.
    #[error("the request cannot be sent: {0}")]
    Unsendable(String),
    /// Nothing was sent.
    #[error("{0}")]
    Unsent(String),
    /// Nothing was sent, because this process has no descriptor left, which says nothing about the
    /// server.
    #[error("opening a connection failed: {0}")]
    Short(String),
    /// The request was sent, at least in part, and no answer came.
    #[error("{0}")]
    Unanswered(String),
    /// The request was cancelled.
    #[error("stopped before a response arrived")]
    Stopped {
        /// True if the server may have received the request.
        sent: bool,
    },
}

impl TransportError {
    /// Returns the kind of failure in one word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Unsendable(_) => "unsendable",
            Self::Unsent(_) => "unsent",
            Self::Short(_) => "no_descriptor",
            Self::Unanswered(_) => "unanswered",
            Self::Stopped { .. } => "stopped",
        }
    }

    /// Returns the error for the job whose request was carried out before it was redirected: that
    /// nothing was sent is true only of the request that follows.
    fn after_redirect(self) -> Self {
        match self {
            Self::Unsent(error) | Self::Short(error) => {
                Self::Unanswered(format!("a redirect could not be followed: {error}"))
            }
            Self::Stopped { .. } => Self::Stopped { sent: true },
            other => other,
        }
    }
}

impl From<ResolveError> for TransportError {
    fn from(astray: ResolveError) -> Self {
        match astray {
            ResolveError::Refused(refused) => Self::Refused(refused),
            ResolveError::Invalid(_) => Self::Unsendable(astray.to_string()),
        }
    }
}

type HyperClient = Client<HttpsConnector<HttpConnector<Guarded>>, Full<Bytes>>;

/// The client of a process.
pub struct HttpClient {
    /// The client that negotiates HTTP/1.1 or 2 with each server.
    wire: HyperClient,
    /// The client that uses HTTP/2 without negotiation.
    wire_http2: HyperClient,
    guard: Guard,
}

impl HttpClient {
    /// Sets up the client.
    pub fn new(guard: Guard, resolver: Resolver) -> std::io::Result<Self> {
        Ok(Self {
            wire: wire(&resolver, false)?,
            wire_http2: wire(&resolver, true)?,
            guard,
        })
    }

    /// Checks that a URL can be parsed and that the guard allows an address in it.
    pub fn check_url(&self, url: &str) -> Result<(), String> {
        super::check_url(url, &self.guard)
    }

    /// Sends a request with these additional headers and this body, and reads the necessary part of
    /// the answer. Gives up at the request's timeout, or when `stop` fires.
    pub async fn send(
        &self,
        request: &Request,
        more: &[(&'static str, String)],
        body: Option<String>,
        stop: &CancellationToken,
    ) -> Result<Response, TransportError> {
        let deadline = Instant::now() + request.timeout;
        let mut hop = Hop::first(request, more, body, &self.guard)?;
        let mut left = request.redirects;
        let mut is_carried_out = false;
        loop {
            let exchanged = self.exchange(&hop, request, deadline, stop).await;
            let answer = exchanged.map_err(|error| match is_carried_out {
                true => error.after_redirect(),
                false => error,
            })?;
            let status = answer.status().as_u16();
            let done = is_success(&request.success, status);
            if !done
                && left > 0
                && let Some(next) = hop.next(status, answer.headers(), &self.guard)
            {
                left -= 1;
                let next = next?;
                // The redirect leads to the result of a request that the server has carried out.
                is_carried_out |= next.method != hop.method;
                hop = next;
                continue;
            }
            let headers = headers(answer.headers());
            let most = if done {
                DRAIN_BYTES
            } else {
                request.excerpt_bytes
            };
            let until = deadline.min(Instant::now() + request.body_timeout);
            let excerpt = read(answer.into_body(), most, until, stop).await;
            return Ok(Response {
                status,
                headers,
                excerpt,
            });
        }
    }

    /// Sends one request. If a kept connection turns out to be closed before anything was written,
    /// it is sent once on another; a written request is never repeated.
    async fn exchange(
        &self,
        hop: &Hop,
        request: &Request,
        deadline: Instant,
        stop: &CancellationToken,
    ) -> Result<http::Response<Incoming>, TransportError> {
        let wire = if request.http2 {
            &self.wire_http2
        } else {
            &self.wire
        };
        for is_last in [false, true] {
            let mut call = hop.call()?;
            let connection = capture_connection(&mut call);
            let sent = || connection.connection_metadata().is_some();
            let answering = pin!(wire.request(call));
            let unconnected = async {
                tokio::time::sleep(request.connect_timeout).await;
                if sent() {
                    std::future::pending::<()>().await;
                }
            };
            return tokio::select! {
                biased;
                answer = answering => match answer {
                    Err(error) if !is_last && is_unsent(&error) => continue,
                    answer => answer.map_err(|error| failure_of(&error, sent())),
                },
                () = stop.cancelled() => Err(TransportError::Stopped { sent: sent() }),
                () = tokio::time::sleep_until(deadline) => Err(match sent() {
                    true => TransportError::Unanswered(format!("no answer within {} ms", request.timeout.as_millis())),
                    false => TransportError::Unsent(format!("no connection within {} ms", request.timeout.as_millis())),
                }),
                () = unconnected => {
                    Err(TransportError::Unsent(format!("no connection within {} ms", request.connect_timeout.as_millis())))
                }
            };
        }
        Err(TransportError::Unsent(
            "the connection was closed before the request was sent".to_owned(),
        ))
    }
}

/// A request to one address: the job's own or a redirect's target.
struct Hop {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Option<Bytes>,
}

impl Hop {
    fn first(
        request: &Request,
        more: &[(&'static str, String)],
        body: Option<String>,
        guard: &Guard,
    ) -> Result<Self, TransportError> {
        let unsendable = |what: &str| TransportError::Unsendable(what.to_owned());
        let method = request
            .method
            .parse()
            .map_err(|_| unsendable("the method is not valid"))?;
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static(super::USER_AGENT));
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        if request.body_is_json {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let own = request
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value));
        for (name, value) in own.chain(more.iter().map(|(name, value)| (*name, value))) {
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| unsendable("a header's name is not valid"))?;
            // The value may be a secret.
            let mut value = HeaderValue::from_bytes(value.as_bytes())
                .map_err(|_| unsendable("a header's value is not valid"))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let mut url = parse_url(&request.url, guard)?;
        if let Some(credentials) = take_credentials(&mut url)
            && !headers.contains_key(AUTHORIZATION)
        {
            headers.insert(AUTHORIZATION, credentials);
        }
        Ok(Self {
            method,
            url,
            headers,
            body: body.map(Bytes::from),
        })
    }

    /// Returns the request to which an answer redirects; `None` if it does not.
    ///
    /// A 303, and a 301 or 302 after a POST, turns into a GET. No possible credential is sent to
    /// another origin.
    fn next(
        &self,
        status: u16,
        headers: &HeaderMap,
        guard: &Guard,
    ) -> Option<Result<Self, TransportError>> {
        let is_post = self.method == Method::POST;
        let turns_to_get = match status {
            303 => self.method != Method::GET && self.method != Method::HEAD,
            301 | 302 => is_post,
            307 | 308 => false,
            _ => return None,
        };
        let target = headers.get(LOCATION)?.to_str().ok()?;
        Some(self.follow(target, turns_to_get, guard))
    }

    fn follow(
        &self,
        target: &str,
        turns_to_get: bool,
        guard: &Guard,
    ) -> Result<Self, TransportError> {
        let unsendable = |what: &str| TransportError::Unsendable(format!("a redirect {what}"));
        let url = self
            .url
            .join(target)
            .map_err(|_| unsendable("leads to no valid URL"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(unsendable("leads to neither http nor https"));
        }
        let mut url = parse_url(url.as_str(), guard)?;
        // The redirecting server must not choose our credentials.
        let _ = take_credentials(&mut url);
        let mut headers = self.headers.clone();
        if url.origin() != self.url.origin() {
            let foreign: Vec<HeaderName> = headers
                .keys()
                .filter(|name| !HARMLESS.contains(name))
                .cloned()
                .collect();
            for name in foreign {
                headers.remove(name);
            }
        }
        let (method, body) = match turns_to_get {
            true => (Method::GET, None),
            false => (self.method.clone(), self.body.clone()),
        };
        if body.is_none() {
            headers.remove(CONTENT_TYPE);
        }
        Ok(Self {
            method,
            url,
            headers,
            body,
        })
    }

    fn call(&self) -> Result<http::Request<Full<Bytes>>, TransportError> {
        let uri: Uri = self.url.as_str().parse().map_err(|error| {
            TransportError::Unsendable(format!("the URL is not valid: {error}"))
        })?;
        let mut call = http::Request::new(Full::new(self.body.clone().unwrap_or_default()));
        *call.method_mut() = self.method.clone();
        *call.uri_mut() = uri;
        *call.headers_mut() = self.headers.clone();
        Ok(call)
    }
}

/// Removes user name and password from a URL and returns them as a header.
fn take_credentials(url: &mut Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let basic = Credentials {
        user: url.username(),
        password: url.password().unwrap_or_default(),
    }
    .basic();
    // Neither can fail for a URL that has a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    let mut value = HeaderValue::try_from(format!("Basic {basic}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn wire(resolver: &Resolver, http2_only: bool) -> std::io::Result<HyperClient> {
    let mut connector = HttpConnector::new_with_resolver(Guarded(resolver.clone()));
    connector.enforce_http(false);
    connector.set_nodelay(true);
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let secure = HttpsConnectorBuilder::new()
        .with_provider_and_platform_verifier(provider)?
        .https_or_http();
    let connector = match http2_only {
        true => secure.enable_http2().wrap_connector(connector),
        false => secure
            .enable_http1()
            .enable_http2()
            .wrap_connector(connector),
    };
    Ok(Client::builder(TokioExecutor::new())
        .http2_only(http2_only)
        // The queue retries, through the same throttle.
        .retry_canceled_requests(false)
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(30))
        // With many requests in flight, a quiet moment must not close connections that are needed
        // again at once.
        .pool_max_idle_per_host(512)
        .build(connector))
}

/// Converts a server's headers to [`Headers`], with repeated ones joined.
pub fn headers(map: &HeaderMap) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in map {
        let value = String::from_utf8_lossy(value.as_bytes());
        headers
            .entry(name.as_str().to_owned())
            .and_modify(|joined| *joined = format!("{joined}, {value}"))
            .or_insert_with(|| value.clone().into_owned());
    }
    headers
}

/// Reads the beginning of a body; a read that fails, takes too long or is stopped returns the bytes
/// so far.
async fn read(
    mut body: Incoming,
    most: usize,
    until: Instant,
    stop: &CancellationToken,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(chunk) = frame.into_data() else {
                continue;
            };
            bytes.extend_from_slice(&chunk[..chunk.len().min(most - bytes.len())]);
            if bytes.len() >= most {
                break;
            }
        }
    };
    let stopped = async {
        stop.cancelled().await;
        tokio::time::sleep(STOPPED_BODY_TIMEOUT).await;
    };
    tokio::select! {
        biased;
        () = reading => {}
        () = tokio::time::sleep_until(until) => {}
        () = stopped => {}
    }
    bytes
}

/// Returns true if nothing of the request was written: its connection ended while it waited.
fn is_unsent(error: &Error) -> bool {
    causes(error).any(|cause| {
        cause
            .downcast_ref::<hyper::Error>()
            .is_some_and(hyper::Error::is_canceled)
    })
}

/// Classifies a failure.
fn failure_of(error: &Error, sent: bool) -> TransportError {
    if let Some(refused) = causes(error).find_map(|cause| cause.downcast_ref::<BlockedAddress>()) {
        return TransportError::Refused(refused.clone());
    }
    let reason = causes(error)
        .last()
        .map_or_else(|| error.to_string(), ToString::to_string);
    match () {
        () if !sent && (descriptors::are_short(error) || descriptors::are_gone()) => {
            TransportError::Short(reason)
        }
        () if error.is_connect() || !sent => {
            TransportError::Unsent(format!("could not connect: {reason}"))
        }
        () if is_unsent(error) => {
            TransportError::Unsent(format!("sending the request failed: {reason}"))
        }
        () => TransportError::Unanswered(format!("the connection broke: {reason}")),
    }
}

fn causes(error: &Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    let mut next = error.source();
    std::iter::from_fn(move || {
        let cause = next?;
        next = cause.source();
        Some(cause)
    })
}

/// The resolver in the form that hyper requires.
#[derive(Clone)]
struct Guarded(Resolver);

impl Service<Name> for Guarded {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolver = self.0.clone();
        Box::pin(async move {
            Ok(resolver
                .resolve(name.as_str().to_owned())
                .await?
                .into_iter())
        })
    }
}
