//! The one place of this room that looks at the clock: where virtual time begins.

/// The time of this machine.
#[expect(clippy::disallowed_methods, reason = "virtual time begins where the test begins")]
pub(super) fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
