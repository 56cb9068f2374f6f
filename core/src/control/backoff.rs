//! Exponential back-off with equal jitter.
//!
//! Workers that failed together must not retry together, and none should retry at once: half of the
//! exponential bound is fixed and the other half is drawn uniformly ("equal jitter").

use std::time::Duration;

/// Returns the delay before attempt `attempt + 1`, drawn from the upper half of `[0, min(max, base
/// * 2^attempt)]`.
///
/// `unit_random` is a draw from `[0, 1)`; other values are clamped to that range, so a bad random
/// source can make delays less even but never longer than `max`.
///
/// ```
/// # use flyball_core as flyball;
/// use std::time::Duration;
/// use flyball::control::backoff::delay;
/// let (base, max) = (Duration::from_secs(1), Duration::from_secs(60));
/// assert_eq!(delay(3, base, max, 0.5), Duration::from_secs(6));
/// assert_eq!(delay(30, base, max, 1.0), max);
/// ```
pub fn delay(attempt: u32, base: Duration, max: Duration, unit_random: f64) -> Duration {
    bound(attempt, base, max)
        .mul_f64(0.5 + 0.5 * super::clamp_finite(unit_random, 0.0, 1.0))
        .min(max)
}

/// Returns the longest delay before attempt `attempt + 1`.
pub fn bound(attempt: u32, base: Duration, max: Duration) -> Duration {
    // 2^64 times any measurable duration exceeds every maximum: larger exponents would only
    // overflow.
    let doubled = base.as_secs_f64() * 2f64.powi(attempt.min(64) as i32);
    if doubled >= max.as_secs_f64() {
        max
    } else {
        Duration::from_secs_f64(doubled)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_double_until_the_maximum() {
        let (base, max) = (Duration::from_millis(500), Duration::from_secs(5));
        let bounds: Vec<u128> = (0..6).map(|n| bound(n, base, max).as_millis()).collect();
        assert_eq!(bounds, [500, 1000, 2000, 4000, 5000, 5000]);
    }

    #[test]
    fn a_bad_random_source_cannot_lengthen_the_delay() {
        let (base, max) = (Duration::from_secs(1), Duration::from_secs(9));
        for bad in [f64::NAN, -3.0, 7.0, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(delay(20, base, max, bad) <= max, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn delays_are_bounded_and_grow_with_the_draw(
            attempt in any::<u32>(), base_ms in 0u64..100_000, max_ms in 0u64..10_000_000, a in 0.0..1.0f64, b in 0.0..1.0f64,
        ) {
            let (base, max) = (Duration::from_millis(base_ms), Duration::from_millis(max_ms));
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(delay(attempt, base, max, low) <= delay(attempt, base, max, high));
            prop_assert!(delay(attempt, base, max, high) <= bound(attempt, base, max));
            prop_assert!(bound(attempt, base, max) <= bound(attempt.saturating_add(1), base, max));
        }
    }
}
