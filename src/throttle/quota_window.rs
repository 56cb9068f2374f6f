//! What a server tells of its quota: so much is left until then, and at which pace that lasts.
//!
//! Most servers tell the end of their window in whole seconds, rounded up, some a second later still. Counted from each answer anew such
//! an end runs away, and of a quota that is counted from second to second half would be left unused. So while less and less is left,
//! the earliest end that was told holds; and where more is left before that end, the window began anew earlier than was told, and the
//! next ends are taken to be late by as much:
//!
//! ```text
//!   pace = (left + 0.5) / (end - now)      the request that was just answered took the beginning of the first part
//! ```
//!
//! When the window is over its first pace holds for as long again, until an answer tells anew: nobody begins a window with a burst.
//! Where nothing is left the key rests until the end, and no longer than a minute: then one job goes at a time, one a minute, for the
//! word of a server must not stop a lane for longer than it takes to ask again. The same law stands in `throttle.lua`.

/// Who comes so late, in microseconds, loses nothing.
pub const LATE_US: f64 = 10_000.0;

/// Ends that are farther away, in microseconds, are told exactly enough.
const ROUNDED_US: f64 = 60e6;

/// An end that is told in whole seconds moves by less than this within one window, in microseconds.
const DRIFT_US: f64 = 2e6;

/// Of what was used since a window began, so much must be back before it counts as a new one,
const BACK: f64 = 0.25;

/// and of the time that it was told to last so much must be over: answers overtake each other.
const ELAPSED: f64 = 0.3;

/// The share of a told time that may be rounding.
const MOST_LATE: f64 = 0.67;

/// Nothing that is told stops a key for longer, in microseconds,
const REST_US: f64 = 60e6;

/// or slows it down further, in tokens per second.
pub(super) const SLOWEST: f64 = 1.0 / 60.0;

/// What was told, last and in its window. Times are unix microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuotaWindow {
    /// The pace at which what is left lasts, in tokens per second.
    pub pace: f64,
    /// The end of the window, as it was told.
    pub ends: f64,
    /// What is left.
    pub left: f64,
    /// What was left when the window began; below 0 where its end needs no care.
    pub most: f64,
    /// When it began, as far as is known.
    pub from: f64,
    /// By how much ends were told too late, in microseconds.
    pub late: f64,
    /// The pace with which it began; below 0 for none.
    pub first: f64,
    /// When it was last told of.
    pub told_at: f64,
}

impl QuotaWindow {
    /// Nothing was told.
    pub const NONE: Self = Self { pace: 0.0, ends: 0.0, left: 0.0, most: -1.0, from: 0.0, late: 0.0, first: -1.0, told_at: 0.0 };

    /// At `now` it was told that `left` tokens are left for `reset_us` microseconds, of which no more than `most_us` count.
    pub fn told(&mut self, left: f64, reset_us: f64, most_us: f64, now: f64) {
        let ends = now + reset_us.min(most_us);
        if reset_us % 1e6 != 0.0 || reset_us > ROUNDED_US || reset_us > most_us {
            let pace = (left * 1e6 / reset_us).max(SLOWEST);
            *self = Self { pace, ends, left, from: now, told_at: now, ..Self::NONE };
            return;
        }
        let is_known = self.most >= 0.0 && now < self.holds_to();
        let is_back = left >= self.left + (self.most - self.left) * BACK && now - self.from >= ELAPSED * (self.ends - self.from);
        let is_same = is_known && now < self.ends && !is_back && ends <= self.ends + DRIFT_US;
        if is_same {
            self.ends = self.ends.min(ends);
            self.left = self.left.min(left);
            // It was taken to be over, and is not.
            if now >= self.ends - self.late {
                self.late /= 2.0;
            }
        } else {
            self.late = match () {
                () if !is_known => 0.0,
                () if now < self.ends && is_back => (self.late + self.ends - now) / 2.0,
                () => self.late / 2.0,
            };
            self.late = self.late.min(MOST_LATE * reset_us);
            self.first = if is_known { self.first } else { -1.0 };
            (self.from, self.most, self.left, self.ends) = (now, left, left, ends);
        }
        self.told_at = now;
        self.pace = ((self.left + 0.5) * 1e6 / (self.end() - now).max(1000.0)).max(SLOWEST);
        if !is_same && left >= 1.0 {
            self.first = self.pace;
        } else if is_same && self.first > 0.0 {
            self.pace = self.pace.min(2.0 * self.first);
        }
    }

    /// The rate that holds now, in tokens per second; below 0 for none, 0 for a rest.
    pub fn rate(&self, now: f64) -> f64 {
        match () {
            () if now >= self.holds_to() => -1.0,
            () if now >= self.ends => self.first,
            () if self.left >= 1.0 => self.pace,
            () if self.first > 0.0 && now >= self.end() => self.first,
            () if (now - self.told_at).abs() < REST_US => 0.0,
            () => SLOWEST,
        }
    }

    /// The end of a rest.
    pub fn rests_to(&self) -> f64 {
        let end = if self.first > 0.0 { self.end() } else { self.ends };
        end.min(self.told_at + REST_US)
    }

    /// When the window is believed to end.
    fn end(&self) -> f64 {
        if self.ends - self.late > self.told_at { self.ends - self.late } else { self.ends }
    }

    /// Until then what was told matters.
    pub fn holds_to(&self) -> f64 {
        if self.first > 0.0 { self.ends + (self.ends - self.from).max(0.0) } else { self.ends }
    }

    /// Microseconds of refill that may be saved up: a tenth of the rest of the window, and no less than what whoever comes late would
    /// lose.
    pub fn depth_us(&self, now: f64) -> f64 {
        if self.left < 1.0 { LATE_US } else { ((self.ends - self.late - now) / 10.0).max(LATE_US) }
    }
}

#[cfg(test)]
#[path = "quota_window_tests.rs"]
mod tests;
