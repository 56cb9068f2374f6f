//! Waits of lanes and throttles that were refused: their ends, and the checks before them. Pure;
//! time is an argument.
//!
//! An answer may say when a wait ends, but a person can end it earlier, and the end of some waits
//! is not known at all. So those that wait are asked again now and then. Most of these checks are
//! in vain, so all waits of a kind share a number of checks a second: few are checked in time, and
//! many take turns. A check that is not in vain pays for two more, because what ended one wait has
//! often ended others: a rate above all of them, or a store that is back.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Time for which checks that were not made are saved up.
const SAVED: Duration = Duration::from_millis(200);

/// Shortest time until checks go on that were used up, so that nobody wakes up for each.
const REST: Duration = Duration::from_millis(20);

/// The wait of a lane or a throttle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The time at which it ends, if it ends without a check.
    pub end: Option<Instant>,
    /// The time of the next check, if one is of use.
    pub check: Option<Instant>,
}

impl Wait {
    /// Returns a wait that ends at `end`.
    pub fn until(end: Instant) -> Self {
        Self {
            end: Some(end),
            check: None,
        }
    }

    /// Returns a wait that only a check can end.
    pub fn for_check(at: Instant) -> Self {
        Self {
            end: None,
            check: Some(at),
        }
    }
}

/// The waits of one kind.
#[derive(Debug)]
pub struct Waits<K> {
    ends: BTreeSet<(Instant, K)>,
    checks: BTreeSet<(Instant, K)>,
    /// Time that pays for one check.
    price: Duration,
    saved: Duration,
    counted_at: Option<Instant>,
}

impl<K: Copy + Ord> Waits<K> {
    /// Returns no waits, of which so many are checked a second.
    pub fn new(checks_per_s: u32) -> Self {
        Self {
            ends: BTreeSet::new(),
            checks: BTreeSet::new(),
            price: Duration::from_secs(1) / checks_per_s,
            saved: SAVED,
            counted_at: None,
        }
    }

    /// Adds a wait.
    pub fn insert(&mut self, key: K, wait: &Wait) {
        if let Some(end) = wait.end {
            self.ends.insert((end, key));
        }
        if let Some(check) = wait.check {
            self.checks.insert((check, key));
        }
    }

    /// Removes a wait.
    pub fn remove(&mut self, key: K, wait: &Wait) {
        if let Some(end) = wait.end {
            self.ends.remove(&(end, key));
        }
        if let Some(check) = wait.check {
            self.checks.remove(&(check, key));
        }
    }

    /// Takes out the end of a wait that is over.
    pub fn take_ended(&mut self, now: Instant) -> Option<K> {
        if self.ends.first()?.0 > now {
            return None;
        }
        self.ends.pop_first().map(|(_, key)| key)
    }

    /// Returns the wait that is to be checked now, if one is and the checks of this second are not
    /// used up. Its next check is at `again`, which the caller records in the wait.
    pub fn take_check(&mut self, now: Instant, again: Instant) -> Option<K> {
        if self.checks.first()?.0 > now || !self.pay(now) {
            return None;
        }
        let (_, key) = self.checks.pop_first()?;
        self.checks.insert((again, key));
        Some(key)
    }

    /// Records that a check was not in vain.
    pub fn reward(&mut self) {
        self.saved = (self.saved + 2 * self.price).min(SAVED);
    }

    /// Returns the time of the next end or check.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let end = self.ends.first().map(|(at, _)| *at);
        let missing = match self.saved < self.price {
            true => self.price.max(REST) - self.saved,
            false => Duration::ZERO,
        };
        let paid_at = self.counted_at.unwrap_or(now) + missing;
        let check = self.checks.first().map(|(at, _)| paid_at.max(*at));
        end.into_iter().chain(check).min()
    }

    fn pay(&mut self, now: Instant) -> bool {
        let counted_at = self.counted_at.replace(now).unwrap_or(now);
        let passed = now.saturating_duration_since(counted_at);
        self.saved = (self.saved + passed).min(SAVED);
        let rest = self.saved.checked_sub(self.price);
        self.saved = rest.unwrap_or(self.saved);
        rest.is_some()
    }
}

#[cfg(test)]
#[path = "waits_tests.rs"]
mod tests;
