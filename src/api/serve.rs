//! The server: the listener, its connections, the sampler, and their orderly end.
//!
//! A connection has ten seconds for the head of each request, and thirty in which the client must
//! read at least a part of an answer. The number of connections is bounded
//! ([`super::http::connection_slots`]), so that file descriptors are left for the rest of the
//! process.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{ConnectInfo, Request};
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tower_service::Service as _;

use crate::api::deps::Deps;
use crate::api::http::connections::{
    ConnectionPermit, ConnectionRefusal, Connections, RequestGuard,
};
use crate::api::http::denied::origin;
use crate::api::http::problem::{Code, Problem};
use crate::api::router;
use crate::api::stream::sample;

/// The time that running requests get to end when the process stops.
const GRACE: Duration = Duration::from_secs(10);

/// The longest time for the head of a request, and for the next request on a connection that is
/// kept open.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest head of a request, in bytes. Everybody may send one.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The longest time for the head of a request on a reserved place.
const RESERVE_HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// The time after which a client that reads nothing of its answer counts as gone.
const STALLED: Duration = Duration::from_secs(30);

/// The pause before the next attempt after a connection could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The default number of connections.
const USUAL: usize = 1024;

/// The number of connections of a listener for metrics.
const OF_METRICS: usize = 64;

/// The paths that are served on a reserved place.
const ON_RESERVE: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Serves as [`serve_within`] does, with the default number of connections.
pub async fn serve(deps: Deps, listener: TcpListener) -> io::Result<()> {
    serve_within(deps, listener, Connections::new(USUAL)).await
}

/// Serves, and samples, until the cancel token fires and the running requests have ended or the
/// grace time is over. Fails if the sampling ends before that.
pub async fn serve_within(
    deps: Deps,
    listener: TcpListener,
    connections: Connections,
) -> io::Result<()> {
    let cancel = deps.cancel.clone();
    let mut sampler = AbortOnDropHandle::new(tokio::spawn(sample::run(deps.clone()).boxed()));
    let app = router::router(deps);
    let mut served = pin!(attend_all(app, listener, &connections, &cancel));
    tokio::select! {
        () = served.as_mut() => return Ok(()),
        _ = &mut sampler => {}
    }
    // It ends before the last requests when the process stops, and otherwise never.
    if !cancel.is_cancelled() {
        return Err(io::Error::other(
            "the task that samples for the dashboard died",
        ));
    }
    served.await;
    Ok(())
}

/// Serves the metrics and the health of the process, and nothing else, as [`serve_within`] does.
pub async fn serve_metrics(deps: Deps, listener: TcpListener) -> io::Result<()> {
    let cancel = deps.cancel.clone();
    let connections = Connections::new(OF_METRICS);
    attend_all(router::of_metrics(deps), listener, &connections, &cancel).await;
    Ok(())
}

async fn attend_all(
    app: Router,
    listener: TcpListener,
    connections: &Connections,
    cancel: &CancellationToken,
) {
    let tasks = attend_each(&app, &listener, connections, cancel).await;
    drop(listener);
    tasks.close();
    if tokio::time::timeout(GRACE, tasks.wait()).await.is_err() {
        tracing::warn!(
            grace_s = GRACE.as_secs(),
            "requests were cut off because they did not end within the grace time"
        );
    }
}

/// Serves each connection that comes until the token fires; returns the connections that are open
/// then.
pub(super) async fn attend_each(
    app: &Router,
    listener: &TcpListener,
    connections: &Connections,
    cancel: &CancellationToken,
) -> TaskTracker {
    let tasks = TaskTracker::new();
    while let Some((stream, address)) = accept(listener, connections, cancel).await {
        if let Some(seat) = connections.admit(origin(Some(address.ip()))) {
            let (app, seat, cancel) = (app.clone(), Arc::new(seat), cancel.clone());
            tasks.spawn(attend(app, stream, address, seat, cancel).boxed());
        }
    }
    tasks
}

/// Returns the next connection; `None` when the process stops.
async fn accept(
    listener: &TcpListener,
    connections: &Connections,
    cancel: &CancellationToken,
) -> Option<(TcpStream, SocketAddr)> {
    loop {
        let accepted = tokio::select! {
            biased;
            () = cancel.cancelled() => return None,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(accepted) => return Some(accepted),
            // The client closed the connection before it was accepted.
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                connections.refused(ConnectionRefusal::Accept);
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

/// Serves the requests of one connection until it ends, must close, or the process stops.
async fn attend(
    app: Router,
    stream: TcpStream,
    address: SocketAddr,
    seat: Arc<ConnectionPermit>,
    cancel: CancellationToken,
) {
    // Answers are small and clients wait for them, so they are not delayed.
    let _ = stream.set_nodelay(true);
    let mut http = http1::Builder::new();
    let head = if seat.is_reserve() {
        RESERVE_HEAD_TIMEOUT
    } else {
        HEAD_TIMEOUT
    };
    http.timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_header_size(HEAD_BYTES_MAX)
        .keep_alive(!seat.is_reserve());
    let answering = service_fn(|request: hyper::Request<Incoming>| {
        let (app, seat) = (app.clone(), seat.clone());
        async move { Ok::<_, Infallible>(answer(app, request.map(Body::new), address, &seat).await) }
    });
    let served = http.serve_connection(TokioIo::new(StallGuard::new(stream)), answering);
    let mut served = pin!(served.with_upgrades());
    let mut is_stopping = false;
    loop {
        tokio::select! {
            biased;
            () = seat.close.cancelled() => return,
            // A client that disconnects is not an error.
            _ = served.as_mut() => return,
            () = cancel.cancelled(), if !is_stopping => {
                is_stopping = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn answer(
    mut app: Router,
    mut request: Request,
    address: SocketAddr,
    seat: &Arc<ConnectionPermit>,
) -> Response {
    // A connection that must close gets no answer, so its request must have no effect.
    let Some(busy) = seat.begin() else {
        return pending().await;
    };
    let response = match seat.is_reserve() && !ON_RESERVE.contains(&request.uri().path()) {
        true => {
            seat.connections().refused(ConnectionRefusal::Reserve);
            Problem::new(
                Code::Overloaded,
                "too many connections are open; try again soon",
            )
            .retry_after(1)
            .into_response()
        }
        false => {
            request.extensions_mut().insert(ConnectInfo(address));
            let Ok(response) = app.call(request).await;
            response
        }
    };
    response.map(|body| Body::new(TrackedBody { body, _busy: busy }))
}

/// A body that keeps its connection busy until it has been sent.
struct TrackedBody {
    body: Body,
    _busy: RequestGuard,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that fails if nothing can be written for too long.
struct StallGuard {
    stream: TcpStream,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl StallGuard {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            stalled: None,
        }
    }

    /// Stops the timer after a write, and starts it if nothing could be written.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let clock = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + STALLED)));
        ready!(clock.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for StallGuard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for StallGuard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
