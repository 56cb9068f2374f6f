//! Back-off: the wait of a failed job before its next attempt.

use std::time::Duration;

use serde::{Deserialize, Serialize};

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

/// The waits of one job after its failed attempts, instead of those of its kind.
///
/// ```
/// # use flyball_core as flyball;
/// use std::time::Duration;
/// use flyball::jobs::{JobRetry, NewJob};
/// use serde_json::json;
///
/// let steady = JobRetry::every(Duration::from_secs(30));
/// let patient = JobRetry::from(Duration::from_secs(5)).factor(3.0).max_delay(Duration::from_secs(600));
/// let job = NewJob::new("http", json!({"url": "https://example.com/"})).retry(patient);
/// assert_eq!((steady.factor, job.retry), (1.0, Some(patient)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JobRetry {
    /// The longest wait after the first failure, in seconds; half of each wait is chance.
    pub delay_s: f64,
    /// The factor by which the wait grows with each further failure; 1 keeps it constant.
    #[serde(default = "JobRetry::usual_factor")]
    pub factor: f64,
    /// The longest wait after any failure, in seconds; absent for an hour, or for `delay_s` if that
    /// is longer.
    #[serde(default)]
    pub max_delay_s: Option<f64>,
}

impl JobRetry {
    /// The shortest and the longest wait that can be set, in seconds.
    pub const DELAYS_S: std::ops::RangeInclusive<f64> = 0.001..=366.0 * 86_400.0;
    /// The factors that can be set.
    pub const FACTORS: std::ops::RangeInclusive<f64> = 1.0..=100.0;
    /// The factor if none is given.
    pub const USUAL_FACTOR: f64 = 2.0;

    /// Returns the longest wait after any failure, in seconds.
    pub fn longest_s(self) -> f64 {
        self.max_delay_s.unwrap_or(3600.0_f64.max(self.delay_s))
    }

    /// Returns the same longest wait after each failure.
    pub fn every(delay: Duration) -> Self {
        Self {
            factor: 1.0,
            max_delay_s: Some(delay.as_secs_f64()),
            ..Self::from(delay)
        }
    }

    /// Sets the factor by which the wait grows with each further failure, 1 to 100.
    pub fn factor(self, factor: f64) -> Self {
        Self { factor, ..self }
    }

    /// Sets the longest wait after any failure.
    pub fn max_delay(self, longest: Duration) -> Self {
        Self {
            max_delay_s: Some(longest.as_secs_f64()),
            ..self
        }
    }

    /// Returns the policy of a job with these waits, whose kind has the policy `kind`.
    pub fn policy(self, kind: Policy) -> Policy {
        let span = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(MAX_DELAY);
        let longest = self.longest_s();
        Policy {
            base: span(self.delay_s),
            factor: self.factor,
            max: span(longest),
            ..kind
        }
    }

    /// Returns what is wrong with the waits, and the values that are allowed.
    pub(crate) fn problem(self) -> Option<String> {
        let waits = [
            ("delay_s", Some(self.delay_s)),
            ("max_delay_s", self.max_delay_s),
        ];
        let of_waits = waits.into_iter().find_map(|(name, seconds)| {
            let wrong = seconds.filter(|seconds| !Self::DELAYS_S.contains(seconds))?;
            Some(format!(
                "{name} is {wrong}; allowed are 0.001 to 31622400 seconds (366 days)"
            ))
        });
        of_waits.or_else(|| {
            let wrong = Some(self.factor).filter(|factor| !Self::FACTORS.contains(factor))?;
            Some(format!(
                "factor is {wrong}; allowed are 1 (always the same) to 100"
            ))
        })
    }

    fn usual_factor() -> f64 {
        Self::USUAL_FACTOR
    }
}

impl From<Duration> for JobRetry {
    /// Returns waits of up to `delay` after the first failure, doubling up to an hour.
    fn from(delay: Duration) -> Self {
        Self {
            delay_s: delay.as_secs_f64(),
            factor: Self::usual_factor(),
            max_delay_s: None,
        }
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
    fn the_waits_of_a_job_go_before_those_of_its_kind_and_the_kinds_attempts_stay() {
        let kind = Policy {
            max_attempts: Some(3),
            ..Policy::every(Duration::from_secs(1))
        };
        let own = JobRetry::from(Duration::from_secs(5))
            .factor(3.0)
            .max_delay(Duration::from_secs(40));
        let policy = own.policy(kind);
        assert_eq!(
            [1, 2, 3, 50].map(|attempt| policy.longest(attempt).as_secs()),
            [5, 15, 40, 40]
        );
        assert_eq!(policy.max_attempts, Some(3));
        let long = JobRetry::from(Duration::from_secs(7200)).policy(kind);
        assert_eq!(
            [1, 2].map(|attempt| long.longest(attempt).as_secs()),
            [7200, 7200]
        );
        let steady = JobRetry::every(Duration::from_secs(30)).policy(kind);
        assert_eq!(
            [1, 9].map(|attempt| steady.longest(attempt).as_secs()),
            [30, 30]
        );
    }

    #[test]
    fn waits_that_are_not_given_are_the_usual_ones_and_others_are_refused() {
        let read = |text: &str| serde_json::from_str::<JobRetry>(text);
        assert_eq!(
            read("{\"delay_s\": 5}").unwrap(),
            JobRetry::from(Duration::from_secs(5))
        );
        assert!(
            read("{\"factor\": 2}").is_err() && read("{\"delay_s\": 5, \"jitter\": 1}").is_err()
        );
        for (wrong, words) in [
            (
                JobRetry::from(Duration::ZERO),
                "delay_s is 0; allowed are 0.001 to",
            ),
            (
                JobRetry::every(Duration::from_secs(1)).factor(0.5),
                "factor is 0.5; allowed are 1",
            ),
            (
                JobRetry::every(Duration::from_secs(1)).factor(f64::NAN),
                "factor is NaN",
            ),
            (
                JobRetry::every(Duration::from_secs(1)).max_delay(Duration::MAX),
                "allowed are 0.001 to 31622400 seconds (366 days)",
            ),
        ] {
            assert!(wrong.problem().unwrap().contains(words), "{wrong:?}");
        }
        assert_eq!(JobRetry::every(Duration::from_secs(1)).problem(), None);
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
