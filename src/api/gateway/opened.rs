//! The begin and the end of a connection: its place among those of its tenant, and its close frame.

use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};

use super::identity::GatewayIdentity;
use super::state::GatewayState;
use crate::gateway::close::CloseReason;
use crate::gateway::connection_counts::ConnectionSeat;

/// The time in which a close frame is answered, by either side.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

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

/// Reads a socket until both sides have closed it, which writes the answer to the close frame of the
/// client.
pub(super) async fn finish(mut socket: WebSocket) {
    let answered = async { while let Some(Ok(_)) = socket.recv().await {} };
    // The client may be gone.
    let _ = tokio::time::timeout(CLOSE_WITHIN, answered).await;
}
