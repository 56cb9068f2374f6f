//! Mechanics of control: small pure pieces of arithmetic that know nothing of throttles, jobs or signals.
//!
//! Nothing here reads a clock, waits or fails: time, randomness and measurements are arguments, and whatever goes in,
//! what comes out is finite. The room imports nothing of ours; [`crate::governor`] assembles the pieces into a law, and
//! [`crate::jobs`] uses [`backoff`].

pub mod backoff;
pub mod ewma;
pub mod front;
pub mod history;
pub mod observer;
pub mod pid;
pub mod slew;
pub mod trip;

pub use front::Front;
pub use history::History;
pub use observer::Observer;
pub use pid::LogPid;

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
