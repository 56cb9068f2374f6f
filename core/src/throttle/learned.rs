//! The law of learned rates: a quota set by another server, learned from its refusals (429) and
//! from the quota it reports.
//!
//! A refused key is paused, then one job goes first as a probe, then twice as many at a time for as
//! long as they succeed. Its rate follows the curve of CUBIC (RFC 9438, section 4.2), in which the
//! rate at which jobs really succeeded, pauses included, replaces the congestion window; while that
//! rate is a guess, it doubles, as in slow start:
//!
//! ```text
//!   settle  w    = 0.985 of the rate in force, if 0.65 of it succeeded lately (0.8 of a guess, if 0.4)
//!                = succeeded / (end of this pause - end of the pauses before)      tokens/s, otherwise
//!   period  K    = max(20 s, 20 tokens' time at w)
//!   rate    r(t) = w * (1 + c ((t - K) / K)^3)                       t seconds after the pause
//!   cut     c    = 0.03 if w is the rate in force and has moved by less than a twentieth,
//!                = 0.1 if w is the rate in force and has moved by less than a quarter,
//!                      or is the mean and has moved by less than a twentieth,
//!                      or a guess that ten seconds and twenty tokens confirm,
//!                = 0.3 if one of the two holds, if w was known before, or the server refused a
//!                      guess three times in a row;                       c >= 0.1 from K on
//!   guess   r(t) = w * 2^(t / max(4 s, 4 tokens' time at w))         otherwise
//!   limit        r <= max(w, 1.25 s) at a success rate s, because an unused rate is not learned;
//!                r <= 2 max(w, s) while jobs wait for the rate
//! ```
//!
//! The rate begins at 0.7 w, 0.9 w or 0.97 w, reaches w after K, and only then probes beyond.
//! Another client's use of the same quota thus costs one short pause in some thirty seconds. Units
//! are spaced evenly, because some servers refuse any two requests that come too close together;
//! from fifty a second down each is spaced from the time at which the one before it began, as far
//! as that was reported. `throttle.lua` contains the same law, operation by operation.

use super::RateLimit;
use super::bucket::SPACED_US;
use super::quota_window::{LATE_US, QuotaWindow};

/// The share of the rate that a refusal takes away.
const CUT: f64 = 0.3;

/// The share that a refusal takes away if the rate has moved by less than [`NEAR_KNOWN_RATE`], or
/// by less than [`SURE_KNOWN_RATE`], because little is left to find out.
const NEAR_CUT: f64 = 0.1;
const NEAR_KNOWN_RATE: f64 = 0.25;
const SURE_CUT: f64 = 0.03;
const SURE_KNOWN_RATE: f64 = 0.05;

/// The least steepness of the curve beyond `settle`, so that a sure rate still finds a raised
/// quota.
const STEEPNESS: f64 = 0.1;

/// The most that one more refusal in a row takes away, because the pause doubles.
const ROW_CUT: f64 = 0.5;

/// The part of its share that a refusal takes away however little was counted since the pause: the
/// server's window may not be over yet, which says little of the rate.
const LEAST_PART: f64 = 0.1;

/// The share of the rate in force that must have succeeded lately if the refusal is due to that
/// rate: of evenly spaced units, late workers lose up to a third.
const RATE_LIMITED_SHARE: f64 = 0.65;

/// The share of the rate in force that is taken for the server's rate when it is refused.
const RATE_FOUND_SHARE: f64 = 0.985;

/// The share by which the curve of a guess begins below `settle`, and the mark of one.
const GUESS_CUT: f64 = 0.0;

/// The time in which the rate of a guess doubles, in seconds, and in tokens at the guessed rate.
const DOUBLING_S: f64 = 4.0;
const DOUBLING_TOKENS: f64 = 4.0;

/// The share of the rate in force of a guess that must have succeeded lately, and the share of it
/// that is taken for the server's rate then.
const GUESS_LIMITED_SHARE: f64 = 0.4;
const GUESS_FOUND_SHARE: f64 = 0.8;

/// The length of a sufficient count, in microseconds: a server that counts in windows has then
/// shown a whole one. A refusal after it takes its whole share away.
const COUNTED_US: f64 = 10e6;

/// The tokens of a sufficient count. A refusal takes its whole share away after so many tokens or
/// after [`COUNTED_US`]; a guess becomes a known rate after both.
const COUNTED_TOKENS: f64 = 20.0;

/// The number of refusals in a row after which a guess is a known rate without a sufficient count.
const COUNTED_ROW: f64 = 3.0;

/// The mean part of a stated delay that is rounding, in microseconds, because delays are stated in
/// whole seconds, rounded up.
const ROUNDED_UP_US: f64 = 500_000.0;

/// The part of a period over which recent successes are counted, up to twice that.
const RECENT_PART: f64 = 0.25;

/// The limit of the curve above w, as a multiple of what succeeds.
const AHEAD_OF_SUCCESS: f64 = 1.25;

/// The limit of the curve, as a multiple of what succeeds or of w, if jobs waited for the rate
/// lately, because our own slots may have kept them from using it.
const AHEAD_WHILE_WANTED: f64 = 2.0;

/// The shortest time in which the rate returns to w, in seconds.
const PERIOD_S: f64 = 20.0;

/// The fewest tokens at the rate w in that time.
const PERIOD_TOKENS: f64 = 20.0;

/// The credit at which the probe limit ends and the rate alone decides.
const OPEN_CREDIT: f64 = 16.0;

/// The time without an answer after which the worker of a probe counts as dead and another job
/// goes, in microseconds.
const PROBE_LOST_AFTER_US: f64 = 30e6;

/// The pause after a refusal without a stated delay, in microseconds, doubled with each further
/// refusal in a row.
const FIRST_PAUSE_US: f64 = 1e6;

/// The same for a key whose rate is known, in microseconds: such a rate is refused shortly before
/// the end of the server's window.
const KNOWN_PAUSE_US: f64 = 100_000.0;

/// The shortest pause after a refusal with a stated delay, in microseconds, doubled with each
/// further refusal in a row.
const SHORTEST_PAUSE_US: f64 = 50_000.0;

/// The limit of doublings, and that for a key whose rate is known.
const MAX_DOUBLINGS: f64 = 8.0;
const MAX_KNOWN_DOUBLINGS: f64 = 11.0;

/// The limit of doublings of a guess, beyond which its successes alone limit the rate.
const MAX_DOUBLINGS_OF_GUESS: f64 = 40.0;

/// The share by which jitter may lengthen a pause; it never shortens one, because coming back early
/// earns the next refusal.
const JITTER: f64 = 0.1;

/// The least time for which learned state is kept after the last refusal, in microseconds and in
/// periods.
const KEEP_US: f64 = 600e6;
const KEEP_PERIODS: f64 = 6.0;

/// The number of jobs that may go while it is unknown if the server accepts them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeCredit {
    /// The jobs that may begin before one is answered; below 0 for no limit.
    pub credit: f64,
    /// The time of the last change, unix microseconds.
    pub at: f64,
}

impl ProbeCredit {
    /// The state without a limit.
    pub const OPEN: Self = Self {
        credit: -1.0,
        at: 0.0,
    };

    /// Allows one job from `at` on.
    pub fn begin(at: f64) -> Self {
        Self { credit: 1.0, at }
    }

    /// Returns the jobs that may go now; `None` for no limit.
    pub fn left(&self, now: f64) -> Option<f64> {
        match self.credit {
            none if none < 0.0 => None,
            spent if spent < 1.0 && (now - self.at).abs() >= PROBE_LOST_AFTER_US => Some(1.0),
            credit => Some(credit),
        }
    }

    /// Records that `units` jobs go.
    pub fn take(&mut self, units: f64, now: f64) {
        if let Some(left) = self.left(now) {
            *self = Self {
                credit: left - units,
                at: now,
            };
        }
    }

    /// Records answers: each failure makes room for one more job, each success for two.
    pub fn answered(&mut self, succeeded: f64, failed: f64, may_open: bool, now: f64) {
        if self.credit >= 0.0 {
            *self = Self {
                credit: self.credit + 2.0 * succeeded + failed,
                at: now,
            };
            if self.credit >= OPEN_CREDIT {
                *self = if may_open {
                    Self::OPEN
                } else {
                    Self {
                        credit: OPEN_CREDIT,
                        at: now,
                    }
                };
            }
        }
    }
}

/// Returns the pause after a refusal, in microseconds: the stated delay, or a back-off that begins
/// low if the rate `is_known`, with `jitter` from 0 to 1. A stated delay has a floor that doubles
/// with each refusal in a row.
pub fn pause_us(said_us: Option<f64>, strikes: f64, is_known: bool, jitter: f64) -> f64 {
    let doubled = 2.0_f64.powi(strikes.min(MAX_DOUBLINGS) as i32);
    let unstated = if is_known {
        KNOWN_PAUSE_US * 2.0_f64.powi(strikes.min(MAX_KNOWN_DOUBLINGS) as i32)
    } else {
        FIRST_PAUSE_US * doubled
    };
    let plain = said_us.map_or(unstated, |said| said.max(SHORTEST_PAUSE_US * doubled));
    (plain * (1.0 + JITTER * jitter)).floor()
}

/// A refusal of a key, with the pause that follows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyRefusal {
    /// The time of the refusal, unix microseconds.
    pub at: f64,
    /// The end of the pause, unix microseconds.
    pub until: f64,
    /// True if the server stated the delay; false if back-off gave it.
    pub is_stated: bool,
}

/// The learned state of a key that was refused or whose quota was reported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learned {
    /// The rate at which jobs succeeded until they were refused, in tokens per second; 0 while
    /// unknown.
    pub settle: f64,
    /// The end of the last pause, unix microseconds.
    pub grows_from: f64,
    /// The begin of the count of successes, unix microseconds.
    pub since: f64,
    /// The tokens of jobs that succeeded since then.
    pub done: f64,
    /// The limit of jobs that may go at once.
    pub probe: ProbeCredit,
    /// The number of pauses in a row without a success in between.
    pub strikes: f64,
    /// The number of all refusals.
    pub refused: f64,
    /// The reported quota.
    pub window: QuotaWindow,
    /// The last time at which a caller wanted more than the rate allowed, unix microseconds.
    pub wanted_at: f64,
    /// The share by which the curve begins below `settle`.
    pub cut: f64,
    /// The tokens of jobs that succeeded lately.
    pub lately: f64,
    /// The begin of the count `lately`, unix microseconds.
    pub lately_from: f64,
    /// The time at which the last job began, as far as it was reported, unix microseconds.
    pub begun: f64,
}

impl Learned {
    /// Returns the initial state at `now`.
    pub fn new(now: f64) -> Self {
        Self {
            settle: 0.0,
            grows_from: 0.0,
            since: now,
            done: 0.0,
            probe: ProbeCredit::OPEN,
            strikes: 0.0,
            refused: 0.0,
            window: QuotaWindow::NONE,
            wanted_at: 0.0,
            cut: CUT,
            lately: 0.0,
            lately_from: now,
            begun: 0.0,
        }
    }

    /// Records a refusal.
    ///
    /// `configured` is the key's own rate, 0 or below for none; only a key that `learns` gets a new
    /// rate.
    pub fn refuse(&mut self, refusal: KeyRefusal, configured: RateLimit, learns: bool) {
        self.refused += 1.0;
        // A job that was under way when the others were refused adds no information.
        if self.grows_from <= refusal.at {
            if learns {
                (self.settle, self.cut) = self.found(refusal, configured);
            }
            self.strikes += 1.0;
            self.lately = 0.0;
        }
        self.grows_from = self.grows_from.max(refusal.until);
        self.lately_from = self.grows_from;
        self.probe = ProbeCredit::begin(self.grows_from);
    }

    /// Returns the rate at which the curve settles after a refusal, and the share by which it
    /// begins below.
    fn found(&self, refusal: KeyRefusal, configured: RateLimit) -> (f64, f64) {
        let before = self.settle;
        let mean = self.mean_rate(refusal);
        // The pause was shorter than the rest of the server's window, and the mean still fits.
        if self.is_row() && self.has_known_rate() && mean >= RATE_LIMITED_SHARE * before {
            return (before.min(mean), self.cut);
        }
        // With successes near the rate in force, that rate is what the server allows. The mean
        // would count our own pause and the time below the rate, and sink with each refusal.
        let in_force = self.confirmed_rate(refusal, configured);
        let least = before * (1.0 - self.most_taken(refusal.at));
        let settle = match in_force {
            Some(rate) => rate.max(least),
            None if mean > 0.0 => mean.max(least),
            None if before > 0.0 => least,
            None => configured.rate().unwrap_or(0.0),
        };
        let cut = self.cut_after(settle, in_force.is_some());
        let settle = if settle > 0.0 {
            settle.max(1e-6)
        } else {
            settle
        };
        (settle, cut)
    }

    /// Returns true if the refusal follows another one without a success in between.
    fn is_row(&self) -> bool {
        self.strikes > 0.0
    }

    /// Returns the rate in force as the server's rate, if so much of it succeeded lately that it is
    /// the cause of the refusal.
    fn confirmed_rate(&self, refusal: KeyRefusal, configured: RateLimit) -> Option<f64> {
        let tried = match configured.rate() {
            Some(_) if self.settle > 0.0 => self.curve(refusal.at).slower(configured),
            _ => self.curve(refusal.at),
        };
        let tried = tried.number();
        // A guess doubles while it is counted, and is refused somewhere on the way.
        let (share, found) = match self.cut == GUESS_CUT {
            true => (GUESS_LIMITED_SHARE, GUESS_FOUND_SHARE),
            false => (RATE_LIMITED_SHARE, RATE_FOUND_SHARE),
        };
        let span = refusal.at - self.lately_from;
        let is_near = self.settle > 0.0
            && !self.is_row()
            && span >= 1e6
            && self.lately * 1e6 >= share * tried * span;
        // Of a stated delay the part beyond rounding counts.
        let stated = if refusal.is_stated {
            (refusal.until - refusal.at - 1e6).max(0.0)
        } else {
            0.0
        };
        is_near.then(|| tried * found * span / (span + stated))
    }

    /// Returns the mean rate of successes since the count began, 0 if there were none.
    ///
    /// The count goes on through refusals in a row: a server that counts in windows has allowed so
    /// much in all that time. Its window ends between this refusal and the end of the pause.
    fn mean_rate(&self, refusal: KeyRefusal) -> f64 {
        let KeyRefusal {
            at,
            until,
            is_stated,
        } = refusal;
        let counted_to = match () {
            () if is_stated && until - at >= 1e6 => until - ROUNDED_UP_US,
            () if is_stated => until,
            () if self.is_row() => (at + until) / 2.0,
            () => until,
        };
        let counted = counted_to - self.since;
        if self.done > 0.0 && counted > 0.0 {
            self.done * 1e6 / counted
        } else {
            0.0
        }
    }

    /// Returns the largest share that a refusal at `now` takes away, because times without work are
    /// not refusals.
    fn most_taken(&self, now: f64) -> f64 {
        if self.is_row() {
            return ROW_CUT;
        }
        if self.cut == GUESS_CUT {
            return CUT;
        }
        let span = now - self.lately_from;
        let counted = (span / COUNTED_US).max(self.lately / COUNTED_TOKENS);
        CUT * counted.clamp(LEAST_PART, 1.0)
    }

    /// Returns the share by which the curve begins below the new rate `settle`: the less, the surer
    /// that rate is.
    fn cut_after(&self, settle: f64, is_near: bool) -> f64 {
        let before = self.settle;
        let has_stayed = |share: f64| (settle - before).abs() < share * before;
        let is_same = has_stayed(NEAR_KNOWN_RATE);
        match () {
            () if is_near && has_stayed(SURE_KNOWN_RATE) => SURE_CUT,
            () if (is_near && is_same) || has_stayed(SURE_KNOWN_RATE) => NEAR_CUT,
            () if is_near || is_same || (self.is_row() && self.has_known_rate()) => CUT,
            // The key's own rate is not a guess.
            () if before == 0.0 && self.done == 0.0 => CUT,
            () => GUESS_CUT,
        }
    }

    /// Returns the share by which the curve of a guess begins below `settle` after a row of
    /// refusals.
    fn row_cut(&self) -> f64 {
        let counted = self.grows_from - self.since;
        match () {
            () if counted >= COUNTED_US && self.done >= COUNTED_TOKENS => NEAR_CUT,
            () if self.strikes >= COUNTED_ROW => CUT,
            () => GUESS_CUT,
        }
    }

    /// Records answers at `now`: `succeeded` jobs with `tokens` tokens, and `failed` jobs without a
    /// refusal. If no rate `is_known`, learned or configured, the probe limit stays.
    pub fn answered(&mut self, succeeded: f64, tokens: f64, failed: f64, is_known: bool, now: f64) {
        if now < self.grows_from {
            return;
        }
        if succeeded > 0.0 {
            if self.strikes > 0.0 {
                if self.cut == GUESS_CUT {
                    self.cut = self.row_cut();
                }
                (self.done, self.since) = (0.0, self.grows_from);
            }
            self.strikes = 0.0;
            self.done += tokens;
            let span = now - self.since;
            if span > 2e6 * self.period_s() {
                self.done /= 2.0;
                self.since = now - span / 2.0;
            }
            self.lately += tokens;
            let span = now - self.lately_from;
            if span > 2e6 * RECENT_PART * self.period_s() {
                self.lately /= 2.0;
                self.lately_from = now - span / 2.0;
            }
        }
        self.probe
            .answered(succeeded, failed, self.settle > 0.0 || is_known, now);
    }

    /// Records at `now` that the last job began so many microseconds ago.
    pub fn began(&mut self, ago_us: f64, now: f64) {
        self.begun = self.begun.max(now - ago_us).min(now);
    }

    /// Returns the time from which the next unit is spaced; `None` if units are not spaced, or the
    /// clock has stepped back since.
    ///
    /// Workers begin a job some milliseconds after its grant, now and then many. A unit that is
    /// spaced from the grant of a job that began late comes too close behind it for a server
    /// without a burst.
    pub fn spaced_from(&self, now: f64) -> Option<f64> {
        (self.depth_us(now) == 0.0 && self.begun <= now).then_some(self.begun)
    }

    /// Records at `now` that a caller wanted more than the rate allowed, at most once a second.
    pub fn wanted(&mut self, now: f64) {
        if (now - self.wanted_at).abs() >= 1e6 {
            self.wanted_at = now;
        }
    }

    /// Returns the rate in force; unlimited while nothing is known.
    pub fn rate(&self, now: f64) -> RateLimit {
        self.curve(now).slower(self.window.rate(now))
    }

    /// Returns the rate of the curve; unlimited while nothing is learned.
    fn curve(&self, now: f64) -> RateLimit {
        if self.settle <= 0.0 {
            return RateLimit::Unlimited;
        }
        let period = self.period_s();
        let age = ((now - self.grows_from) / 1e6).max(0.0);
        let grown = if self.cut == GUESS_CUT {
            let doubling = DOUBLING_S.max(DOUBLING_TOKENS / self.settle);
            self.settle * 2.0_f64.powf((age / doubling).min(MAX_DOUBLINGS_OF_GUESS))
        } else {
            let x = (age - period) / period;
            let steepness = if x > 0.0 {
                self.cut.max(STEEPNESS)
            } else {
                self.cut
            };
            self.settle * (1.0 + steepness * x * x * x)
        };
        let span = now - self.lately_from;
        let succeeds = if span >= 1e6 {
            self.lately * 1e6 / span
        } else {
            0.0
        };
        let is_wanted = (now - self.wanted_at).abs() < RECENT_PART * period * 1e6;
        let most = if is_wanted {
            AHEAD_WHILE_WANTED * self.settle.max(succeeds)
        } else {
            self.settle.max(AHEAD_OF_SUCCESS * succeeds)
        };
        RateLimit::new(grown.min(most))
    }

    /// Returns the refill that may be saved up under the rate, in microseconds: under a reported
    /// quota, what a late worker would lose, or more; under a learned rate at most that, and
    /// nothing from fifty a second down, because some servers refuse any two requests that come too
    /// close together. The curve makes up for the loss by late workers.
    pub fn depth_us(&self, now: f64) -> f64 {
        if self.settle <= 0.0 {
            self.window.depth_us(now)
        } else if self.window.holds_to() > now {
            LATE_US
        } else {
            (SPACED_US - 1e6 / self.curve(now).number()).clamp(0.0, LATE_US)
        }
    }

    /// Returns true if a rate is learned and no guess.
    pub fn has_known_rate(&self) -> bool {
        self.settle > 0.0 && self.cut != GUESS_CUT
    }

    /// Returns the strikes before a refusal at `now`; jobs that were under way together count once.
    pub fn strikes_before(&self, now: f64) -> f64 {
        if self.grows_from > now {
            (self.strikes - 1.0).max(0.0)
        } else {
            self.strikes
        }
    }

    /// Returns true if the pause after a refusal is over at `now` and no job has succeeded since.
    pub fn is_probing(&self, now: f64) -> bool {
        self.strikes > 0.0 && self.probe.credit >= 0.0 && self.grows_from <= now
    }

    /// Returns true once the state limits the key no more than its configured rate does.
    pub fn is_over(&self, configured: RateLimit, now: f64) -> bool {
        let free =
            self.settle <= 0.0 || (configured.rate().is_some() && self.rate(now) >= configured);
        self.probe.credit < 0.0 && self.window.holds_to() <= now && free
    }

    /// Returns the time for which the state is kept from `now` on, in milliseconds.
    pub fn keep_ms(&self, now: f64) -> f64 {
        let reported = (self.window.holds_to() - now).max(0.0);
        let refused =
            (self.grows_from - now + KEEP_US.max(KEEP_PERIODS * 1e6 * self.period_s())).max(0.0);
        let kept = if self.settle > 0.0 || self.probe.credit >= 0.0 {
            reported.max(refused)
        } else {
            reported
        };
        (kept / 1000.0).ceil().clamp(1.0, 1e12)
    }

    fn period_s(&self) -> f64 {
        if self.settle > 0.0 {
            PERIOD_S.max(PERIOD_TOKENS / self.settle)
        } else {
            PERIOD_S
        }
    }
}

#[cfg(test)]
#[path = "learned_tests.rs"]
mod tests;
