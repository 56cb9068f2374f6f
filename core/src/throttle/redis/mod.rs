//! Throttles in Redis or Valkey, shared by all processes: the same law as in memory, as a Lua
//! script.
//!
//! This room neither polls nor subscribes, and calls nothing more often than `acquire`. A manual
//! edit of the hash takes effect with the next ask.

mod adoption;
mod call;
mod cluster;
mod connection;
mod info;
mod layout;
mod link;
mod names;
mod notes;
mod reply;
mod server_errors;
mod servers;
mod shape;
mod slots;
mod store;
mod tokens;

pub use call::LUA_TEXT;
pub use server_errors::{is_of_login, reason_meaning};
pub use store::RedisStore;
