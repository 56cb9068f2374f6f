//! The HTTP server of the formats.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::time::sleep;

use super::Fault;
use super::ledger::RequestDecision;
use super::open_connection::FakeConnection;
use super::server::{FakeServer, mark};
use super::wire::{FakeRequest, IncomingRequest, Read, Reply, WireFormat};

/// The absence of an answer: the connection is closed, or the stream reset.
#[derive(Debug, thiserror::Error)]
#[error("no answer is given")]
pub(super) struct NoResponse;

pub(super) async fn answer(
    server: Arc<FakeServer>,
    wire: Arc<dyn WireFormat>,
    link: Arc<FakeConnection>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, NoResponse> {
    let _under_way = PendingRequest::new(&server.under_way);
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| NoResponse)?.to_bytes();
    let now_ms = server.clock.now_ms();
    let came = IncomingRequest {
        method: parts.method,
        uri: parts.uri,
        headers: parts.headers,
        body,
        now_ms,
    };
    let _alone = link.turn(&server).await;
    let (read, mark) = (
        wire.read(&came, &server.format_state),
        mark(&[came.uri.path().as_bytes(), &came.body]),
    );
    *server.last.lock() = Some(came);
    let reply = match read {
        Read::Message(requested) => message(&server, &*wire, &requested, mark).await?,
        Read::Quota(account) => {
            let standing = server.ledger().quota_status(&account);
            wire.quota(standing)
        }
        Read::Other(reply) => reply,
        Read::Refused(account, reply) => {
            server.ledger().refused(&account);
            server.work().await;
            reply
        }
    };
    if reply.status >= 400 {
        link.rejected(&server);
    }
    Ok(response(reply))
}

/// Decides on a message and returns its answer after the time that the answer takes.
async fn message(
    server: &FakeServer,
    wire: &dyn WireFormat,
    requested: &FakeRequest,
    mark: u64,
) -> Result<Reply, NoResponse> {
    let (verdict, now_ms) = server.judge(requested, mark);
    match verdict {
        RequestDecision::Accepted {
            number,
            standing,
            fault,
        } => {
            let (id, reply) = wire.accepted(requested, number, now_ms);
            server.remember(requested, &id, number, now_ms);
            match fault {
                Some(Fault::ResetAfterWrite) => return Err(NoResponse),
                Some(Fault::Slow(time)) => sleep(time).await,
                _ => server.work().await,
            }
            Ok(if server.tells_quota {
                wire.with_quota(reply, standing, now_ms)
            } else {
                reply
            })
        }
        RequestDecision::Over(whom, wait) => {
            server.work().await;
            Ok(wire.throttled(requested, whom, server.tells_delay.then_some(wait), now_ms))
        }
        RequestDecision::Faulty(Fault::Hang) => {
            server.stop.cancelled().await;
            Err(NoResponse)
        }
        RequestDecision::Faulty(fault) => {
            let reply = wire.faulty(requested, &fault, now_ms).ok_or(NoResponse)?;
            server.work().await;
            Ok(reply)
        }
    }
}

fn response(reply: Reply) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(reply.body)));
    *response.status_mut() =
        http::StatusCode::from_u16(reply.status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in reply.headers {
        if let Ok(value) = http::HeaderValue::from_str(&value) {
            response
                .headers_mut()
                .insert(http::HeaderName::from_static(name), value);
        }
    }
    response
}

/// Counts a request until it is answered or its client is gone.
struct PendingRequest<'a>(&'a AtomicU64);

impl<'a> PendingRequest<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
