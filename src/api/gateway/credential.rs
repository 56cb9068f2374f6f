//! The credential that comes as a frame.

use std::net::IpAddr;

use axum::extract::ws::{Message, WebSocket};

use super::identity::GatewayIdentity;
use super::state::GatewayState;
use crate::api::clock;
use crate::api::http::jwt::error::JwtError;
use crate::api::http::token_scope::TokenScope;
use crate::gateway::client_frame::{ClientFrame, ClientRequest};
use crate::gateway::close::CloseReason;

/// The tenant of operators who name none.
const OWN_CHANNELS: &str = "";

/// The pings and pongs that may come before the first frame.
const EMPTY_MAX: usize = 16;

/// The reason for which a token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenFault {
    /// It is not valid.
    Wrong,
    /// It is not valid, and the address has sent as many of those as it may.
    Denied,
    /// It may not subscribe.
    Forbidden,
    /// The keys of its issuer cannot be read, so nobody knows.
    Unreadable,
}

impl TokenFault {
    /// Returns the reason for which a connection that has shown no other token is closed.
    fn close_reason(self) -> CloseReason {
        match self {
            Self::Wrong | Self::Denied => CloseReason::Credential,
            Self::Forbidden => CloseReason::Forbidden,
            // A client that must not come back with this token would be lost for good.
            Self::Unreadable => CloseReason::Overloaded,
        }
    }
}

/// Reads the first frame, which must have a token; the error is the reason for which the connection
/// is closed.
pub(super) async fn first_credential(
    state: &GatewayState,
    socket: &mut WebSocket,
    address: Option<IpAddr>,
) -> Result<GatewayIdentity, CloseReason> {
    for _ in 0..=EMPTY_MAX {
        match socket.recv().await {
            Some(Ok(Message::Text(text))) => {
                let frame = ClientFrame::parse(&text).map(|frame| frame.request);
                let Ok(ClientRequest::Refresh { token }) = frame else {
                    return Err(CloseReason::Credential);
                };
                let identity = identity_of_token(state, &token, OWN_CHANNELS, address).await;
                return identity.map_err(TokenFault::close_reason);
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            _ => break,
        }
    }
    Err(CloseReason::Credential)
}

/// Returns the rights of a token; one of operators has those within the tenant of the connection.
/// One that is not valid counts against its sender as it does in a header, where a valid one is
/// likewise accepted in any case.
pub(super) async fn identity_of_token(
    state: &GatewayState,
    token: &str,
    tenant: &str,
    address: Option<IpAddr>,
) -> Result<GatewayIdentity, TokenFault> {
    let caller = match state.auth.bearer(token, clock::now()).await {
        Ok(caller) => caller,
        // That is not the client's fault.
        Err(Some(JwtError::NoKeys)) => return Err(TokenFault::Unreadable),
        Err(_) => {
            return Err(match state.gate.deny(address).await {
                Some(_) => TokenFault::Denied,
                None => TokenFault::Wrong,
            });
        }
    };
    let tenant = caller.tenant.as_deref().unwrap_or(tenant);
    let may = caller.leave.has(TokenScope::ChannelsSubscribe);
    may.then(|| GatewayIdentity::of_caller(&caller, tenant))
        .ok_or(TokenFault::Forbidden)
}
