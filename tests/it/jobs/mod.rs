//! The queue in Postgres: enqueueing, ending and changing jobs.

mod costs;
mod depth;
mod enqueue;
mod operate;
mod permissions;
mod plans;
mod replace;
mod store;
