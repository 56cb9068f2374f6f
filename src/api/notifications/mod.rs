//! Notifications, suppressions and the providers' events.

pub mod events;
pub mod input;
pub mod messages;
pub mod suppressions;
