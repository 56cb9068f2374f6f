//! The gates of recipients in Postgres.

mod attempts;
mod digest_kills;
mod digests;
mod doors;
mod erasing;
mod explain;
mod explain_sources;
mod fixture;
mod planner;
mod profiles;
mod sql_laws;

pub use fixture::gates;
