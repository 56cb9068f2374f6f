//! Throttles, in memory and in Redis.

mod abuse;
mod accounts;
mod burst;
mod cluster;
mod concurrency;
mod exact;
mod laws;
mod lease;
mod limitlion;
mod loss;
mod poisoned_redis;
mod same_law;

pub(crate) use laws::laws;
pub use laws::{START, World, ask, fields, name};
