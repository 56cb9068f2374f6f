//! The quota that a server reports, and the pace at which it lasts: the requests left until
//! a given time.
//!
//! Most servers report the end of their window in whole seconds, rounded up, some a second later
//! still. Counted again from each answer, such an end would run away, and half of a quota counted
//! per second would stay unused. So while the rest shrinks, the earliest reported end holds. If
//! more is left before that end, the window began again earlier than reported, and the following
//! ends are taken to be late by as much. Windows last whole seconds, so the end of the next one is
//! a number of whole seconds after the earliest reported end of this one:
//!
//! ```text
//!   pace = (left + 0.5) / (end - now)      the answered request used the start of the first part
//! ```
//!
//! After the window its first pace holds for as long again, until the next report, so that a window
//! never begins with a burst. If nothing is left, the key rests until the end, but no longer than a
//! minute; then one job runs at a time, one a minute, because a server's report must not stop a
//! lane for longer than it takes to ask again. `throttle.lua` contains the same law.

use super::RateLimit;

/// The delay of a worker that costs it nothing, in microseconds.
pub const LATE_US: f64 = 10_000.0;

/// The distance in microseconds beyond which rounding of a reported end does not matter.
const ROUNDED_US: f64 = 60e6;

/// The limit in microseconds by which an end reported in whole seconds moves within one window.
const DRIFT_US: f64 = 2e6;

/// The least lateness in microseconds at which the end of a new window follows from that of the one
/// before, and the part of a second by which it may then be earlier than reported. Below a quarter,
/// a server's window may have begun with our request; close to one, the new report is the more
/// exact.
const TOLD_LATE_US: f64 = 150_000.0;
const EARLIER_US: std::ops::RangeInclusive<f64> = 250_000.0..=900_000.0;

/// The share of a window's use that must be back before it counts as a new window.
const REFILLED_SHARE: f64 = 0.25;

/// The share of a window's reported length that must have passed before it counts as a new window,
/// because answers overtake each other.
const ELAPSED: f64 = 0.3;

/// The share of a reported time that may be rounding.
const MAX_LATE_SHARE: f64 = 0.67;

/// The longest rest that a report may cause, in microseconds.
const REST_US: f64 = 60e6;

/// The lowest pace that a report may cause, in tokens per second.
pub(super) const SLOWEST: f64 = 1.0 / 60.0;

/// The last report and the state of its window. Times are unix microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuotaWindow {
    /// The pace at which the rest of the quota lasts, in tokens per second.
    pub pace: f64,
    /// The reported end of the window.
    pub ends: f64,
    /// The requests left.
    pub left: f64,
    /// The requests left when the window began; below 0 if its end needs no correction.
    pub most: f64,
    /// The begin of the window, as far as known.
    pub from: f64,
    /// The time by which reported ends are late, in microseconds.
    pub late: f64,
    /// The first pace of the window, in tokens per second; below 0 for none.
    pub first: f64,
    /// The time of the last report.
    pub reported_at: f64,
}

impl QuotaWindow {
    /// The state before any report.
    pub const NONE: Self = Self {
        pace: 0.0,
        ends: 0.0,
        left: 0.0,
        most: -1.0,
        from: 0.0,
        late: 0.0,
        first: -1.0,
        reported_at: 0.0,
    };

    /// Records a report at `now`: `left` tokens are left for `reset_us` microseconds, of which at
    /// most `most_us` count.
    pub fn observe(&mut self, left: f64, reset_us: f64, most_us: f64, now: f64) {
        let ends = now + reset_us.min(most_us);
        if reset_us % 1e6 != 0.0 || reset_us > ROUNDED_US || reset_us > most_us {
            let pace = (left * 1e6 / reset_us).max(SLOWEST);
            *self = Self {
                pace,
                ends,
                left,
                from: now,
                reported_at: now,
                ..Self::NONE
            };
            return;
        }
        let is_known = self.most >= 0.0 && now < self.holds_to();
        let is_back = left >= self.left + (self.most - self.left) * REFILLED_SHARE
            && now - self.from >= ELAPSED * (self.ends - self.from);
        let is_same = is_known && now < self.ends && !is_back && ends <= self.ends + DRIFT_US;
        if is_same {
            self.ends = self.ends.min(ends);
            self.left = self.left.min(left);
            // The window was taken to be over but is not.
            if now >= self.ends - self.late {
                self.late /= 2.0;
            }
        } else {
            self.late = match () {
                () if !is_known => 0.0,
                () if now < self.ends && is_back => (self.late + self.ends - now) / 2.0,
                () => self.late / 2.0,
            };
            self.late = self.late.min(MAX_LATE_SHARE * reset_us);
            let apart = ends - self.ends;
            let earlier = apart - (apart / 1e6).floor() * 1e6;
            let is_earlier = is_known && self.late >= TOLD_LATE_US && EARLIER_US.contains(&earlier);
            let ends = if is_earlier { ends - earlier } else { ends };
            self.first = if is_known { self.first } else { -1.0 };
            (self.from, self.most, self.left, self.ends) = (now, left, left, ends);
        }
        self.reported_at = now;
        self.pace = ((self.left + 0.5) * 1e6 / (self.end() - now).max(1000.0)).max(SLOWEST);
        if !is_same && left >= 1.0 {
            self.first = self.pace;
        } else if is_same && self.first > 0.0 {
            self.pace = self.pace.min(2.0 * self.first);
        }
    }

    /// Returns the rate in force: unlimited without a report, stopped during a rest.
    pub fn rate(&self, now: f64) -> RateLimit {
        match () {
            () if now >= self.holds_to() => RateLimit::Unlimited,
            () if now >= self.ends => RateLimit::new(self.first),
            () if self.left >= 1.0 => RateLimit::new(self.pace),
            () if self.first > 0.0 && now >= self.end() => RateLimit::new(self.first),
            () if (now - self.reported_at).abs() < REST_US => RateLimit::Stopped,
            () => RateLimit::PerSecond(SLOWEST),
        }
    }

    /// Returns the end of a rest, unix microseconds.
    pub fn rests_to(&self) -> f64 {
        let end = if self.first > 0.0 {
            self.end()
        } else {
            self.ends
        };
        end.min(self.reported_at + REST_US)
    }

    /// Returns the assumed end of the window, unix microseconds.
    fn end(&self) -> f64 {
        if self.ends - self.late > self.reported_at {
            self.ends - self.late
        } else {
            self.ends
        }
    }

    /// Returns the end of the report's validity, unix microseconds.
    pub fn holds_to(&self) -> f64 {
        if self.first > 0.0 {
            self.ends + (self.ends - self.from).max(0.0)
        } else {
            self.ends
        }
    }

    /// Returns the refill that may be saved up, in microseconds: a tenth of the rest of the window,
    /// but no less than a late worker would lose.
    pub fn depth_us(&self, now: f64) -> f64 {
        if self.left < 1.0 {
            LATE_US
        } else {
            ((self.ends - self.late - now) / 10.0).max(LATE_US)
        }
    }
}

#[cfg(test)]
#[path = "quota_window_tests.rs"]
mod tests;
