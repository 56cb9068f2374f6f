//! The gateway's routes: connections, tickets, publications and the events of channels.

pub mod connect;
pub mod events;
pub mod handshakes;
pub mod identity;
pub mod publish;
pub mod session;
pub mod state;
pub mod tickets;
