//! How long a failed job waits for its next attempt.

use std::time::Duration;

/// The wait after a first failure.
const BASE: Duration = Duration::from_secs(2);

/// The longest wait.
const MAX: Duration = Duration::from_secs(3600);

/// The wait after attempt number `attempt` failed: `2 s * 2^(attempt - 1)`, at most an hour, times 0.75 to 1.25 by
/// `unit_random` in `0..1`, so that jobs that failed together do not come back together.
pub fn delay(attempt: i32, unit_random: f64) -> Duration {
    let doublings = attempt.clamp(1, 32) - 1;
    BASE.mul_f64(2f64.powi(doublings)).min(MAX).mul_f64(0.75 + 0.5 * unit_random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_an_hour_and_is_jittered_by_a_quarter() {
        assert_eq!(delay(1, 0.5), Duration::from_secs(2));
        assert_eq!(delay(4, 0.5), Duration::from_secs(16));
        assert_eq!(delay(30, 0.5), MAX);
        assert_eq!(delay(1, 0.0), Duration::from_millis(1500));
        assert_eq!(delay(1000, 1.0), MAX.mul_f64(1.25));
    }
}
