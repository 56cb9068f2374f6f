//! The gateway: channels, their history, limits, and readers of every speed.

mod channels;
pub mod client;
mod collecting;
mod fixture;
mod frames;
mod limits;
mod processes;
mod resume;
mod soak;
mod tenant_queue;
