//! Throttles, in memory and in Redis.

mod abuse;
mod accounts;
mod accounts_near_quota;
mod blocked_accounts;
mod burst;
mod cluster;
mod concurrency;
mod exact;
mod knobs;
mod lanes;
mod lease;
mod limiters;
mod limitlion;
mod loss;
mod on_demand;
mod parents;
mod poisoned_redis;
mod provider_quotas;
mod quotas;
mod rates;
mod record;
mod redis;
mod refusals;
mod same_law;
mod windows;
mod world;

pub(crate) use world::laws;
pub use world::{START, World, ask, fields, name};
