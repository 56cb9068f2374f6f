//! The wall clock, for times that people read: times in answers, ids of ticks, ends of sessions. No
//! rate and no lease depends on it; those use the clocks of Postgres and Redis.

use jiff::Timestamp;

/// Returns the current time.
#[allow(
    clippy::disallowed_methods,
    reason = "the only place of this module that reads the clock"
)]
pub fn now() -> Timestamp {
    Timestamp::now()
}
