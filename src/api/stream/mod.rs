//! The live stream, and the samples that it sends.

pub mod events;
pub mod live;
pub mod live_sample;
pub mod sample;
