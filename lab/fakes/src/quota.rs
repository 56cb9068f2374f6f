//! Quotas in fixed windows by time of arrival, as most providers count.

use std::time::Duration;

/// A limit on the requests in each window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowQuota {
    /// The limit per window; a fraction is met on average over many windows.
    pub limit: f64,
    /// The length of a window; windows begin at multiples of it.
    pub window: Duration,
}

impl WindowQuota {
    /// Creates a quota of `limit` requests per second.
    pub fn per_second(limit: f64) -> Self {
        Self {
            limit,
            window: Duration::from_secs(1),
        }
    }

    fn window_ms(&self) -> u64 {
        u64::try_from(self.window.as_millis())
            .unwrap_or(u64::MAX)
            .max(1)
    }

    /// Returns the number of requests that a window accepts: a limit of 0.5 accepts one in every
    /// other window.
    fn allowed(&self, window: u64) -> u64 {
        let until = |window: u64| (window as f64 * self.limit.max(0.0)).floor();
        (until(window + 1) - until(window)) as u64
    }
}

/// The count of requests accepted in the current window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    window: u64,
    taken: u64,
}

/// The decision of a counter on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaDecision {
    /// The request is within the quota.
    Passes {
        /// The number of further requests that this window accepts.
        left: u64,
    },
    /// The request is beyond the quota.
    Over {
        /// The time until the next window.
        wait: Duration,
    },
}

impl Counter {
    /// Decides on a request that comes at `now_ms` (unix milliseconds) and counts it if it is
    /// accepted.
    pub fn take(&mut self, quota: &WindowQuota, now_ms: u64) -> QuotaDecision {
        let long = quota.window_ms();
        let window = now_ms / long;
        if window != self.window {
            *self = Self { window, taken: 0 };
        }
        let allowed = quota.allowed(window);
        if self.taken >= allowed {
            return QuotaDecision::Over {
                wait: Duration::from_millis(long - now_ms % long),
            };
        }
        self.taken += 1;
        QuotaDecision::Passes {
            left: allowed - self.taken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(quota: WindowQuota, times_ms: impl Iterator<Item = u64>) -> usize {
        let mut counter = Counter::default();
        times_ms
            .filter(|now_ms| matches!(counter.take(&quota, *now_ms), QuotaDecision::Passes { .. }))
            .count()
    }

    #[test]
    fn a_window_lets_its_limit_through_and_no_more() {
        assert_eq!(passed(WindowQuota::per_second(10.0), 5_000..5_100), 10);
        assert_eq!(
            passed(WindowQuota::per_second(10.0), 5_950..6_050),
            20,
            "the next window has its own"
        );
        assert_eq!(passed(WindowQuota::per_second(0.0), 0..5_000), 0);
        assert_eq!(
            passed(
                WindowQuota {
                    limit: 3.0,
                    window: Duration::from_secs(60)
                },
                (0..120).map(|s| s * 1_000)
            ),
            6
        );
    }

    #[test]
    fn a_fraction_is_kept_over_many_windows() {
        assert_eq!(passed(WindowQuota::per_second(0.5), 0..10_000), 5);
        assert_eq!(passed(WindowQuota::per_second(2.5), 0..10_000), 25);
    }

    #[test]
    fn a_refusal_says_when_the_next_window_begins_and_a_new_limit_counts_at_once() {
        let mut counter = Counter::default();
        assert_eq!(
            counter.take(&WindowQuota::per_second(2.0), 7_300),
            QuotaDecision::Passes { left: 1 }
        );
        assert_eq!(
            counter.take(&WindowQuota::per_second(1.0), 7_300),
            QuotaDecision::Over {
                wait: Duration::from_millis(700)
            }
        );
        assert_eq!(
            counter.take(&WindowQuota::per_second(4.0), 7_400),
            QuotaDecision::Passes { left: 2 }
        );
    }
}
