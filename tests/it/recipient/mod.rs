//! The gates of recipients in Postgres.

mod attempts;
mod digest_kills;
mod digests;
mod explain;
mod fixture;
mod planner;
mod profiles;

pub use fixture::gates;
