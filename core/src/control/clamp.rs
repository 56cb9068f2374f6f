//! Clamping that never panics and never returns NaN.

/// Returns `value` clamped to `[low, high]`.
///
/// Unlike [`f64::clamp`] it never panics: a NaN value returns `low`, and `high < low` returns
/// `high`.
pub fn clamp_finite(value: f64, low: f64, high: f64) -> f64 {
    // `f64::max` and `f64::min` return the other operand when one is NaN.
    value.max(low).min(high)
}

#[cfg(test)]
mod tests {
    use super::clamp_finite;

    #[test]
    fn within_never_answers_nan() {
        assert_eq!(clamp_finite(f64::NAN, 1.0, 2.0), 1.0);
        assert_eq!(clamp_finite(f64::INFINITY, 1.0, 2.0), 2.0);
        assert_eq!(clamp_finite(1.5, 1.0, 2.0), 1.5);
    }
}
