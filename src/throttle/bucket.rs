//! The law of the bucket: how many tokens there are, how long until the next, and what a grant leaves behind.
//!
//! A bucket is one instant, `spent_to`: the refill has been spent up to there. What it holds now is the *time* since
//! then, `budget = now - spent_to`, never more than the tolerance `tau`:
//!
//! ```text
//!   interval  T   = 1e6 / rps                      µs per token
//!   tolerance tau = max(burst * window * 1e6, 2 T) µs; of a key whose burst is below 20 ms T + burst
//!   units     k   = floor(budget / (cost * T)), half a microsecond early at most
//!   grant     spent_to += k * cost * T
//!   wait          = min(cost * T, tau) - budget    until the next unit fits
//! ```
//!
//! This is the generic cell rate algorithm; its theoretical arrival time is `spent_to + tau`. Keeping the instant at
//! which the bucket is *empty* instead of the one at which it is *full* makes a change of the rate harmless: an empty
//! bucket stays empty whatever `rps`, `burst` or `window` become, so a cut frees nothing and a stop resumes from nothing.
//! There is room for two tokens at least, or a worker that comes a little late would lose what refilled meanwhile.
//!
//! The same law stands in `throttle.lua`, operation by operation, so that both give the same numbers to the last bit.

/// How long a stopped or unknown throttle tells people to wait before they ask again, in microseconds.
///
/// A person who turns the knob up is thereby obeyed within half a second.
pub const STOPPED_WAIT_US: f64 = 500_000.0;

/// The longest wait that is told, in microseconds (31 years).
pub const MAX_WAIT_US: f64 = 1e15;

/// How early a unit may fit, in microseconds: clocks tick in whole ones, and doubles at this time of the world in quarters.
const SLACK_US: f64 = 0.5;

/// What a key without a burst may save up, in microseconds: workers come round every few milliseconds.
const SPACED_US: f64 = 20_000.0;

/// How far into the future a charge may reach, in microseconds, where one job does not reach further by itself.
pub const LONGEST_DEBT_US: f64 = 300_000_000.0;

/// A rate and how much of it may be saved up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Tokens per second; 0 stops, -1 is unlimited.
    pub rps: f64,
    /// Microseconds of refill that the bucket holds when full, before the floor of two tokens.
    pub depth_us: f64,
}

impl Rate {
    /// No limit at all.
    pub const UNLIMITED: Self = Self { rps: -1.0, depth_us: 0.0 };

    /// Microseconds per token; 0 where the rate is stopped or unlimited.
    pub fn interval_us(&self) -> f64 {
        if self.rps > 0.0 { 1e6 / self.rps } else { 0.0 }
    }

    /// Microseconds of refill that the bucket holds when full. A key that saves nothing up is spaced: it has one token, or as
    /// much as workers need to come round where that is more. One that saves up less than that time is spaced too, and has that beside
    /// its token, so that who comes so late loses nothing.
    pub fn tau_us(&self, start: Start) -> f64 {
        match start {
            Start::Full if self.depth_us == 0.0 => self.interval_us().max(SPACED_US),
            Start::Full if self.depth_us < SPACED_US => self.interval_us() + self.depth_us,
            _ => self.depth_us.max(2.0 * self.interval_us()),
        }
    }
}

/// The slower of two rates, where below 0 means unlimited.
pub fn slower(a: f64, b: f64) -> f64 {
    match () {
        () if a < 0.0 => b,
        () if b < 0.0 => a,
        () => a.min(b),
    }
}

/// What a bucket remembers between two asks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bucket {
    /// Unix microseconds up to which the refill has been spent; `None` for a bucket that was never asked or is long full.
    pub spent_to: Option<f64>,
    /// Tokens by which the last charge went below empty. It tells an honest debt from a clock that stepped back.
    pub debt: f64,
    /// The throttle was stopped when it was last asked. However long ago that was, nothing has been refilled since.
    pub stopped: bool,
}

/// How a bucket that is missing begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With one token: a throttle whose bucket was lost must not burst.
    OneToken,
    /// Full: an idle key keeps no state at all.
    Full,
}

/// A bucket opened at one instant under one rate above 0; costs are taken from it and it is closed again.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    interval: f64,
    tau: f64,
    longest: f64,
    spent_to: f64,
    debt: f64,
}

impl Bucket {
    /// Opens the bucket at `now` (unix microseconds) for units that cost at most `cost` tokens, where none may ever cost more than
    /// `most`.
    ///
    /// `spent_to` is clamped to what can be true: never fuller than full, and no more debt than was really made. A server's
    /// clock that stepped back an hour thus costs some seconds and not an hour. Nor is any debt longer than that of one job of
    /// `most`, or than some minutes.
    pub fn open(&self, rate: Rate, start: Start, now: f64, cost: f64, most: f64) -> Open {
        let interval = 1e6 / rate.rps;
        let tau = rate.tau_us(start);
        let begin = if start == Start::Full { now - tau } else { now - interval };
        let longest = LONGEST_DEBT_US.max(most * interval);
        let highest = now + (tau + (10.0 * cost + self.debt) * interval).min(longest);
        let spent_to = if self.stopped { self.spent_to.unwrap_or(now).max(now) } else { self.spent_to.unwrap_or(begin) };
        let spent_to = spent_to.min(highest).max(now - tau);
        Open { interval, tau, longest, spent_to, debt: self.debt }
    }

    /// Empties the bucket, as a stopped throttle does, so that it starts again from nothing; at `now`, or where it is still
    /// `stopped` then, whenever it starts.
    pub fn drain(&mut self, now: f64, stopped: bool) {
        self.spent_to = Some(self.spent_to.unwrap_or(now).max(now));
        self.stopped = stopped;
    }

    /// Makes an empty bucket of one with a debt.
    pub fn forgive(&mut self, now: f64) {
        self.spent_to = self.spent_to.map(|spent_to| spent_to.min(now));
        self.debt = 0.0;
    }

    /// Gives time back; the bucket never gets fuller than full because it is clamped when it is opened.
    pub fn refund(&mut self, time_us: f64) {
        self.spent_to = self.spent_to.map(|spent_to| spent_to - time_us);
    }
}

impl Open {
    /// Units of `cost` tokens that fit now. A unit dearer than the bucket fits when the bucket is full.
    pub fn units(&self, cost: f64, now: f64) -> f64 {
        let units = ((now - self.spent_to + SLACK_US) / (cost * self.interval)).floor();
        if units < 1.0 && self.is_full(now) { 1.0 } else { units.max(0.0) }
    }

    /// Takes `units` of `cost` tokens; a dear one leaves a debt.
    pub fn take(&mut self, units: f64, cost: f64, now: f64) {
        self.spent_to += units * (cost * self.interval);
        self.debt = ((self.spent_to - now) / self.interval).max(0.0);
    }

    /// Charges tokens after the fact, or returns them when negative, as far as a debt may go; answers those that counted.
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

    /// Microseconds until the next unit of `cost` tokens fits; not above 0 if it fits now.
    pub fn wait_us(&self, cost: f64, now: f64) -> f64 {
        (cost * self.interval).min(self.tau) - (now - self.spent_to)
    }

    /// Units that fit into the upper half of the bucket: what is left to those who borrow, so that whoever draws on it by right
    /// never comes late.
    pub fn spare_units(&self, cost: f64, now: f64) -> f64 {
        ((now - self.spent_to - self.tau / 2.0 + SLACK_US) / (cost * self.interval)).floor().max(0.0)
    }

    /// Microseconds until the next unit fits into the upper half; one dearer than that never does.
    pub fn spare_wait_us(&self, cost: f64, now: f64) -> f64 {
        let needed = cost * self.interval;
        if needed > self.tau / 2.0 { f64::INFINITY } else { needed + self.tau / 2.0 - (now - self.spent_to) }
    }

    /// Microseconds until the bucket is full.
    pub fn full_in_us(&self, now: f64) -> f64 {
        self.spent_to + self.tau - now
    }

    /// True when the bucket can hold no more.
    pub fn is_full(&self, now: f64) -> bool {
        self.spent_to <= now - self.tau + SLACK_US
    }

    /// True if the bucket remembered more debt than can be true.
    pub fn was_clamped(&self, bucket: &Bucket) -> bool {
        bucket.spent_to.is_some_and(|spent_to| spent_to > self.spent_to)
    }

    /// What is to be remembered.
    pub fn close(self) -> Bucket {
        Bucket { spent_to: Some(self.spent_to), debt: self.debt, stopped: false }
    }
}

/// What a throttle counts about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Meter {
    /// Tokens taken, net of refunds.
    pub used: f64,
    /// Microseconds of waiting for this throttle's tokens, credited up to `limited_to`.
    pub limited_us: f64,
    /// When the wait that was last told ends, unix microseconds.
    pub limited_to: f64,
}

impl Meter {
    /// Somebody was refused at `now` and told to wait: time counts as limited until then, or until the next word.
    pub fn refused(&mut self, now: f64, wait_us: f64) {
        self.limited_us += wait_us - (self.limited_to - now).max(0.0);
        self.limited_to = now + wait_us;
    }

    /// Everybody was served and there is more: nobody waits any longer. True if that is news.
    pub fn relieved(&mut self, now: f64) -> bool {
        let pending = (self.limited_to - now).max(0.0);
        self.limited_us -= pending;
        self.limited_to -= pending;
        pending > 0.0
    }

    /// Microseconds of waiting that have really passed at `now`.
    pub fn limited_us_at(&self, now: f64) -> f64 {
        self.limited_us - (self.limited_to - now).max(0.0)
    }
}

#[cfg(test)]
#[path = "bucket_tests.rs"]
mod tests;
