//! The number of tokens to ask for at once, and the wait between requests for tokens.

use crate::throttle::RateLimit;
use std::time::Duration;

/// Seconds' worth of documents in one bulk request, small enough that a cut of the rate takes
/// effect at once.
const SLICE_S: f64 = 0.1;
/// Longest wait for a slice before it is halved: another level of the throttle is slower than the
/// known rate.
const MAX_SLICE_WAIT: Duration = Duration::from_millis(250);
/// Longest wait between requests for tokens, so that a turned knob takes effect within a second.
const MAX_ASK_INTERVAL: Duration = Duration::from_millis(500);
/// Seconds' worth of documents, at the rate at which they are stored, that may be sent beyond the
/// oldest one that is not stored yet.
const MAX_SENT_AHEAD_S: f64 = 3.0;
/// Growth of the rate with each request that the index accepts whole.
const REGAIN: f64 = 1.05;
/// Shortest wait between requests for tokens.
const MIN_ASK_INTERVAL: Duration = Duration::from_millis(1);

/// Turns the throttle's answers into requests for tokens.
///
/// One token is one document. A bulk request carries about a tenth of a second's documents,
/// `rps × 0.1 s`, at least 1 and at most `batch_docs`. They are requested as *one* unit that costs
/// so many tokens. It is granted whole or not at all, and the throttle returns the exact wait until
/// it fits. A unit that costs more than the bucket holds leaves a debt, so no refill is lost,
/// however small the bucket is.
#[derive(Clone, Debug)]
pub struct BulkPacer {
    batch_docs: usize,
    fits: usize,
    limit: RateLimit,
    /// Documents per second that the index accepts, after it has rejected some; `None` while it
    /// accepts all.
    takes: Option<f64>,
}

impl BulkPacer {
    /// Creates a pace that knows no rate yet and asks for one document.
    pub fn new(batch_docs: usize) -> Self {
        let batch_docs = batch_docs.max(1);
        Self {
            batch_docs,
            fits: batch_docs,
            limit: RateLimit::Stopped,
            takes: None,
        }
    }

    /// Returns the number of documents to ask for, if `ready` can be sent.
    pub fn want(&self, ready: usize) -> usize {
        let rate = (self.limit.tokens())
            .unwrap_or(f64::INFINITY)
            .min(self.takes.unwrap_or(f64::INFINITY));
        // An infinite rate becomes the largest integer.
        let slice = (rate * SLICE_S).ceil() as usize;
        slice
            .clamp(1, self.batch_docs)
            .min(self.fits)
            .min(ready)
            .max(1)
    }

    /// Learns from the answer to a bulk request.
    ///
    /// After a rejection it asks for less, by the share that was stored but by no more than a half;
    /// after each request that was stored whole it asks for a little more, until the throttle alone
    /// decides again.
    pub fn record_response(&mut self, stored: usize, rejected: usize) {
        let most = (self.limit.tokens()).unwrap_or(self.batch_docs as f64 / SLICE_S);
        let takes = self.takes.unwrap_or(most).min(most);
        if rejected > 0 {
            let share = stored as f64 / (stored + rejected) as f64;
            self.takes = Some((takes * share.max(0.5)).max(1.0));
        } else if self.takes.is_some() {
            self.takes = Some(takes * REGAIN).filter(|takes| *takes < most);
        }
    }

    /// Returns how far a document may be sent beyond the oldest one that is not stored yet, in
    /// documents: the content of `requests` bulk requests, and some seconds of the rate, or of the
    /// `stored` rate if that is known and lower.
    ///
    /// The documents in between are sent again if the worker dies, so they are bounded by time and
    /// not by memory.
    pub fn ahead(&self, requests: usize, stored: Option<f64>) -> u64 {
        let rate = self.limit.tokens().unwrap_or(f64::INFINITY);
        let rate = stored.map_or(rate, |stored| rate.min(stored));
        let carried = (requests * self.want(usize::MAX)) as u64;
        // A rate that is neither limited nor measured yet allows another round of requests.
        carried
            + if rate.is_finite() {
                (rate * MAX_SENT_AHEAD_S).ceil() as u64
            } else {
                carried
            }
    }

    /// Learns from the throttle's answer: the rate in force, whether `wanted`
    /// documents were granted, and if not, the wait until they will be.
    ///
    /// Returns the wait before the next request for tokens.
    pub fn learn(
        &mut self,
        limit: RateLimit,
        wanted: usize,
        granted: bool,
        wait: Duration,
    ) -> Duration {
        self.limit = limit;
        if granted {
            self.fits = self.fits.saturating_mul(2).min(self.batch_docs);
            return self.takes.map_or(Duration::ZERO, |takes| {
                Duration::from_secs_f64(wanted as f64 / takes)
            });
        }
        if wait > MAX_SLICE_WAIT {
            self.fits = (wanted / 2).max(1);
        }
        wait.clamp(MIN_ASK_INTERVAL, MAX_ASK_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(rps: f64) -> BulkPacer {
        let mut pace = BulkPacer::new(500);
        pace.learn(RateLimit::new(rps), 1, true, Duration::ZERO);
        pace
    }

    #[test]
    fn a_slice_is_a_tenth_of_a_second_bounded_by_one_and_the_batch() {
        for (rps, want) in [
            (0.0, 1),
            (0.01, 1),
            (5.0, 1),
            (100.0, 10),
            (1000.0, 100),
            (1e6, 500),
            (-1.0, 500),
        ] {
            assert_eq!(at(rps).want(10_000), want, "{rps}");
        }
        assert_eq!(at(1000.0).want(7), 7);
        assert_eq!(BulkPacer::new(500).want(10_000), 1);
    }

    #[test]
    fn documents_are_sent_some_seconds_ahead_of_the_oldest_unstored_one_and_no_further() {
        assert_eq!(at(60.0).ahead(8, None), 8 * 6 + 180);
        assert_eq!(
            at(60.0).ahead(8, Some(10.0)),
            8 * 6 + 30,
            "most are rejected"
        );
        assert_eq!(at(2770.0).ahead(8, Some(500.0)), 8 * 277 + 1500);
        assert_eq!(at(-1.0).ahead(8, None), 8 * 500 * 2);
        assert_eq!(
            at(0.0).ahead(1, Some(0.0)),
            1,
            "the oldest itself may always be sent"
        );
    }

    #[test]
    fn what_the_index_rejects_slows_the_pace_down_until_it_takes_all_again() {
        let mut pace = at(1000.0);
        pace.record_response(10, 90);
        pace.record_response(90, 10);
        assert_eq!(
            pace.want(10_000),
            45,
            "half for the first, nine tenths of that for the second"
        );
        assert_eq!(
            pace.learn(RateLimit::PerSecond(1000.0), 45, true, Duration::ZERO),
            Duration::from_millis(100)
        );

        for _ in 0..20 {
            pace.record_response(45, 0);
        }
        assert_eq!(pace.want(10_000), 100);
        assert_eq!(
            pace.learn(RateLimit::PerSecond(1000.0), 100, true, Duration::ZERO),
            Duration::ZERO
        );

        for _ in 0..100 {
            pace.record_response(0, 1);
        }
        assert_eq!(pace.want(10_000), 1, "and never stops");
    }

    #[test]
    fn it_waits_for_the_requested_time() {
        let wait = Duration::from_millis(87);

        assert_eq!(
            at(1000.0).learn(RateLimit::PerSecond(1000.0), 100, false, wait),
            wait
        );
        assert_eq!(
            at(1000.0).learn(RateLimit::PerSecond(1000.0), 100, true, Duration::ZERO),
            Duration::ZERO
        );
    }

    #[test]
    fn slices_shrink_where_a_key_or_a_tier_is_slower_than_the_throttle_and_grow_back() {
        let mut pace = at(1000.0);
        for wanted in [100, 50, 25, 12, 6, 3, 1] {
            assert_eq!(pace.want(10_000), wanted);
            pace.learn(
                RateLimit::PerSecond(1000.0),
                wanted,
                false,
                Duration::from_secs(1),
            );
        }

        for _ in 0..7 {
            pace.learn(RateLimit::PerSecond(1000.0), 1, true, Duration::ZERO);
        }
        assert_eq!(pace.want(10_000), 100);
    }

    #[test]
    fn a_stopped_throttle_is_asked_twice_a_second_and_never_in_a_spin() {
        assert_eq!(
            at(0.0).learn(RateLimit::Stopped, 1, false, Duration::from_secs(3600)),
            Duration::from_millis(500)
        );
        assert_eq!(
            at(0.0).learn(RateLimit::Stopped, 1, false, Duration::ZERO),
            Duration::from_millis(1)
        );
        assert_eq!(
            at(5.0).learn(RateLimit::new(f64::NAN), 1, true, Duration::ZERO),
            Duration::ZERO
        );
    }
}
