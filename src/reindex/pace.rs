//! How many tokens to ask for, and how long to wait for the next ones.

use std::time::Duration;

/// Seconds' worth of documents in one bulk request: small enough that a cut of the rate acts at once.
const SLICE_S: f64 = 0.1;
/// Longest time without asking again, so that a turned knob acts within a second.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// Shortest time without asking again.
const SHORTEST_WAIT: Duration = Duration::from_millis(2);

/// Turns the throttle's answers into asks.
///
/// One token is one document. A bulk request carries about a tenth of a second's documents: `want = rps × 0.1 s`, at
/// least 1, at most `batch_docs`. After a short answer the next ask waits until a whole slice fits,
/// `wait + (want - 1) / rps`, because asking as soon as one token is there would send documents one by one.
#[derive(Clone, Debug)]
pub struct Pace {
    batch_docs: usize,
    rps: f64,
}

impl Pace {
    /// A pace that knows no rate yet and asks for one document.
    pub fn new(batch_docs: usize) -> Self {
        Self { batch_docs: batch_docs.max(1), rps: 0.0 }
    }

    /// Documents to ask for, given that so many are ready to be sent.
    pub fn want(&self, ready: usize) -> u32 {
        self.slice().min(ready).clamp(1, u32::MAX as usize) as u32
    }

    /// Learns the rate in force, -1 for unlimited.
    pub fn learn(&mut self, effective_rps: f64) {
        if effective_rps.is_finite() {
            self.rps = effective_rps;
        }
    }

    /// How long to wait after `granted` of `want` documents, when the throttle says that the next one fits in `wait`.
    pub fn pause(&self, want: u32, granted: u32, wait: Duration) -> Duration {
        if granted >= want {
            return Duration::ZERO;
        }
        let more = (want.saturating_sub(1)) as f64;
        let whole_slice = if self.rps > 0.0 { Duration::from_secs_f64((more / self.rps).min(1.0)) } else { Duration::ZERO };
        wait.saturating_add(whole_slice).clamp(SHORTEST_WAIT, LONGEST_WAIT)
    }

    fn slice(&self) -> usize {
        if self.rps < 0.0 {
            return self.batch_docs;
        }
        ((self.rps * SLICE_S).ceil() as usize).clamp(1, self.batch_docs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(rps: f64) -> Pace {
        let mut pace = Pace::new(500);
        pace.learn(rps);
        pace
    }

    #[test]
    fn a_slice_is_a_tenth_of_a_second_bounded_by_one_and_the_batch() {
        for (rps, want) in [(0.0, 1), (0.01, 1), (5.0, 1), (100.0, 10), (1000.0, 100), (1e6, 500), (-1.0, 500)] {
            assert_eq!(at(rps).want(10_000), want, "{rps}");
        }
        assert_eq!(at(1000.0).want(7), 7);
        assert_eq!(Pace::new(500).want(10_000), 1);
    }

    #[test]
    fn after_a_short_answer_it_waits_until_a_whole_slice_fits() {
        let pause = at(1000.0).pause(100, 3, Duration::from_millis(1));

        assert_eq!(pause, Duration::from_millis(100));
        assert_eq!(at(1000.0).pause(100, 100, Duration::ZERO), Duration::ZERO);
        assert_eq!(at(5.0).pause(1, 0, Duration::from_millis(180)), Duration::from_millis(180));
    }

    #[test]
    fn a_stopped_throttle_is_asked_twice_a_second_and_never_in_a_spin() {
        assert_eq!(at(0.0).pause(1, 0, Duration::from_secs(3600)), Duration::from_millis(500));
        assert_eq!(at(0.0).pause(1, 0, Duration::ZERO), Duration::from_millis(2));
        assert_eq!(at(f64::NAN).want(10), 1);
    }
}
