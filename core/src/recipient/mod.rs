//! The recipient: what protects the person who gets messages, as pure functions over rows.
//!
//! [`plan`](gates::plan) takes a message through the gates when it is accepted, and
//! [`verify`](gates::verify) before each attempt; `postgres` keeps the rows. Out of scope: the lanes
//! in which held messages wait, and the accounts that send them.

pub mod address;
pub mod candidate;
pub mod canonical;
pub mod caps;
#[cfg(test)]
mod changing_zones;
pub mod check;
pub mod collectors;
pub mod crowd;
pub mod dedup;
pub mod digest;
mod digest_rules;
pub mod dry_run;
pub mod explain;
pub mod fields;
pub mod gate;
pub mod gates;
pub mod live_rules;
pub mod local_time;
pub mod logged;
pub mod metrics;
pub mod new_recipient;
pub mod postgres;
pub mod preferences;
pub mod presets;
pub mod profile;
pub mod quiet;
pub mod refusing_caps;
pub mod release;
pub mod replay_log;
mod replay_sleepers;
mod replay_state;
pub mod replay_tally;
mod rule_fields;
pub mod rule_source;
pub mod rules;
pub mod rules_origin;
pub mod service;
pub mod service_reads;
mod text_bytes;
