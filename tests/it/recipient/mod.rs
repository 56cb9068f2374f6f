//! The gates of recipients in Postgres.

mod attempts;
mod cap_races;
mod claims;
mod digest_items;
mod digest_kills;
mod digests;
mod dry_run;
mod erasing;
mod explain;
mod explain_items;
mod explain_rescheduled;
mod explain_sources;
mod failing;
mod faults;
mod fixture;
mod interfaces;
mod local_times;
mod planner;
mod profiles;
mod sql_laws;
mod story;
mod taking;

pub use fixture::gates;
