//! The wire: HTTP/2 connections, opened and closed as [`Lines`] decides, and one push per stream.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::Uri;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::{Mutex, MutexGuard};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tower_service::Service;

use super::lines::{Lines, PushEffect};
use crate::outbound::request::STATUS_BODY_TIMEOUT;

/// The timeout for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The interval of keep-alive pings on a connection.
const PING: Duration = Duration::from_secs(30);
/// The timeout of a keep-alive ping.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// The interval at which unneeded connections are looked for.
const TICK: Duration = Duration::from_secs(1);

/// The maximum length of an answer's body, which holds a reason, in bytes.
const BODY_BYTES: usize = 8 * 1024;

type Sender = SendRequest<Full<Bytes>>;
type H2Connection = Connection<TokioIo<MaybeHttps>, Full<Bytes>, TokioExecutor>;
type MaybeHttps = TokioIo<MaybeHttpsStream<TokioIo<TcpStream>>>;
type StreamReply = oneshot::Sender<Result<Stream, StreamError>>;

/// The reason for having no stream.
#[derive(Clone, Debug)]
pub(super) enum StreamError {
    /// No connection could be opened.
    Unreachable(String),
    /// All connections are set aside for this long.
    Aside(Duration),
}

/// The reason for having no answer.
#[derive(Debug)]
pub(super) enum PushError {
    /// The connection ended before the push was accepted; another one may take it.
    Stale(String),
    /// The server refused the push without processing it.
    Unsent(String),
    /// The push may have been sent.
    Lost(String),
}

/// The connections of an account.
pub(super) struct ApnsConnections {
    uri: Uri,
    connector: HttpsConnector<HttpConnector>,
    start: Instant,
    inner: Mutex<ConnectionsInner>,
}

struct ConnectionsInner {
    lines: Lines,
    senders: HashMap<u64, (Sender, Arc<AtomicUsize>)>,
    waiting: VecDeque<StreamReply>,
}

impl ApnsConnections {
    /// Creates a pool for the server of `uri`, without opening a connection.
    pub(super) fn new(uri: Uri, lines: Lines) -> std::io::Result<Arc<Self>> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let secure = HttpsConnectorBuilder::new()
            .with_provider_and_platform_verifier(provider)?
            .https_or_http();
        let connector = secure.enable_http2().wrap_connector(tcp);
        let inner = ConnectionsInner {
            lines,
            senders: HashMap::new(),
            waiting: VecDeque::new(),
        };
        Ok(Arc::new(Self {
            uri,
            connector,
            start: Instant::now(),
            inner: Mutex::new(inner),
        }))
    }

    /// Sets the maximum number of concurrent pushes.
    pub(super) fn set_most(self: &Arc<Self>, most: usize) {
        self.inner().lines.set_most(most);
        // Opening needs a runtime, and there may be none yet: the next push or tick serves the
        // waiting ones.
        self.close();
    }

    /// Returns a stream, and true if the caller had to wait for it.
    pub(super) async fn stream(self: &Arc<Self>) -> Result<(Stream, bool), StreamError> {
        let (promise, mut promised) = oneshot::channel();
        self.inner().waiting.push_back(promise);
        self.dispatch();
        match promised.try_recv() {
            Ok(stream) => stream.map(|stream| (stream, false)),
            Err(_) => match promised.await {
                Ok(stream) => stream.map(|stream| (stream, true)),
                Err(_) => Err(StreamError::Unreachable(
                    "the connections were closed".to_owned(),
                )),
            },
        }
    }

    fn inner(&self) -> MutexGuard<'_, ConnectionsInner> {
        self.inner.lock()
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Assigns streams to the waiting pushes, opens missing connections and closes unneeded ones.
    fn dispatch(self: &Arc<Self>) {
        // No lock is held here: a promise whose owner has just gone drops its stream, and that
        // takes the lock.
        while let Some((promise, stream)) = self.next() {
            let _ = promise.send(stream);
        }
        let now = self.now();
        let missing = {
            let mut inner = self.inner();
            let waiting = inner.waiting.len();
            inner.lines.open(waiting, now)
        };
        for id in missing {
            tokio::spawn(self.clone().open(id).boxed());
        }
        self.close();
    }

    fn next(self: &Arc<Self>) -> Option<(StreamReply, Result<Stream, StreamError>)> {
        let now = self.now();
        let mut inner = self.inner();
        let ConnectionsInner {
            lines,
            senders,
            waiting,
        } = &mut *inner;
        waiting.retain(|promise| !promise.is_closed());
        if waiting.is_empty() {
            return None;
        }
        for (id, (sender, allowed)) in senders.iter() {
            lines.allowed(*id, allowed.load(Ordering::Relaxed));
            if sender.is_closed() {
                lines.closing(*id);
            }
        }
        let stream = match lines.take(now) {
            Some(id) => {
                let sender = senders.get(&id)?.0.clone();
                Ok(Stream {
                    of: self.clone(),
                    id,
                    sender,
                    began: now,
                    effect: PushEffect::Nothing,
                })
            }
            None => Err(StreamError::Aside(lines.stuck(now)?)),
        };
        Some((waiting.pop_front()?, stream))
    }

    fn close(&self) {
        let now = self.now();
        let mut inner = self.inner();
        for id in inner.lines.close(now) {
            // A connection without its sender says goodbye and ends.
            inner.senders.remove(&id);
        }
    }

    async fn open(self: Arc<Self>, id: u64) {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.connect()).await;
        let connected = connected.unwrap_or_else(|_| {
            Err(format!(
                "no connection within {} s",
                CONNECT_TIMEOUT.as_secs()
            ))
        });
        let now = self.now();
        match connected {
            Ok((sender, wire)) => {
                let allowed = Arc::new(AtomicUsize::new(wire.current_max_send_streams()));
                let mut inner = self.inner();
                inner.lines.opened(id, now);
                inner.senders.insert(id, (sender, allowed.clone()));
                drop(inner);
                tokio::spawn(drive(wire, allowed, Arc::downgrade(&self), id).boxed());
            }
            Err(reason) => {
                let mut inner = self.inner();
                let left = if inner.lines.failed(id, now) {
                    std::mem::take(&mut inner.waiting)
                } else {
                    VecDeque::new()
                };
                drop(inner);
                for promise in left {
                    let _ = promise.send(Err(StreamError::Unreachable(reason.clone())));
                }
            }
        }
        self.dispatch();
    }

    async fn connect(&self) -> Result<(Sender, H2Connection), String> {
        let mut connector = self.connector.clone();
        let io = connector
            .call(self.uri.clone())
            .await
            .map_err(|error| format!("could not connect: {}", root(&*error)))?;
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true);
        builder
            .handshake(TokioIo::new(TokioIo::new(io)))
            .await
            .map_err(|error| format!("could not connect: {}", root(&error)))
    }

    /// Records the end of a push.
    fn ended(self: &Arc<Self>, id: u64, effect: PushEffect) {
        let now = self.now();
        self.inner().lines.ended(id, effect, now);
        self.dispatch();
    }
}

/// Drives a connection until it ends, and keeps the number of streams that its server allows up to
/// date.
async fn drive(wire: H2Connection, allowed: Arc<AtomicUsize>, of: Weak<ApnsConnections>, id: u64) {
    let mut wire = pin!(wire);
    loop {
        let has_ended = tokio::select! {
            has_ended = std::future::poll_fn(|cx| match wire.as_mut().poll(cx) {
                Poll::Ready(_) => Poll::Ready(true),
                Poll::Pending => {
                    let streams = wire.current_max_send_streams();
                    match allowed.swap(streams, Ordering::Relaxed) == streams {
                        true => Poll::Pending,
                        false => Poll::Ready(false),
                    }
                }
            }) => has_ended,
            () = tokio::time::sleep(TICK) => false,
        };
        let Some(of) = of.upgrade() else {
            // All users are gone. Streams in progress keep the connection alive.
            let _ = wire.await;
            return;
        };
        if has_ended {
            let mut inner = of.inner();
            inner.lines.lost(id);
            inner.senders.remove(&id);
        }
        of.dispatch();
        if has_ended {
            return;
        }
    }
}

/// A slot on a connection for one push. Dropping it frees the slot.
pub(super) struct Stream {
    of: Arc<ApnsConnections>,
    id: u64,
    sender: Sender,
    began: Duration,
    effect: PushEffect,
}

impl Stream {
    /// Sends a push and reads the head and the body of the answer.
    pub(super) async fn send(
        &mut self,
        push: http::Request<Full<Bytes>>,
    ) -> Result<http::Response<Bytes>, PushError> {
        let answer = match self.sender.send_request(push).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.failure(&error)),
        };
        let (head, body) = answer.into_parts();
        // The head decides the outcome, so a truncated body is acceptable, and a slow one does not
        // make a push that was accepted one of unknown outcome.
        Ok(http::Response::from_parts(head, read(body).await))
    }

    /// Records the effect of the answer on the connection.
    pub(super) fn set_effect(&mut self, effect: PushEffect) {
        self.effect = effect;
    }

    /// Returns true if the duration of the push says nothing about load.
    pub(super) fn is_narrow(&self) -> bool {
        self.of.inner().lines.is_narrow(self.id, self.began)
    }

    fn failure(&mut self, error: &hyper::Error) -> PushError {
        let reason = root(error);
        let cause =
            std::error::Error::source(error).and_then(|source| source.downcast_ref::<h2::Error>());
        match cause {
            _ if error.is_canceled() => {
                self.effect = PushEffect::BatchPanicked;
                PushError::Stale(format!("the connection was closed: {reason}"))
            }
            // The server did not process the streams after the last one that it names.
            Some(cause) if cause.is_go_away() && cause.is_remote() => {
                self.effect = PushEffect::BatchPanicked;
                PushError::Stale(format!("the server closes the connection: {reason}"))
            }
            Some(cause) if cause.is_reset() && cause.is_remote() => match cause.reason() {
                Some(h2::Reason::REFUSED_STREAM) => {
                    PushError::Unsent("the stream was refused".to_owned())
                }
                _ => PushError::Lost(format!("the stream was reset: {reason}")),
            },
            _ => {
                self.effect = PushEffect::BatchPanicked;
                PushError::Lost(format!("the connection broke: {reason}"))
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.of.clone().ended(self.id, self.effect);
    }
}

/// Reads the body of an answer, as much as comes soon.
async fn read(mut body: Incoming) -> Bytes {
    let until = Instant::now() + STATUS_BODY_TIMEOUT;
    let mut bytes = Vec::new();
    while let Ok(Some(Ok(frame))) = tokio::time::timeout_at(until, body.frame()).await {
        let Ok(chunk) = frame.into_data() else {
            continue;
        };
        bytes.extend_from_slice(&chunk[..chunk.len().min(BODY_BYTES - bytes.len())]);
        if bytes.len() >= BODY_BYTES {
            break;
        }
    }
    bytes.into()
}

/// Returns the text of the innermost cause.
fn root(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
