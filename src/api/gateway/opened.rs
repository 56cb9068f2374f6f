//! The begin and the end of a connection: its place in the process and among those of its tenant,
//! and its close frame.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use futures_util::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;

use super::identity::GatewayIdentity;
use super::state::GatewayState;
use crate::api::http::denied::origin;
use crate::api::http::problem::{Code, Problem};
use crate::gateway::close::CloseReason;
use crate::gateway::connection_counts::ConnectionSeat;

/// The time in which a close frame is answered, by either side.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// The seconds after which a client that was refused may try again.
pub(super) const RETRY_S: u64 = 5;

/// Takes a place in this process, unless it stops or opens too many connections already. That comes
/// before the credential, so that no ticket is used up in vain.
pub(super) fn place(state: &GatewayState) -> Result<OwnedSemaphorePermit, Problem> {
    if state.gateway.drain.is_cancelled() {
        return Err(refused(
            state,
            "draining",
            "the server stops; connect again",
            1,
        ));
    }
    admitted(state, state.handshakes.has_room(Instant::now()))?;
    state.places.clone().try_acquire_owned().map_err(|_| {
        let detail = "the server has as many connections as it may have (setting ws_connections)";
        refused(state, "full", detail, RETRY_S)
    })
}

/// Counts the opening of a connection of a tenant, whose client has shown a credential, or refuses
/// it.
pub(super) fn open_known(state: &GatewayState, tenant: &Arc<str>) -> Result<(), Problem> {
    admitted(state, state.handshakes.admit(tenant, Instant::now()))
}

/// Counts the opening of a connection whose client has not, or refuses it.
pub(super) fn open_unknown(state: &GatewayState, address: Option<IpAddr>) -> Result<(), Problem> {
    let origin = origin(address);
    admitted(
        state,
        state.handshakes.admit_unknown(&origin, Instant::now()),
    )
}

fn admitted(state: &GatewayState, is_admitted: bool) -> Result<(), Problem> {
    match is_admitted {
        true => Ok(()),
        false => Err(too_many_handshakes(state)),
    }
}

fn too_many_handshakes(state: &GatewayState) -> Problem {
    let detail = "too many connections are being opened; try again soon";
    refused(state, "handshakes", detail, 1)
}

/// Counts a connection that is refused, and returns the problem.
pub(super) fn refused(
    state: &GatewayState,
    reason: &'static str,
    detail: &str,
    retry_s: u64,
) -> Problem {
    state.gateway.metrics.refused(reason);
    Problem::new(Code::Overloaded, detail).retry_after(retry_s)
}

/// Takes a place among the connections of the tenant, and counts a refusal.
pub(super) async fn seat(
    state: &GatewayState,
    identity: &GatewayIdentity,
) -> Option<ConnectionSeat> {
    let gateway = &state.gateway;
    // Operators count with the tenant whose throttle limits them.
    let seat = gateway
        .counts
        .admit(gateway.throttle_tenant(&identity.tenant))
        .await;
    if seat.is_none() {
        gateway.metrics.refused("tenant");
    }
    seat
}

/// Returns the end of the browser's session from which a credential came; `None` for others.
pub(super) fn session_end(
    state: &GatewayState,
    identity: &GatewayIdentity,
) -> Option<BoxFuture<'static, ()>> {
    let session = identity.session.clone()?;
    Some(Box::pin(state.auth.clone().session_ends(session)))
}

/// Waits for the end of a session; without one, for ever.
pub(super) async fn signed_out(session_end: &mut Option<BoxFuture<'static, ()>>) {
    match session_end {
        Some(ended) => ended.await,
        None => std::future::pending().await,
    }
}

/// Closes a connection whose client has shown no credential that is accepted, and counts it.
pub(super) async fn turn_away(state: &GatewayState, socket: WebSocket, reason: CloseReason) {
    state.gateway.metrics.refused(match reason {
        CloseReason::Forbidden => "forbidden",
        CloseReason::Restart => "draining",
        _ => "credential",
    });
    close(socket, reason).await;
}

/// Closes a socket with a reason.
pub(super) async fn close(mut socket: WebSocket, reason: CloseReason) {
    let frame = CloseFrame {
        code: reason.code(),
        reason: reason.text().into(),
    };
    // The client may be gone.
    let _ = socket.send(Message::Close(Some(frame))).await;
    finish(socket).await;
}

/// Reads a socket until both sides have closed it, which writes the answer to the close frame of
/// the client.
pub(super) async fn finish(mut socket: WebSocket) {
    let answered = async { while let Some(Ok(_)) = socket.recv().await {} };
    // The client may be gone.
    let _ = tokio::time::timeout(CLOSE_WITHIN, answered).await;
}
