//! The one place of the room that looks at a clock.

/// Our clock, unix seconds: for signatures and tokens, and for servers that send dates without a `Date`.
#[allow(clippy::disallowed_methods, reason = "signatures and tokens need the time of day")]
pub fn now_s() -> i64 {
    jiff::Timestamp::now().as_second()
}
