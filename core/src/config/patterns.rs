//! Patterns of throttles.

use crate::throttle::Name;

/// Returns true if `pattern` can stand for throttles.
pub(super) fn is_throttle(pattern: &str) -> bool {
    Name::or_pattern(pattern).is_ok()
}
