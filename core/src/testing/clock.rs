//! The clock at which virtual time begins; no other file of this room reads a clock.

/// Returns the time of this machine.
#[expect(
    clippy::disallowed_methods,
    reason = "virtual time begins where the test begins"
)]
pub(super) fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
