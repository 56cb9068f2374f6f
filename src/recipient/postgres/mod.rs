//! The adapter to Postgres: open types of digest, and the log of messages.

mod dry_run;
mod open_types;

pub use dry_run::{MessageLog, UnreadableLog};
pub use open_types::open_types;
