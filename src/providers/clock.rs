//! The system clock: the only file of the room that reads it.

/// Returns the system time, in unix seconds: for signatures and tokens, and for servers whose
/// answers lack a `Date`.
#[allow(
    clippy::disallowed_methods,
    reason = "signatures and tokens need the time of day"
)]
pub fn now_s() -> i64 {
    jiff::Timestamp::now().as_second()
}
