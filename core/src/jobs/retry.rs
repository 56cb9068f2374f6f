//! Back-off: the wait of a failed job before its next attempt.

use std::time::Duration;

/// The longest wait of a retry or a snooze: ten years, as far ahead as a job can be scheduled.
pub const MAX_DELAY: Duration = Duration::from_secs(3660 * 86_400);

/// The retry policy of a kind: the waits after failed attempts, and the number of attempts allowed.
///
/// ```
/// # use flyball_core as flyball;
/// use std::time::Duration;
/// use flyball::jobs::retry::Policy;
///
/// let patient = Policy { base: Duration::from_secs(60), max: Duration::from_secs(6 * 3600), ..Policy::default() };
/// assert_eq!(patient.longest(3), Duration::from_secs(240));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// The longest wait after the first failure.
    pub base: Duration,
    /// The factor by which the wait grows with each further failure; 1 keeps it constant.
    pub factor: f64,
    /// The longest wait after any failure.
    pub max: Duration,
    /// Attempts after which a job of this kind is dead, even if the job allows more; `None` leaves
    /// it to the job.
    pub max_attempts: Option<i32>,
}

impl Default for Policy {
    /// Returns a policy with waits of up to 2 s, doubling up to an hour, and the attempts that the
    /// job allows.
    fn default() -> Self {
        Self {
            base: Duration::from_secs(2),
            factor: 2.0,
            max: Duration::from_secs(3600),
            max_attempts: None,
        }
    }
}

impl Policy {
    /// Returns a policy with the same longest wait after each failure.
    pub fn every(wait: Duration) -> Self {
        Self {
            base: wait,
            factor: 1.0,
            max: wait,
            ..Self::default()
        }
    }

    /// Returns the longest wait after attempt number `attempt` (from 1) failed, at most
    /// [`MAX_DELAY`].
    pub fn longest(&self, attempt: i32) -> Duration {
        let max = self.max.min(MAX_DELAY);
        let grown = self.base.as_secs_f64()
            * self
                .factor
                .max(1.0)
                .powi(attempt.max(1).saturating_sub(1).min(1024));
        // Unbounded growth and NaN end at the maximum.
        if grown < max.as_secs_f64() {
            Duration::from_secs_f64(grown)
        } else {
            max
        }
    }

    /// Returns the wait after attempt number `attempt` (from 1) failed.
    ///
    /// Half of the longest wait is fixed and half is drawn by `unit_random` in `0..1`, so that jobs
    /// that failed together do not come back together.
    pub fn delay(&self, attempt: i32, unit_random: f64) -> Duration {
        let drawn = if unit_random.is_finite() {
            unit_random.clamp(0.0, 1.0)
        } else {
            1.0
        };
        self.longest(attempt)
            .mul_f64(0.5 + 0.5 * drawn)
            .min(self.max)
    }

    /// Returns true if attempt number `attempt` was the last of a job that allows `max_attempts`.
    pub fn is_last(&self, attempt: i32, max_attempts: i32) -> bool {
        attempt
            >= self
                .max_attempts
                .map_or(max_attempts, |most| most.min(max_attempts))
    }
}

/// Returns the wait by the default policy.
pub fn delay(attempt: i32, unit_random: f64) -> Duration {
    Policy::default().delay(attempt, unit_random)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_wait_doubles_up_to_an_hour_and_half_of_it_is_chance() {
        assert_eq!(delay(1, 1.0), Duration::from_secs(2));
        assert_eq!(delay(1, 0.0), Duration::from_secs(1));
        assert_eq!(delay(4, 1.0), Duration::from_secs(16));
        assert_eq!(delay(30, 1.0), Duration::from_secs(3600));
        assert_eq!(delay(i32::MIN, 1.0), Duration::from_secs(2));
    }

    #[test]
    fn a_steady_policy_waits_the_same_each_time() {
        let steady = Policy::every(Duration::from_secs(30));
        assert_eq!(
            [1, 2, 50].map(|attempt| steady.longest(attempt).as_secs()),
            [30, 30, 30]
        );
    }

    #[test]
    fn a_policy_without_bounds_ends_at_the_longest_wait_there_is() {
        let endless = Policy {
            base: Duration::MAX,
            max: Duration::MAX,
            ..Policy::default()
        };

        assert_eq!(
            [1, 50].map(|attempt| endless.delay(attempt, 1.0)),
            [MAX_DELAY; 2]
        );
    }

    #[test]
    fn the_kinds_limit_of_attempts_and_the_jobs_own_hold_whichever_is_less() {
        let three = Policy {
            max_attempts: Some(3),
            ..Policy::default()
        };
        assert_eq!(
            [1, 2, 3].map(|attempt| three.is_last(attempt, 10)),
            [false, false, true]
        );
        assert_eq!(
            [1, 2].map(|attempt| three.is_last(attempt, 2)),
            [false, true]
        );
        assert!(!Policy::default().is_last(9, 10) && Policy::default().is_last(10, 10));
    }

    proptest! {
        #[test]
        fn no_wait_is_longer_than_the_maximum_and_later_ones_are_not_shorter(
            attempt in any::<i32>(), base in 0.0..1e6, max in 0.0..1e6, factor in any::<f64>(), draw in any::<f64>(),
        ) {
            let policy = Policy {
                base: Duration::from_secs_f64(base), max: Duration::from_secs_f64(max), factor, max_attempts: None,
            };
            prop_assert!(policy.delay(attempt, draw) <= policy.max);
            prop_assert!(policy.longest(attempt) <= policy.longest(attempt.saturating_add(1)));
            prop_assert!(policy.delay(attempt, draw) * 2 + Duration::from_micros(1) >= policy.longest(attempt));
        }
    }
}
