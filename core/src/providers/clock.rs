//! The system clock: the only file of the room that reads it.

/// Returns the system time, in unix seconds: for signatures and tokens, and for servers whose
/// answers lack a `Date`.
#[allow(
    clippy::disallowed_methods,
    reason = "the system clock is required for signatures and tokens"
)]
pub fn now_s() -> i64 {
    jiff::Timestamp::now().as_second()
}
