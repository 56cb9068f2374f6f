//! The gates of recipients in Postgres.

mod attempts;
mod explain;
mod fixture;
mod planner;

pub use fixture::gates;
