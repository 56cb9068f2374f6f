//! The reasons and states of messages, as they are stored.

use crate::postgres::storable;

/// Longest stored reason and status, in characters.
const MAX_REASON_CHARS: usize = 500;

/// Returns the text as it is stored.
pub(super) fn line(text: &str) -> String {
    storable(text, MAX_REASON_CHARS)
}
