//! The fields that several kinds of rules have.

use jiff::SignedDuration;

use crate::input::Reader;

/// The longest name, in bytes.
pub(super) const NAME_BYTES: usize = 64;

/// The longest time of a rule, in seconds: 30 days.
const LONGEST_S: f64 = 30.0 * 86_400.0;

/// Reads a time in seconds.
pub(super) fn seconds(fields: &mut Reader<'_>, name: &str, least: f64) -> Option<SignedDuration> {
    let seconds = fields.number(name, least..=LONGEST_S, " seconds")?;
    Some(SignedDuration::from_secs_f64(seconds))
}
