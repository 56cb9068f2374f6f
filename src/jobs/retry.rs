//! How long a failed job waits for its next attempt.

use std::time::Duration;

use crate::control::backoff;

/// The longest wait after a first failure.
const BASE: Duration = Duration::from_secs(2);

/// The longest wait of all.
const MAX: Duration = Duration::from_secs(3600);

/// The wait after attempt number `attempt` (from 1) failed: up to 2 s, doubling up to an hour, half of it drawn by
/// `unit_random` in `0..1`, so that jobs that failed together do not come back together.
pub fn delay(attempt: i32, unit_random: f64) -> Duration {
    backoff::delay(attempt.max(1).unsigned_abs() - 1, BASE, MAX, unit_random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_an_hour_and_half_of_it_is_chance() {
        assert_eq!(delay(1, 1.0), Duration::from_secs(2));
        assert_eq!(delay(1, 0.0), Duration::from_secs(1));
        assert_eq!(delay(4, 1.0), Duration::from_secs(16));
        assert_eq!(delay(30, 1.0), MAX);
        assert_eq!(delay(i32::MIN, 1.0), Duration::from_secs(2));
    }
}
