//! The law of the bucket: the tokens it holds, the time until the next, and the state after a
//! grant.
//!
//! A bucket is one instant, `spent_to`: the refill has been spent up to there. Its content is the
//! *time* since then, `budget = now - spent_to`, never more than the tolerance `tau`:
//!
//! ```text
//!   interval  T   = 1e6 / rps                      µs per token
//!   tolerance tau = max(burst * window * 1e6, 2 T) µs; T + burst for a key with burst < 20 ms
//!   units     k   = floor(budget / (cost * T)), half a microsecond early at most
//!   grant     spent_to += k * cost * T
//!   wait          = min(cost * T, tau) - budget    until the next unit fits
//! ```
//!
//! This is the generic cell rate algorithm; its theoretical arrival time is `spent_to + tau`. The
//! state is the instant at which the bucket is *empty*, not the one at which it is *full*, because
//! that makes a change of the rate harmless: an empty bucket stays empty for any `rps`, `burst` or
//! `window`, so a cut frees nothing and a stop resumes from nothing. The bucket holds two tokens at
//! least, or a worker that comes a little late would lose the refill of the meantime.
//!
//! `throttle.lua` contains the same law, operation by operation, so that both give the same numbers
//! to the last bit.

use super::RateLimit;

/// The wait reported by a stopped or unknown throttle, in microseconds.
///
/// A raised knob thereby takes effect within half a second.
pub const STOPPED_WAIT_US: f64 = 500_000.0;

/// The longest reported wait, in microseconds (31 years).
pub const MAX_WAIT_US: f64 = 1e15;

/// The time by which a unit may fit early, in microseconds, because clocks tick in whole ones and
/// doubles of the present time in quarters.
const SLACK_US: f64 = 0.5;

/// The savings of a key without a burst, in microseconds, because workers poll every few
/// milliseconds.
pub(super) const SPACED_US: f64 = 20_000.0;

/// The longest debt that charges may leave, in microseconds, unless one job alone costs more.
pub const LONGEST_DEBT_US: f64 = 300_000_000.0;

/// A rate and the part of it that may be saved up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The limit of the rate.
    pub rps: RateLimit,
    /// The refill that a full bucket holds, in microseconds, before the floor of two tokens.
    pub depth_us: f64,
}

impl Rate {
    /// The rate without a limit.
    pub const UNLIMITED: Self = Self {
        rps: RateLimit::Unlimited,
        depth_us: 0.0,
    };

    /// Returns the time per token in microseconds; 0 if the rate is stopped or unlimited.
    pub fn interval_us(&self) -> f64 {
        self.rps.rate().map_or(0.0, |rps| 1e6 / rps)
    }

    /// Returns the refill that a full bucket holds, in microseconds.
    ///
    /// A key without a burst is spaced: it holds one token, or 20 ms of refill if that is more,
    /// because workers need that time to come round. A key with a burst below 20 ms is spaced too
    /// and holds the burst beside its token, so that a worker that comes that late loses nothing.
    pub fn tau_us(&self, start: Start) -> f64 {
        match start {
            Start::Full if self.depth_us == 0.0 => self.interval_us().max(SPACED_US),
            Start::Full if self.depth_us < SPACED_US => self.interval_us() + self.depth_us,
            _ => self.depth_us.max(2.0 * self.interval_us()),
        }
    }
}

/// The state of a bucket between two asks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bucket {
    /// The end of the spent refill, unix microseconds; `None` for a bucket that was never used or
    /// has long been full.
    pub spent_to: Option<f64>,
    /// The tokens by which the last charge went below empty, which distinguish an honest debt from
    /// a clock that stepped back.
    pub debt: f64,
    /// True if the throttle was stopped at the last ask; nothing has been refilled since.
    pub stopped: bool,
}

/// The initial content of a missing bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// One token: a throttle whose bucket was lost must not burst.
    OneToken,
    /// Full, so that an idle key needs no state.
    Full,
}

/// A bucket opened at one instant under a rate above 0, ready for charges.
#[derive(Clone, Copy, Debug)]
pub struct OpenBucket {
    interval: f64,
    tau: f64,
    longest: f64,
    spent_to: f64,
    debt: f64,
}

impl Bucket {
    /// Opens the bucket at `now` (unix microseconds) for units that cost at most `cost` tokens,
    /// under a limit of `most` tokens per unit.
    ///
    /// `spent_to` is clamped to possible values: never fuller than full, and no more debt than was
    /// really made. A server clock that stepped back an hour thus costs some seconds and not an
    /// hour. No debt is longer than that of one job of `most` tokens, or than some minutes.
    pub fn open(&self, rate: Rate, start: Start, now: f64, cost: f64, most: f64) -> OpenBucket {
        let interval = rate.interval_us();
        let tau = rate.tau_us(start);
        let begin = if start == Start::Full {
            now - tau
        } else {
            now - interval
        };
        let longest = LONGEST_DEBT_US.max(most * interval);
        let highest = now + (tau + (10.0 * cost + self.debt) * interval).min(longest);
        let spent_to = if self.stopped {
            self.spent_to.unwrap_or(now).max(now)
        } else {
            self.spent_to.unwrap_or(begin)
        };
        let spent_to = spent_to.min(highest).max(now - tau);
        OpenBucket {
            interval,
            tau,
            longest,
            spent_to,
            debt: self.debt,
        }
    }

    /// Empties the bucket at `now`, as a stopped throttle does; with `stopped`, its refill begins
    /// only when the throttle starts again.
    pub fn drain(&mut self, now: f64, stopped: bool) {
        self.spent_to = Some(self.spent_to.unwrap_or(now).max(now));
        self.stopped = stopped;
    }

    /// Cancels a debt, which leaves the bucket empty.
    pub fn forgive(&mut self, now: f64) {
        self.spent_to = self.spent_to.map(|spent_to| spent_to.min(now));
        self.debt = 0.0;
    }

    /// Gives time back; the clamp of the next `open` keeps the bucket from exceeding full.
    pub fn refund(&mut self, time_us: f64) {
        self.spent_to = self.spent_to.map(|spent_to| spent_to - time_us);
    }
}

impl OpenBucket {
    /// Counts the refill from `from` on at the earliest.
    pub fn space_from(&mut self, from: f64) {
        self.spent_to = self.spent_to.max(from);
    }

    /// Returns the units of `cost` tokens that fit now. A unit above the size of the bucket fits
    /// when the bucket is full.
    pub fn units(&self, cost: f64, now: f64) -> f64 {
        let units = ((now - self.spent_to + SLACK_US) / (cost * self.interval)).floor();
        if units < 1.0 && self.is_full(now) {
            1.0
        } else {
            units.max(0.0)
        }
    }

    /// Takes `units` units of `cost` tokens; a unit above the size of the bucket leaves a debt.
    pub fn take(&mut self, units: f64, cost: f64, now: f64) {
        self.spent_to += units * (cost * self.interval);
        self.debt = ((self.spent_to - now) / self.interval).max(0.0);
    }

    /// Charges tokens after the fact, or returns them if negative, up to the longest debt; returns
    /// the tokens that counted.
    pub fn settle(&mut self, tokens: f64, now: f64) -> f64 {
        let (before, highest, mut counted) = (self.spent_to, now + self.longest, tokens);
        self.spent_to = before + tokens * self.interval;
        if self.spent_to > highest {
            self.spent_to = highest;
            counted = ((highest - before) / self.interval).max(0.0);
        }
        self.debt = ((self.spent_to - now) / self.interval).max(0.0);
        counted
    }

    /// Returns the microseconds until the next unit of `cost` tokens fits; 0 or less if it fits
    /// now.
    pub fn wait_us(&self, cost: f64, now: f64) -> f64 {
        (cost * self.interval).min(self.tau) - (now - self.spent_to)
    }

    /// Returns the units that fit into the upper half of the bucket, the part that may be borrowed,
    /// so that a caller within its own rate never waits for a borrower.
    pub fn spare_units(&self, cost: f64, now: f64) -> f64 {
        ((now - self.spent_to - self.tau / 2.0 + SLACK_US) / (cost * self.interval))
            .floor()
            .max(0.0)
    }

    /// Returns the microseconds until the next unit fits into the upper half; infinite for a larger
    /// unit.
    pub fn spare_wait_us(&self, cost: f64, now: f64) -> f64 {
        let needed = cost * self.interval;
        if needed > self.tau / 2.0 {
            f64::INFINITY
        } else {
            needed + self.tau / 2.0 - (now - self.spent_to)
        }
    }

    /// Returns true if the bucket can hold no more.
    pub fn is_full(&self, now: f64) -> bool {
        self.spent_to <= now - self.tau + SLACK_US
    }

    /// Returns true if `bucket` recorded more debt than is possible.
    pub fn was_clamped(&self, bucket: &Bucket) -> bool {
        bucket
            .spent_to
            .is_some_and(|spent_to| spent_to > self.spent_to)
    }

    /// Returns the state to store.
    pub fn close(self) -> Bucket {
        Bucket {
            spent_to: Some(self.spent_to),
            debt: self.debt,
            stopped: false,
        }
    }
}

/// The counters of a throttle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UsageCounters {
    /// The tokens taken, net of refunds.
    pub used: f64,
    /// The time during which a caller waited for this throttle's tokens, in microseconds, credited
    /// up to `limited_to`.
    pub limited_us: f64,
    /// The end of the last reported wait, unix microseconds.
    pub limited_to: f64,
}

impl UsageCounters {
    /// Records a refusal at `now` with a wait: time counts as limited until its end or the next
    /// report.
    pub fn refused(&mut self, now: f64, wait_us: f64) {
        self.limited_us += wait_us - (self.limited_to - now).max(0.0);
        self.limited_to = now + wait_us;
    }

    /// Records that every caller was served and tokens are left; returns true if a wait was
    /// pending.
    pub fn relieved(&mut self, now: f64) -> bool {
        let pending = (self.limited_to - now).max(0.0);
        self.limited_us -= pending;
        self.limited_to -= pending;
        pending > 0.0
    }

    /// Returns the microseconds of waiting that have passed at `now`.
    pub fn limited_us_at(&self, now: f64) -> f64 {
        self.limited_us - (self.limited_to - now).max(0.0)
    }
}

#[cfg(test)]
#[path = "bucket_tests.rs"]
mod tests;
