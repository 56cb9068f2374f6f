//! The queue in Postgres: enqueueing, ending and changing jobs.

mod after;
mod after_refused;
mod claims;
mod costs;
mod depth;
mod ends;
mod enqueue;
mod fixture;
mod groups;
mod groups_refused;
mod lane_caps;
mod notify;
mod operate;
mod permissions;
mod plans;
mod reads;
mod refused_arguments;
mod replace;
mod replace_races;
mod retry;
mod secrets;
mod sql;
mod store;
mod tags;
mod tenants;
mod webhooks;
