//! Throttles in Redis or Valkey, shared by all processes: the same law as in memory, as Lua.
//!
//! What is left out: anything that is asked more often than acquire. Nothing here polls or subscribes; a person's edit of
//! the hash counts from the next ask on.

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
