//! The time for which ends of attempts wait for others, so that one statement writes several. Pure;
//! time is an argument.
//!
//! A statement costs Postgres more than the rows it writes. Ends wait where others follow soon: at
//! a hundred a second a statement then writes three, at two thousand thirty. A single end is written
//! at once.

use std::time::{Duration, Instant};

/// Longest wait.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// Wait of ends that come so fast that it fills a batch; longest wait for ends that others need.
const SHORT: Duration = Duration::from_millis(5);

/// Ends worth waiting for.
const WORTH: f64 = 32.0;

/// Time over which the rate of ends is averaged.
const AVERAGED_OVER: Duration = Duration::from_millis(250);

/// The measured rate of ends.
#[derive(Debug, Default)]
pub struct FinishPace {
    /// Ends a second at `at`.
    per_s: f64,
    at: Option<Instant>,
}

impl FinishPace {
    /// Records ends at `now`.
    pub fn record(&mut self, ends: usize, now: Instant) {
        let decayed = self.per_s(now);
        self.per_s = decayed + ends as f64 / AVERAGED_OVER.as_secs_f64();
        self.at = Some(now);
    }

    /// Returns the time for which ends wait from `now` on; nothing if no other is expected by then.
    /// Ends that are `needed`, because jobs wait for them, wait for a short time at most.
    pub fn wait(&self, is_needed: bool, now: Instant) -> Duration {
        let per_s = self.per_s(now);
        let longest = if is_needed { SHORT } else { WAIT_MAX };
        if per_s * longest.as_secs_f64() < 1.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(WORTH / per_s).clamp(SHORT, longest)
    }

    fn per_s(&self, now: Instant) -> f64 {
        self.at.map_or(0.0, |at| {
            let passed = now.saturating_duration_since(at);
            self.per_s * (-passed.as_secs_f64() / AVERAGED_OVER.as_secs_f64()).exp()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pace after two seconds of ends at a steady rate, and the time of the last.
    fn steady(per_s: f64) -> (FinishPace, Instant) {
        let mut pace = FinishPace::default();
        let begun = Instant::now();
        let mut now = begun;
        for n in 0..(2.0 * per_s) as u32 {
            now = begun + Duration::from_secs_f64(f64::from(n) / per_s);
            pace.record(1, now);
        }
        (pace, now)
    }

    #[test]
    fn ends_wait_for_as_many_as_are_worth_it() {
        let wait_ms = |per_s: f64| {
            let (pace, now) = steady(per_s);
            pace.wait(false, now).as_secs_f64() * 1e3
        };
        assert_eq!(wait_ms(5.0), 0.0);
        assert_eq!(wait_ms(100.0), 20.0);
        assert_eq!(wait_ms(1000.0), 20.0);
        let at_2000 = wait_ms(2000.0);
        assert!((15.0..=17.0).contains(&at_2000), "{at_2000} ms");
        assert_eq!(wait_ms(20_000.0), 5.0);
    }

    #[test]
    fn a_first_end_and_one_after_a_rest_are_written_at_once() {
        let mut pace = FinishPace::default();
        let now = Instant::now();
        assert_eq!(pace.wait(false, now), Duration::ZERO);
        pace.record(10_000, now);
        assert_eq!(pace.wait(false, now), SHORT);
        assert_eq!(
            pace.wait(false, now + Duration::from_secs(3)),
            Duration::ZERO
        );
    }

    #[test]
    fn needed_ends_wait_for_a_short_time() {
        let (pace, now) = steady(100.0);
        assert_eq!(pace.wait(true, now), Duration::ZERO);
        let (pace, now) = steady(1000.0);
        assert_eq!(pace.wait(true, now), SHORT);
    }
}
