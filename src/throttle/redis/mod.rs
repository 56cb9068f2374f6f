//! Throttles in Redis or Valkey, shared by all processes: the same law as in memory, as a Lua
//! script.
//!
//! This room neither polls nor subscribes, and calls nothing more often than `acquire`. A manual
//! edit of the hash takes effect with the next ask.

mod call;
mod cluster;
mod connection;
mod layout;
mod link;
mod names;
mod notes;
mod reply;
mod said;
mod servers;
mod shape;
mod slots;
mod store;
mod tokens;

pub use call::LAW;
pub use said::said_in;
pub use store::RedisStore;
