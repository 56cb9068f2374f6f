//! Clamping that never panics and never answers NaN.

/// `value` inside `[low, high]`; `low` if it is not a number.
///
/// Unlike [`f64::clamp`] it never panics: a NaN value gives `low`, and `high < low` gives `high`.
pub fn within(value: f64, low: f64, high: f64) -> f64 {
    // `f64::max` and `f64::min` answer the other operand when one is NaN.
    value.max(low).min(high)
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn within_never_answers_nan() {
        assert_eq!(within(f64::NAN, 1.0, 2.0), 1.0);
        assert_eq!(within(f64::INFINITY, 1.0, 2.0), 2.0);
        assert_eq!(within(1.5, 1.0, 2.0), 1.5);
    }
}
