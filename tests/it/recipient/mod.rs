//! The gates of recipients in Postgres.

mod attempts;
mod cap_races;
mod digest_kills;
mod digests;
mod explain;
mod faults;
mod fixture;
mod planner;
mod profiles;
mod story;

pub use fixture::gates;
