//! What is learned of a quota that somebody else sets, from refusals (429) and from what is said to be left of it.
//!
//! A key that was refused is paused, then one job goes first as a probe, then twice as many at a time for as long as they
//! succeed, and its rate follows a curve that is known from CUBIC (RFC 9438, section 4.2), with the rate at which jobs really
//! succeeded, pauses included, in the place of the congestion window:
//!
//! ```text
//!   settle  w    = succeeded / (end of this pause - end of the last one)      tokens/s
//!                = the rate in force, where nobody said how long to stay away and 0.8 of it succeeded lately
//!   period  K    = max(20 s, 20 tokens' time at w)
//!   rate    r(t) = w * (1 + c ((t - K) / K)^3)                                t seconds after the pause
//!   cut     c    = 0.3, or 0.1 where w has moved by less than a quarter
//!   and never more than 1.25 of what succeeds, or w: who did not use a rate has not learned that it is borne;
//!   while jobs wait for the rate, never more than twice as much
//! ```
//!
//! It begins at 0.7 w, or 0.9 w, is at w after K, and only then feels its way beyond. Somebody else's use of the same quota thus costs
//! one pause in some twenty seconds. The same law stands in `throttle.lua`, operation by operation.

use super::bucket::slower;
use super::quota_window::{LATE_US, QuotaWindow};

/// The share of the rate that a refusal takes away.
const CUT: f64 = 0.3;

/// The share that it takes away where it comes near the rate that was known, nearer than this share of it: there is little to find out.
const NEAR_CUT: f64 = 0.1;
const NEAR: f64 = 0.25;

/// Whoever succeeded with this share of the rate in force lately was refused because of that rate.
const USED: f64 = 0.8;

/// What succeeded lately is counted over this part of a period to twice as much.
const LATELY: f64 = 0.25;

/// Where the curve is beyond the rate that is known, it is at most this much beyond what succeeds.
const AHEAD: f64 = 1.25;

/// The same, of that or of the rate that is known, where jobs waited for the rate lately: it may be our own slots that kept them from using it.
const WANTED_AHEAD: f64 = 2.0;

/// The shortest time in which the rate comes back to where it was refused, in seconds,
const PERIOD_S: f64 = 20.0;

/// and the fewest tokens' time.
const PERIOD_TOKENS: f64 = 20.0;

/// So many jobs that may be under way at once are no sign of care any more: from here on the rate alone decides.
const OPEN_CREDIT: f64 = 16.0;

/// When nothing was heard of a probe for so long, in microseconds, its worker is taken to be dead and another job goes.
const PATIENCE_US: f64 = 30e6;

/// The pause after a refusal that does not say how long, in microseconds; it doubles with each further one in a row,
const FIRST_PAUSE_US: f64 = 1e6;

/// Where the key's rate is known already, the first of a row is as short as this.
const KNOWN_PAUSE_US: f64 = 250_000.0;

/// and so does the shortest pause of one that was told not to wait,
const SHORTEST_PAUSE_US: f64 = 50_000.0;

/// as often as this.
const MAX_DOUBLINGS: f64 = 8.0;

/// How much jitter may add to a pause: coming back early earns the next refusal, so it only goes upwards.
const JITTER: f64 = 0.1;

/// How long what was learned is kept after the last refusal, at least, in microseconds, and in periods.
const KEEP_US: f64 = 600e6;
const KEEP_PERIODS: f64 = 6.0;

/// How many jobs may go while it is not known whether they are welcome.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe {
    /// Jobs that may be begun before one is answered; below 0 there is no such limit.
    pub credit: f64,
    /// When it last changed, unix microseconds.
    pub at: f64,
}

impl Probe {
    /// No limit.
    pub const OPEN: Self = Self { credit: -1.0, at: 0.0 };

    /// One job may go, from `at` on.
    pub fn begin(at: f64) -> Self {
        Self { credit: 1.0, at }
    }

    /// Jobs that may go now; `None` for no limit.
    pub fn left(&self, now: f64) -> Option<f64> {
        match self.credit {
            none if none < 0.0 => None,
            spent if spent < 1.0 && (now - self.at).abs() >= PATIENCE_US => Some(1.0),
            credit => Some(credit),
        }
    }

    /// So many go.
    pub fn take(&mut self, units: f64, now: f64) {
        if let Some(left) = self.left(now) {
            *self = Self { credit: left - units, at: now };
        }
    }

    /// So many were answered: each makes room for one more, and one that succeeded for two.
    pub fn answered(&mut self, succeeded: f64, failed: f64, may_open: bool, now: f64) {
        if self.credit >= 0.0 {
            *self = Self { credit: self.credit + 2.0 * succeeded + failed, at: now };
            if self.credit >= OPEN_CREDIT {
                *self = if may_open { Self::OPEN } else { Self { credit: OPEN_CREDIT, at: now } };
            }
        }
    }
}

/// How long a refusal pauses, in microseconds: as it said, or by back-off, which begins low where the rate `is_known`; with `jitter`
/// from 0 to 1. Who is told to come back at once, again and again, waits a little longer each time.
pub fn pause_us(said_us: Option<f64>, strikes: f64, is_known: bool, jitter: f64) -> f64 {
    let doubled = 2.0_f64.powi(strikes.min(MAX_DOUBLINGS) as i32);
    let first = if is_known && strikes == 0.0 { KNOWN_PAUSE_US } else { FIRST_PAUSE_US * doubled };
    let plain = said_us.map_or(first, |said| said.max(SHORTEST_PAUSE_US * doubled));
    (plain * (1.0 + JITTER * jitter)).floor()
}

/// What is known of a key that was refused, or whose quota was told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learned {
    /// The rate at which jobs succeeded until they were refused, in tokens per second; 0 while it is unknown.
    pub settle: f64,
    /// The end of the last pause, unix microseconds.
    pub grows_from: f64,
    /// Since when successes are counted, unix microseconds.
    pub since: f64,
    /// Tokens of jobs that succeeded since then.
    pub done: f64,
    /// How many may go at once.
    pub probe: Probe,
    /// Pauses in a row without a success between.
    pub strikes: f64,
    /// Refusals in all.
    pub refused: f64,
    /// What was told of its quota.
    pub window: QuotaWindow,
    /// When more was last wanted than the rate let through, unix microseconds.
    pub wanted_at: f64,
    /// The share by which the curve begins below where it settles.
    pub cut: f64,
    /// Tokens of jobs that succeeded lately,
    pub lately: f64,
    /// since then, unix microseconds.
    pub lately_from: f64,
}

impl Learned {
    /// Nothing is known at `now`.
    pub fn new(now: f64) -> Self {
        Self {
            settle: 0.0,
            grows_from: 0.0,
            since: now,
            done: 0.0,
            probe: Probe::OPEN,
            strikes: 0.0,
            refused: 0.0,
            window: QuotaWindow::NONE,
            wanted_at: 0.0,
            cut: CUT,
            lately: 0.0,
            lately_from: now,
        }
    }

    /// The key was refused at `now` and is paused until `until`, which was `said` or is by back-off. `configured` is its own rate, not
    /// above 0 for none; only one that `learns` gets another.
    pub fn refuse(&mut self, now: f64, until: f64, said: bool, configured: f64, learns: bool) {
        self.refused += 1.0;
        // Whoever was under way when the others were refused says nothing new.
        if self.grows_from <= now {
            if learns {
                let before = self.settle;
                let tried = if before > 0.0 && configured > 0.0 { slower(self.curve(now), configured) } else { self.curve(now) };
                let span = now - self.lately_from;
                let is_near = !said && self.strikes == 0.0 && span >= 1e6 && self.lately * 1e6 >= USED * tried * span;
                self.cut = CUT;
                self.settle = match () {
                    // Nobody said for how long, and what succeeded comes near the rate in force: that is what the other side allows. The
                    // mean would count our own pause and the time below it, and sink with each refusal.
                    () if before > 0.0 && is_near => tried.max(before * (1.0 - CUT)),
                    // Times without work are no refusals, so one refusal takes no more than its share.
                    () if self.done > 0.0 && until > self.since => {
                        (self.done * 1e6 / (until - self.since)).max(self.settle * (1.0 - CUT))
                    }
                    () if self.settle > 0.0 => self.settle * (1.0 - CUT),
                    () => configured.max(0.0),
                };
                if before > 0.0 && is_near && (self.settle - before).abs() < NEAR * before {
                    self.cut = NEAR_CUT;
                }
                if self.settle > 0.0 {
                    self.settle = self.settle.max(1e-6);
                }
            }
            self.strikes += 1.0;
            self.done = 0.0;
            self.lately = 0.0;
        }
        self.grows_from = self.grows_from.max(until);
        self.since = self.grows_from;
        self.lately_from = self.grows_from;
        self.probe = Probe::begin(self.grows_from);
    }

    /// Jobs were answered at `now`: so many succeeded, with so many tokens, and so many failed in another way. Where no rate
    /// `is_known`, learned or the key's own, a few at a time go on feeling their way.
    pub fn answered(&mut self, succeeded: f64, tokens: f64, failed: f64, is_known: bool, now: f64) {
        if now < self.grows_from {
            return;
        }
        if succeeded > 0.0 {
            self.strikes = 0.0;
            self.done += tokens;
            let span = now - self.since;
            if span > 2e6 * self.period_s() {
                self.done /= 2.0;
                self.since = now - span / 2.0;
            }
            self.lately += tokens;
            let span = now - self.lately_from;
            if span > 2e6 * LATELY * self.period_s() {
                self.lately /= 2.0;
                self.lately_from = now - span / 2.0;
            }
        }
        self.probe.answered(succeeded, failed, self.settle > 0.0 || is_known, now);
    }

    /// More was wanted at `now` than the rate let through; noted once a second.
    pub fn wanted(&mut self, now: f64) {
        if (now - self.wanted_at).abs() >= 1e6 {
            self.wanted_at = now;
        }
    }

    /// The rate that holds now, in tokens per second; below 0 for none.
    pub fn rate(&self, now: f64) -> f64 {
        slower(self.curve(now), self.window.rate(now))
    }

    /// The rate of the curve, in tokens per second; below 0 while nothing is learned.
    fn curve(&self, now: f64) -> f64 {
        if self.settle <= 0.0 {
            return -1.0;
        }
        let period = self.period_s();
        let x = (((now - self.grows_from) / 1e6).max(0.0) - period) / period;
        let grown = self.settle * (1.0 + self.cut * x * x * x);
        let span = now - self.lately_from;
        let succeeds = if span >= 1e6 { self.lately * 1e6 / span } else { 0.0 };
        let is_wanted = (now - self.wanted_at).abs() < LATELY * period * 1e6;
        let most = if is_wanted { WANTED_AHEAD * self.settle.max(succeeds) } else { self.settle.max(AHEAD * succeeds) };
        grown.min(most)
    }

    /// Microseconds of refill that may be saved up under the rate: nothing under one that is a guess but what whoever comes late would
    /// lose, more of a window whose quota was told.
    pub fn depth_us(&self, now: f64) -> f64 {
        if self.settle <= 0.0 { self.window.depth_us(now) } else { LATE_US }
    }

    /// The strikes that a refusal at `now` comes after; those who were under way together count once.
    pub fn strikes_before(&self, now: f64) -> f64 {
        if self.grows_from > now { (self.strikes - 1.0).max(0.0) } else { self.strikes }
    }

    /// True if its pause after a refusal is over at `now`, and no job has succeeded since.
    pub fn is_probing(&self, now: f64) -> bool {
        self.strikes > 0.0 && self.probe.credit >= 0.0 && self.grows_from <= now
    }

    /// True once nothing of it matters any more, beside the rate of the key itself.
    pub fn is_over(&self, configured: f64, now: f64) -> bool {
        let free = self.settle <= 0.0 || (configured > 0.0 && self.rate(now) >= configured);
        self.probe.credit < 0.0 && self.window.holds_to() <= now && free
    }

    /// How long it is kept from `now` on, in milliseconds.
    pub fn keep_ms(&self, now: f64) -> f64 {
        let told = (self.window.holds_to() - now).max(0.0);
        let refused = (self.grows_from - now + KEEP_US.max(KEEP_PERIODS * 1e6 * self.period_s())).max(0.0);
        let kept = if self.settle > 0.0 || self.probe.credit >= 0.0 { told.max(refused) } else { told };
        (kept / 1000.0).ceil().clamp(1.0, 1e12)
    }

    fn period_s(&self) -> f64 {
        if self.settle > 0.0 { PERIOD_S.max(PERIOD_TOKENS / self.settle) } else { PERIOD_S }
    }
}

/// A refusal that concerned a whole throttle.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The end of its pause, unix microseconds.
    pub until: f64,
    /// How many may go at once after it.
    pub probe: Probe,
    /// Refusals in a row without a success between.
    pub strikes: f64,
    /// What was answered.
    pub why: String,
}

impl Refusal {
    /// As [`Learned::strikes_before`].
    pub fn strikes_before(&self, now: f64) -> f64 {
        if self.until > now { (self.strikes - 1.0).max(0.0) } else { self.strikes }
    }

    /// Refused at `now` until `until`, after `before`.
    pub fn again(before: Option<&Self>, now: f64, until: f64, why: &str) -> Self {
        let begun = |until: f64, strikes: f64| Self { until, probe: Probe::begin(until), strikes, why: why.to_owned() };
        match before {
            // Whoever was under way when the others were refused says nothing new.
            Some(known) if known.until > now && known.until >= until => known.clone(),
            Some(known) if known.until > now => begun(until, known.strikes),
            Some(known) => begun(until, known.strikes + 1.0),
            None => begun(until, 1.0),
        }
    }

    /// Jobs were answered at `now`; true if nothing of it matters any more.
    pub fn answered(&mut self, succeeded: f64, failed: f64, now: f64) -> bool {
        if now < self.until {
            return false;
        }
        if succeeded > 0.0 {
            self.strikes = 0.0;
        }
        self.probe.answered(succeeded, failed, true, now);
        self.probe.credit < 0.0
    }
}

#[cfg(test)]
#[path = "learned_tests.rs"]
mod tests;
