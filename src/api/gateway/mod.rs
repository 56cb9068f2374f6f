//! The gateway's routes: connections, tickets, publications and the events of channels.

pub mod asyncapi;
mod channel_frames;
pub mod connect;
pub mod credential;
pub mod events;
pub mod handshakes;
pub mod identity;
pub mod inbox;
pub mod inbox_asks;
mod opened;
pub mod pending;
pub mod publish;
mod refresh;
pub mod session;
pub mod state;
pub mod tickets;
pub mod usage;
