//! Notifications, suppressions and the providers' events.

pub mod accept;
pub mod accepted;
pub mod batch_input;
pub mod batch_list;
pub mod batches;
pub mod cancel;
pub mod events;
pub mod fields;
pub mod headers;
pub mod input;
pub mod known_usage;
pub mod messages;
pub mod planned;
pub mod repeat;
pub mod suppressions;
