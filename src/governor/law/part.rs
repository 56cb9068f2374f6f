//! Parts of a governor's state.

/// A stored part of a governor's state.
pub(in crate::governor) trait StatePart {
    /// Shifts every time by `by_s` after the clock was set back.
    fn shift(&mut self, by_s: f64);

    /// Returns false if any number is infinite or NaN.
    fn is_sound(&self) -> bool;
}

/// Returns true if every number is finite.
pub(in crate::governor) fn all_finite(numbers: impl IntoIterator<Item = f64>) -> bool {
    numbers.into_iter().all(f64::is_finite)
}
