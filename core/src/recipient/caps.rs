//! Caps: at most so many messages to one recipient within a window, by several rules at once.
//!
//! For rules of at most `m` within `w`, and the times `s` of `n` messages, oldest first:
//!
//! ```text
//!   next(s, t) = the latest of t and, for each rule, s[n - m] + w
//! ```
//!
//! Messages that went and reservations of messages that wait are two lists. A send looks at the
//! first alone, so no delay of others can break a rule; a plan looks at both, so that messages that
//! wait get different times. Times are whole unix seconds: a message is judged at the second that
//! has begun and noted at the second that ends it, so that no window is shorter than its rule says.

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use serde::Serialize;

/// The form of a cap, for messages.
pub const FORM: &str = "a number of messages from 1 to 1000 and a time of at most 366 days, such as \"2 per 24h\" or \"3 per local_day\"; units: s, m, h, d, w";

/// The form of the sender's own cap, for messages.
pub const SENDERS_FORM: &str = "a number of messages from 1 to 1000 and a time of at most 31 days, such as \"2 per 24h\" or \"3 per local_day\"; units: s, m, h, d, w";

/// The longest window of the sender's own cap, in seconds: 31 days. Nobody knows the windows of
/// senders beforehand, so sends are kept for this time in any case.
pub const SENDERS_LONGEST_S: i64 = 31 * 86_400;

/// The most messages that a rule can allow.
const MESSAGES_MAX: u32 = 1000;

/// The longest window, in seconds: 366 days.
const LONGEST_S: i64 = 366 * 86_400;

/// The units of a window, in seconds.
const UNITS: [(char, i64); 5] = [
    ('s', 1),
    ('m', 60),
    ('h', 3600),
    ('d', 86_400),
    ('w', 604_800),
];

/// The word for the recipient's day, with which the text of such a rule ends.
pub(super) const LOCAL_DAY: &str = "local_day";

/// The window of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapWindow {
    /// Any span of so many seconds.
    Rolling(i64),
    /// The calendar day of the recipient.
    LocalDay,
}

/// At most so many messages within a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapRule {
    /// Its name in answers, such as `per_day`.
    pub name: String,
    /// The most messages.
    pub most: u32,
    pub window: CapWindow,
}

impl CapRule {
    /// Parses a rule such as `2 per 24h`; `None` for anything else than [`FORM`].
    pub fn parse(name: &str, text: &str) -> Option<Self> {
        let (most, window) = text.split_once(" per ")?;
        let digits = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|_| is_number)
        };
        let most = digits(most.trim()).filter(|most| (1..=MESSAGES_MAX).contains(most))?;
        let window = match window.trim() {
            LOCAL_DAY => CapWindow::LocalDay,
            text => {
                let (_, unit) = UNITS.iter().find(|(unit, _)| text.ends_with(*unit))?;
                let count = i64::from(digits(&text[..text.len() - 1])?);
                let span_s = count.checked_mul(*unit)?;
                let fits = (1..=LONGEST_S).contains(&span_s);
                CapWindow::Rolling(Some(span_s).filter(|_| fits)?)
            }
        };
        Some(Self {
            name: name.to_owned(),
            most,
            window,
        })
    }

    /// Returns the length of the window, in seconds; that of a day can be 25 hours.
    pub fn span_s(&self) -> i64 {
        match self.window {
            CapWindow::Rolling(span_s) => span_s,
            CapWindow::LocalDay => 2 * 86_400,
        }
    }

    /// Returns the first second, not before `t`, at which one more message may go.
    fn next(&self, times: &[i64], t: i64, zone: &TimeZone) -> i64 {
        let Some(at) = times.len().checked_sub(self.most as usize) else {
            return t;
        };
        match self.window {
            CapWindow::Rolling(span_s) => t.max(times[at] + span_s),
            CapWindow::LocalDay => match local_day(t, zone) {
                (midnight, next_midnight) if times[at] >= midnight => next_midnight,
                _ => t,
            },
        }
    }

    /// Returns true if one more message may go at `t` beside all of these times, earlier and later.
    fn has_room(&self, times: &[i64], t: i64, zone: &TimeZone) -> bool {
        let most = self.most as usize;
        match self.window {
            // Each window of the rule that holds `t` has fewer than the most.
            CapWindow::Rolling(span_s) => {
                let near: Vec<i64> = times
                    .iter()
                    .copied()
                    .filter(|at| (at - t).abs() < span_s)
                    .collect();
                let before = near.partition_point(|at| *at <= t);
                let with = [&near[..before], &[t], &near[before..]].concat();
                with.windows(most + 1)
                    .all(|window| window[most] - window[0] >= span_s)
            }
            CapWindow::LocalDay => {
                let (begin, end) = local_day(t, zone);
                let counted = times.iter().filter(|at| (begin..end).contains(*at));
                counted.count() < most
            }
        }
    }

    /// Returns the messages that may still go at `t` beside all of these times, earlier and later.
    fn remaining(&self, times: &[i64], t: i64, zone: &TimeZone) -> u32 {
        let within = |begin: i64, end: i64| {
            let counted = times.iter().filter(|at| (begin..end).contains(*at));
            counted.count()
        };
        let counted = match self.window {
            // The fullest window that holds `t` begins with it, or with a message before it.
            CapWindow::Rolling(span_s) => {
                let begins = times.iter().filter(|at| (t - span_s + 1..=t).contains(*at));
                let each = begins
                    .chain([&t])
                    .map(|begin| within(*begin, begin + span_s));
                each.max().unwrap_or_default()
            }
            CapWindow::LocalDay => {
                let (begin, end) = local_day(t, zone);
                within(begin, end)
            }
        };
        self.most
            .saturating_sub(u32::try_from(counted).unwrap_or(u32::MAX))
    }
}

impl std::fmt::Display for CapRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} per ", self.most)?;
        match self.window {
            CapWindow::LocalDay => f.write_str(LOCAL_DAY),
            CapWindow::Rolling(span_s) => {
                let (unit, length) = UNITS
                    .iter()
                    .rev()
                    .find(|(_, length)| span_s % length == 0)
                    .unwrap_or(&UNITS[0]);
                write!(f, "{}{unit}", span_s / length)
            }
        }
    }
}

/// The answer to the question whether a message may go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct CapCheck {
    /// True if a message may go now.
    pub allowed: bool,
    /// The messages that may go now.
    pub remaining: u32,
    /// The time at which a message may go: now, or when the oldest that counts leaves its window.
    pub reset_at: Timestamp,
    /// The rule that makes it wait longest, or else the one with the fewest remaining.
    pub rule: String,
}

/// A time that a plan gives to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapPlan<'a> {
    /// The second at which it may go.
    pub at_s: i64,
    /// The rule that makes it wait; `None` if it may go at the time that was asked for.
    pub rule: Option<&'a CapRule>,
}

/// The rules that hold together for the messages of one list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapRules(pub Vec<CapRule>);

impl CapRules {
    /// Returns the number of sends to keep: twice the highest count, so that a send that is given
    /// back uncovers no gap.
    pub fn keep(&self) -> usize {
        let most = self.0.iter().map(|rule| rule.most).max();
        2 * most.unwrap_or(0) as usize
    }

    /// Returns the first second, not before `t`, at which one more message may go.
    pub fn next(&self, times: &[i64], t: i64, zone: &TimeZone) -> i64 {
        self.binding(times, t, zone).at_s
    }

    /// Returns the time to tell to a message that is not to go before `t`.
    ///
    /// A message that finds a place at `t` takes it; any other goes behind the last reservation.
    pub fn plan(&self, sent: &[i64], reserved: &[i64], t: i64, zone: &TimeZone) -> CapPlan<'_> {
        let mut both = [sent, reserved].concat();
        both.sort_unstable();
        let first = self.binding(&both, t, zone);
        let last = reserved.iter().copied().fold(t, i64::max);
        if first.at_s == t || last == t {
            return first;
        }
        if self.0.iter().all(|rule| rule.has_room(&both, t, zone)) {
            return CapPlan {
                at_s: t,
                rule: None,
            };
        }
        let behind = self.binding(&both, last, zone);
        CapPlan {
            rule: behind.rule.or(first.rule),
            ..behind
        }
    }

    /// Notes a send that begins at `now` if the rules allow it, and returns the second to give back
    /// if it comes to nothing; else returns the first second at which it may go.
    pub fn take(
        &self,
        sent: &mut Vec<i64>,
        now: Timestamp,
        zone: &TimeZone,
    ) -> Result<i64, CapPlan<'_>> {
        let plan = self.binding(sent, judged_at(now), zone);
        if plan.rule.is_some() {
            return Err(plan);
        }
        // A clock that steps back leaves the order as it is.
        let at_s = sent.last().copied().unwrap_or(i64::MIN).max(noted_at(now));
        let keep = self.keep().max(1);
        sent.drain(..(sent.len() + 1).saturating_sub(keep).min(sent.len()));
        sent.push(at_s);
        Ok(at_s)
    }

    /// Returns the state of each rule beside messages that wait for later, without using it.
    pub fn checks(
        &self,
        sent: &[i64],
        reserved: &[i64],
        now: Timestamp,
        zone: &TimeZone,
    ) -> Vec<CapCheck> {
        let t = judged_at(now);
        let both = [sent, reserved].concat();
        let check = |rule: &CapRule| {
            let alone = Self(vec![rule.clone()]);
            let next = alone.plan(sent, reserved, t, zone).at_s;
            let (remaining, reset_at) = match next == t {
                true => (rule.remaining(&both, t, zone), now),
                false => (0, time_of(next)),
            };
            CapCheck {
                allowed: next == t,
                remaining,
                reset_at,
                rule: rule.name.clone(),
            }
        };
        self.0.iter().map(check).collect()
    }

    /// Returns the state of all rules together; `None` if there is no rule.
    pub fn check(&self, sent: &[i64], now: Timestamp, zone: &TimeZone) -> Option<CapCheck> {
        let checks = self.checks(sent, &[], now, zone);
        let remaining = checks.iter().map(|check| check.remaining).min()?;
        let binding = checks
            .into_iter()
            .max_by_key(|check| (check.reset_at, std::cmp::Reverse(check.remaining)))?;
        Some(CapCheck {
            remaining,
            ..binding
        })
    }

    fn binding(&self, times: &[i64], t: i64, zone: &TimeZone) -> CapPlan<'_> {
        let mut plan = CapPlan {
            at_s: t,
            rule: None,
        };
        // The day is judged at the time that the other rules allow.
        let is_day = |rule: &&CapRule| rule.window == CapWindow::LocalDay;
        let spans = self.0.iter().filter(|rule| !is_day(rule));
        for rule in spans.chain(self.0.iter().filter(is_day)) {
            let at_s = rule.next(times, plan.at_s, zone);
            if at_s > plan.at_s {
                plan = CapPlan {
                    at_s,
                    rule: Some(rule),
                };
            }
        }
        plan
    }
}

/// Gives back the slot of a send that came to nothing; another at the same second stays.
pub fn give_back(sent: &mut Vec<i64>, at_s: i64) {
    if let Some(at) = sent.iter().rposition(|time| *time == at_s) {
        sent.remove(at);
    }
}

/// Returns the second by which a send is judged: the one that has begun.
pub fn judged_at(now: Timestamp) -> i64 {
    now.as_nanosecond().div_euclid(1_000_000_000) as i64
}

/// Returns the second under which a send is noted: the one that ends its own.
pub fn noted_at(now: Timestamp) -> i64 {
    -((-now.as_nanosecond()).div_euclid(1_000_000_000) as i64)
}

/// Returns a second as a time.
pub(super) fn time_of(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(Timestamp::MAX)
}

/// Returns the begin and the end of the local day around a second.
///
/// A clock that is put back over midnight ends the day at the first of the two.
fn local_day(t: i64, zone: &TimeZone) -> (i64, i64) {
    let date = zone.to_datetime(time_of(t)).date();
    let midnight = |days: i64| {
        let date = date.checked_add(days.days()).ok()?;
        let midnight = date.to_zoned(zone.clone()).ok()?;
        Some(midnight.timestamp().as_second())
    };
    let midnights = || (-1..=2).filter_map(midnight);
    (
        midnights().filter(|at| *at <= t).max().unwrap_or(i64::MIN),
        midnights().filter(|at| *at > t).min().unwrap_or(i64::MAX),
    )
}

#[cfg(test)]
#[path = "caps_tests.rs"]
mod tests;
