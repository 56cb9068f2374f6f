//! The gateway's routes: connections, tickets, publications and the events of channels.

pub mod asyncapi;
pub mod connect;
pub mod events;
pub mod handshakes;
pub mod identity;
mod opened;
pub mod publish;
pub mod session;
pub mod state;
pub mod tickets;
pub mod usage;
