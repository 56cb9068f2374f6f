//! The begin and the end of a connection: its place among those of its tenant, and its close frame.

use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};

use super::identity::GatewayIdentity;
use super::state::GatewayState;
use crate::gateway::close::CloseReason;
use crate::gateway::connection_counts::ConnectionSeat;

/// The time in which the client answers a close frame.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// Takes a place among the connections of the tenant, and counts a refusal.
pub(super) async fn seat(
    state: &GatewayState,
    identity: &GatewayIdentity,
) -> Option<ConnectionSeat> {
    let gateway = &state.gateway;
    let tenant = &identity.tenant;
    let seat = gateway
        .counts
        .admit(tenant, gateway.throttle_tenant(tenant))
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
    let answered = async { while let Some(Ok(_)) = socket.recv().await {} };
    let _ = tokio::time::timeout(CLOSE_WITHIN, answered).await;
}
