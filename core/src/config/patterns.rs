//! Patterns of throttles.

use crate::throttle::Name;

/// Returns true if `pattern` can stand for throttles.
pub(super) fn is_throttle(pattern: &str) -> bool {
    pattern == "*" || Name::new(pattern.strip_suffix('*').unwrap_or(pattern)).is_ok()
}
