//! The wall clock, for times that people read: times in answers, ids of ticks, ends of sessions. No
//! rate and no lease depends on it; those use the clocks of Postgres and Redis.

use jiff::Timestamp;

/// Returns the current time.
#[allow(
    clippy::disallowed_methods,
    reason = "the one place of this room that looks at the clock"
)]
pub fn now() -> Timestamp {
    Timestamp::now()
}
