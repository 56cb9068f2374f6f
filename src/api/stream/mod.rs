//! The live stream, and the samples that it sends.

pub mod events;
mod filter;
pub mod live;
pub mod live_sample;
pub mod of_tenant;
pub mod sample;
pub mod seen;
