//! Readings, and the servers that they come from.

mod prometheus;
mod sources;

pub use prometheus::serve;
