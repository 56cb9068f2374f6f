//! The state of the gateway's routes.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::handshakes::Handshakes;
use super::inbox_asks::InboxAsks;
use super::pending::PendingPlaces;
use crate::api::http::auth::Authenticator;
use crate::api::http::gate::Gate;
use crate::api::http::places::{PlaceShares, Places};
use crate::gateway::service::Gateway;
use crate::inbox::Inbox;

/// The state of the gateway's routes.
pub struct GatewayState {
    pub gateway: Gateway,
    pub inbox: Inbox,
    pub auth: Arc<Authenticator>,
    pub gate: Arc<Gate>,
    pub handshakes: Handshakes,
    /// The places of connections without a credential.
    pub pending: PendingPlaces,
    /// The permits of all connections of this process.
    pub places: Arc<Semaphore>,
    /// The permits of the streams of events among them.
    pub streams: Arc<Semaphore>,
    /// The same by tenant: none has more than half of them.
    pub tenant_streams: Places,
    /// The permits of frames that read or mark an inbox: a quarter of the connections to Postgres.
    pub inbox_asks: InboxAsks,
    /// The base URL by which clients outside reach us; empty if it is not set.
    pub public_url: String,
}

impl GatewayState {
    /// Combines the parts.
    pub fn new(
        gateway: Gateway,
        auth: Arc<Authenticator>,
        gate: Arc<Gate>,
        public_url: String,
    ) -> Self {
        Self {
            handshakes: Handshakes::new(gateway.limits.handshakes_per_s),
            pending: PendingPlaces::default(),
            places: Arc::new(Semaphore::new(gateway.limits.node_connections)),
            streams: Arc::new(Semaphore::new(gateway.limits.node_streams)),
            tenant_streams: Places::with(stream_shares(gateway.limits.node_streams)),
            inbox_asks: InboxAsks::new(inbox_asks(&gateway)),
            inbox: Inbox::new(gateway.db.clone()),
            gateway,
            auth,
            gate,
            public_url,
        }
    }
}

/// Returns the shares of streams of events, which tenants have and tokens have not.
fn stream_shares(streams: usize) -> PlaceShares {
    PlaceShares {
        all: streams,
        others: streams,
        tenant: (streams / 2).max(1),
        one: streams,
    }
}

/// Returns the frames of inboxes that may use a connection to Postgres at once: a quarter of them.
fn inbox_asks(gateway: &Gateway) -> usize {
    let connections = gateway.db.pool().options().get_max_connections();
    connections as usize / 4
}
