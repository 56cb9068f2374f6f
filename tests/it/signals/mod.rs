//! Readings, and the servers they come from.

mod prometheus;
mod sources;

pub use prometheus::serve;
