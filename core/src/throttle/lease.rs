//! Tokens that a process holds briefly to save requests to the store: their number, the
//! evenness of their spending, and the return of the rest.
//!
//! A lease never refuses: an ask that it cannot serve goes to the store, which counts the wait and
//! reports its true length. Tokens are leased only while they are plentiful: after the store has
//! granted less than was wanted, nothing is leased for a while, so that a process does not hold
//! tokens that others wait for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::chain::sane_cost;
use super::{AcquireResponse, Grant, LaneRequest, RateLimit, Refund};

/// The longest time for which tokens may be held.
pub const MAX_HORIZON: Duration = Duration::from_millis(250);

/// The share of a lease that may be spent ahead of time, because callers do not come as evenly as a
/// clock.
const LEAD: f64 = 0.1;

/// The smallest number of tokens worth a lease.
const MIN_TOKENS: f64 = 2.0;

/// The largest number of tokens of one lease.
const MAX_TOKENS: f64 = 1e6;

/// The number of horizons without a lease after the store has granted less than was wanted, and
/// after a lease that was mostly returned.
const HOLD_OFF: u32 = 4;

/// The number of tokens below which a rest is a rounding error.
const NOTHING: f64 = 1e-9;

/// Tokens that were charged at `since` and may be spent evenly over the horizon.
#[derive(Debug)]
struct Lease {
    /// The store's answer without the grants.
    response: AcquireResponse,
    /// The charge of one token at each level.
    charge_us: Arc<[f64]>,
    /// The cost of the last ask, with its charge at each level.
    priced: (f64, Arc<[f64]>),
    since: Instant,
    horizon: Duration,
    tokens: f64,
    left: f64,
    /// The tokens that may be spent at `at`.
    ready: f64,
    at: Instant,
}

/// A pending request to the store.
#[derive(Clone, Copy, Debug)]
pub struct PendingLease {
    /// The tokens requested for a lease besides the wanted ones; 0 for none.
    pub leased: u32,
    at: Instant,
    era: u64,
}

/// The rest of a lease that must be given back.
#[derive(Debug, PartialEq)]
pub struct LeaseRemainder {
    /// The rest as one unit.
    pub grant: Grant,
    /// The tokens that the rest cost.
    pub tokens: f64,
}

/// The tokens that a process holds of one throttle, and its recent use of them.
#[derive(Debug)]
pub struct Holding {
    horizon: Duration,
    lease: Option<Lease>,
    lately: RecentSpend,
    /// True while a request for the next lease is pending.
    is_asking: bool,
    not_before: Instant,
    /// True if the store last reported that the levels alone decide.
    levels_decide: bool,
    slowest_rps: Option<RateLimit>,
    /// The number of releases of everything held; an ask from an earlier era no longer counts.
    era: u64,
}

/// The tokens spent in the current stretch of one horizon's length, and in the one before.
#[derive(Debug)]
struct RecentSpend {
    begin: Instant,
    now: f64,
    before: f64,
}

impl Holding {
    /// Creates an empty holding of tokens for `horizon` at most.
    pub fn new(horizon: Duration, now: Instant) -> Self {
        Self {
            horizon: horizon.min(MAX_HORIZON),
            lease: None,
            lately: RecentSpend {
                begin: now,
                now: 0.0,
                before: 0.0,
            },
            is_asking: false,
            not_before: now,
            levels_decide: false,
            slowest_rps: None,
            era: 0,
        }
    }

    /// Serves lanes from the lease, all or none.
    pub fn spend(&mut self, lanes: &[LaneRequest], now: Instant) -> Option<AcquireResponse> {
        let lease = self.lease.as_mut()?;
        let tokens = sum(lanes);
        if tokens <= 0.0 || !lease.take(tokens, now) {
            return None;
        }
        self.lately.spent(tokens, now, self.horizon);
        let grant = |lane: &LaneRequest| Grant {
            granted: lane.want,
            charge_us: lease.price(lane),
            ..Grant::default()
        };
        let lanes = lanes.iter().map(grant).collect();
        let at_us =
            lease.response.at_us + now.saturating_duration_since(lease.since).as_micros() as i64;
        Some(AcquireResponse {
            lanes,
            at_us,
            ..lease.response
        })
    }

    /// Begins an ask of the store, including a lease if one is due. If `leased` is above 0, the
    /// caller must report the result with [`Self::answered`] or [`Self::given_up`].
    ///
    /// The number is the tokens really spent in the last horizon, and at most this process's share
    /// of the slowest rate. It is 0 for an ask that is too large to be served from such a lease.
    pub fn ask(&mut self, lanes: &[LaneRequest], workers: u32, now: Instant) -> PendingLease {
        let mut asking = PendingLease {
            leased: 0,
            at: now,
            era: self.era,
        };
        let is_held = self
            .lease
            .as_ref()
            .is_some_and(|lease| !lease.is_over(now) && lease.left >= 1.0);
        let Some(slowest_rps) = self.slowest_rps.filter(|_| self.levels_decide) else {
            return asking;
        };
        if is_held || self.is_asking || now < self.not_before || self.horizon.is_zero() {
            return asking;
        }
        let part = self.horizon.as_secs_f64() / f64::from(workers.max(1));
        let most = slowest_rps
            .tokens()
            .map_or(MAX_TOKENS, |rps| (rps * part).min(MAX_TOKENS));
        let tokens = self.lately.per_horizon(now, self.horizon).min(most).floor();
        if tokens >= MIN_TOKENS && sum(lanes) <= depth(tokens) {
            self.is_asking = true;
            asking.leased = tokens as u32;
        }
        asking
    }

    /// Records the store's answer and returns the rests to give back. Tokens for a lease were asked
    /// for with the last lane, which is removed from the answer.
    pub fn answered(
        &mut self,
        asking: &PendingLease,
        lanes: &[LaneRequest],
        answer: &mut AcquireResponse,
        now: Instant,
    ) -> Vec<LeaseRemainder> {
        let mut rests = Vec::new();
        let more = (asking.leased > 0).then(|| answer.lanes.pop()).flatten();
        self.is_asking &= asking.leased == 0;
        // A lost store has charged nothing; the lease ends with its horizon.
        if answer.at_us == 0 {
            return rests;
        }
        for (lane, grant) in lanes.iter().zip(&answer.lanes) {
            let cost = sane_cost(lane.cost).min(answer.max_cost);
            self.lately
                .spent(f64::from(grant.granted) * cost, now, self.horizon);
            self.slowest_rps = slowest(grant, cost).or(self.slowest_rps);
        }
        let is_short = more
            .as_ref()
            .is_some_and(|more| more.granted < asking.leased);
        if is_short || answer.lanes.iter().any(|lane| lane.limit.is_some()) {
            self.not_before = now + self.horizon * HOLD_OFF;
        }
        let is_of_now = asking.era == self.era;
        if is_of_now {
            self.levels_decide = answer.levels_decide;
        }
        let is_outdated = self
            .lease
            .as_ref()
            .is_some_and(|lease| !lease.is_of(answer))
            || !answer.levels_decide;
        let leased = more.and_then(|more| Lease::new(more, answer, asking.at, self.horizon));
        if is_of_now && (is_outdated || leased.is_some()) {
            rests.extend(self.end(now));
        }
        if is_of_now && answer.levels_decide {
            self.lease = leased.or(self.lease.take());
        } else {
            rests.extend(leased.and_then(Lease::rest));
        }
        rests
    }

    /// Records that an ask was given up before it was answered.
    pub fn given_up(&mut self, asking: &PendingLease) {
        self.is_asking &= asking.leased == 0;
    }

    /// Ends the lease and returns its rest. Nothing is leased again until the store has answered.
    pub fn let_go(&mut self) -> Option<LeaseRemainder> {
        self.levels_decide = false;
        self.era += 1;
        self.lease.take().and_then(Lease::rest)
    }

    /// Returns the rest of a lease whose time is over.
    pub fn over(&mut self, now: Instant) -> Option<LeaseRemainder> {
        self.lease
            .as_ref()
            .is_some_and(|lease| lease.is_over(now))
            .then(|| self.end(now))
            .flatten()
    }

    fn end(&mut self, now: Instant) -> Option<LeaseRemainder> {
        let lease = self.lease.take()?;
        if lease.is_over(now) && lease.left > lease.tokens / 2.0 {
            self.not_before = now + self.horizon * HOLD_OFF;
        }
        lease.rest()
    }

    /// Returns true if the holding can be forgotten without loss.
    pub fn is_idle(&self, now: Instant) -> bool {
        self.lease.is_none()
            && !self.is_asking
            && now.saturating_duration_since(self.lately.begin) > 2 * self.horizon
    }
}

/// Returns the tokens that lanes want.
fn sum(lanes: &[LaneRequest]) -> f64 {
    lanes
        .iter()
        .map(|lane| f64::from(lane.want) * sane_cost(lane.cost))
        .sum()
}

/// Returns the slowest rate of the levels that a grant was charged at.
fn slowest(grant: &Grant, cost: f64) -> Option<RateLimit> {
    let (_, levels) = grant.charge_us.split_last()?;
    let longest = levels.iter().copied().fold(0.0, f64::max);
    Some(if longest > 0.0 {
        RateLimit::PerSecond(cost * 1e6 / longest)
    } else {
        RateLimit::Unlimited
    })
}

// === impl Lease ===

impl Lease {
    fn new(
        grant: Grant,
        answer: &AcquireResponse,
        since: Instant,
        horizon: Duration,
    ) -> Option<Self> {
        let tokens = f64::from(grant.granted);
        let response = AcquireResponse {
            lanes: Vec::new(),
            ..*answer
        };
        let ready = depth(tokens);
        let priced = (1.0, grant.charge_us.clone());
        let lease = Self {
            response,
            charge_us: grant.charge_us,
            priced,
            since,
            horizon,
            tokens,
            left: tokens,
            ready,
            at: since,
        };
        (tokens > 0.0 && !lease.charge_us.is_empty()).then_some(lease)
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= self.horizon
    }

    /// Returns true if the lease was charged under the present knobs. Every change that does not
    /// count `seq` changes the rate.
    fn is_of(&self, answer: &AcquireResponse) -> bool {
        self.response.seq == answer.seq && self.response.effective_rps == answer.effective_rps
    }

    /// Takes tokens if this many may be spent now.
    fn take(&mut self, tokens: f64, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at);
        let refill = self.tokens * passed.as_secs_f64() / self.horizon.as_secs_f64();
        self.ready = (self.ready + refill).min(depth(self.tokens));
        self.at = self.at.max(now);
        let fits = !self.is_over(now) && tokens <= self.ready.min(self.left) + NOTHING;
        if fits {
            self.ready -= tokens;
            self.left -= tokens;
        }
        fits
    }

    /// Returns the charge for one unit of the lane at each level.
    fn price(&mut self, lane: &LaneRequest) -> Arc<[f64]> {
        let cost = sane_cost(lane.cost);
        if lane.want == 0 {
            return Arc::default();
        }
        if self.priced.0 != cost {
            self.priced = (
                cost,
                self.charge_us
                    .iter()
                    .map(|charge_us| charge_us * cost)
                    .collect(),
            );
        }
        self.priced.1.clone()
    }

    fn rest(self) -> Option<LeaseRemainder> {
        let tokens = self.left;
        let charge_us = self
            .charge_us
            .iter()
            .map(|charge_us| charge_us * tokens)
            .collect();
        (tokens > NOTHING).then(|| LeaseRemainder {
            grant: Grant {
                granted: 1,
                charge_us,
                ..Grant::default()
            },
            tokens,
        })
    }
}

/// Returns the tokens of a lease that may be spent at once.
fn depth(tokens: f64) -> f64 {
    (tokens * LEAD).max(1.0)
}

// === impl Rest ===

impl LeaseRemainder {
    /// Returns the rest as a refund for the store.
    pub fn refund(&self) -> Refund<'_> {
        Refund {
            key: "",
            grant: &self.grant,
            units: 1,
            cost: self.tokens,
        }
    }
}

// === impl Lately ===

impl RecentSpend {
    fn spent(&mut self, tokens: f64, now: Instant, horizon: Duration) {
        self.roll(now, horizon);
        self.now += tokens;
    }

    /// Returns the tokens spent in the last whole stretch.
    fn per_horizon(&mut self, now: Instant, horizon: Duration) -> f64 {
        self.roll(now, horizon);
        self.before
    }

    fn roll(&mut self, now: Instant, horizon: Duration) {
        let passed = now.saturating_duration_since(self.begin);
        if passed >= 2 * horizon {
            (self.begin, self.before, self.now) = (now, 0.0, 0.0);
        } else if passed >= horizon {
            (self.begin, self.before, self.now) = (self.begin + horizon, self.now, 0.0);
        }
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
