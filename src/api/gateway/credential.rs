//! The credential that comes as a frame.

use axum::extract::ws::{Message, WebSocket};

use super::identity::GatewayIdentity;
use super::state::GatewayState;
use crate::api::clock;
use crate::api::http::token_scope::TokenScope;
use crate::gateway::client_frame::{ClientFrame, ClientRequest};

/// Reads the first frame, which must have a token.
pub(super) async fn first_credential(
    state: &GatewayState,
    socket: &mut WebSocket,
) -> Option<GatewayIdentity> {
    loop {
        match socket.recv().await?.ok()? {
            Message::Text(text) => {
                let frame = ClientFrame::parse(&text).ok()?;
                let ClientRequest::Refresh { token } = frame.request else {
                    return None;
                };
                return identity_of_token(state, &token).await;
            }
            Message::Ping(_) | Message::Pong(_) => {}
            Message::Binary(_) | Message::Close(_) => return None,
        }
    }
}

/// Returns the rights of a token; `None` if it is not accepted or may not subscribe.
pub(super) async fn identity_of_token(
    state: &GatewayState,
    token: &str,
) -> Option<GatewayIdentity> {
    let caller = state.auth.bearer(token, clock::now()).await.ok()?;
    let tenant = caller.tenant.clone().unwrap_or_default();
    let may = caller.leave.has(TokenScope::ChannelsSubscribe);
    may.then(|| GatewayIdentity::of_caller(&caller, &tenant))
}
