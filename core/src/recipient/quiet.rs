//! Quiet hours: the times of a recipient's clock at which nothing goes out.
//!
//! There is one definition. A time is quiet if the clock of the zone shows a time within the hours,
//! and the next allowed time is the first instant at which it does not. A clock that is put forward
//! or back within the hours can end them early, or begin them again.

use std::collections::BTreeSet;

use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// The most dates of one recipient.
pub const DATES_MAX: usize = 366;

/// The longest search for an allowed time: longer than all dates with a weekday between each two.
const HORIZON: SignedDuration = SignedDuration::from_hours(24 * 366 * 8);

/// The steps from zone to zone after which several rules never allow a time together.
const ROUNDS_MAX: usize = 4096;

/// The treatment of a message that comes in quiet hours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuietMode {
    /// It waits.
    #[default]
    Hold,
    /// It waits, and three or more become one digest.
    DigestOnWake,
    /// It ends unsent.
    Drop,
    /// It goes all the same.
    Always,
}

/// The modes and their names.
pub const QUIET_MODES: [(&str, QuietMode); 4] = [
    ("hold", QuietMode::Hold),
    ("digest_on_wake", QuietMode::DigestOnWake),
    ("drop", QuietMode::Drop),
    ("always", QuietMode::Always),
];

/// The held messages of one recipient, channel and category that become one digest on waking.
pub const COALESCED_MIN: usize = 3;

/// Days of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weekdays(u8);

impl Weekdays {
    pub const ALL: Self = Self(0b111_1111);

    /// Returns the set of some days.
    pub fn of(days: impl IntoIterator<Item = Weekday>) -> Self {
        Self(days.into_iter().fold(0, |bits, day| bits | bit(day)))
    }

    pub fn contains(self, day: Weekday) -> bool {
        self.0 & bit(day) != 0
    }
}

fn bit(day: Weekday) -> u8 {
    1 << day.to_monday_zero_offset()
}

/// A description of hours that are never or always quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHours {
    /// The start is the end, and it is not said that the days are quiet as a whole.
    Empty,
    /// All days of all weeks are quiet.
    Endless,
    /// More dates than [`DATES_MAX`].
    TooManyDates,
}

/// The hours of a clock that are quiet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuietHours {
    /// The start and the end, exclusive; over midnight if the end is the earlier.
    span: Option<(Time, Time)>,
    /// The weekdays on which the span begins, or that are quiet as a whole if there is no span.
    weekdays: Weekdays,
    /// Days that are quiet as a whole.
    dates: BTreeSet<Date>,
}

impl QuietHours {
    /// Returns the hours from `start` until `end` that begin on some weekdays, and some dates that
    /// are quiet as a whole.
    pub fn daily(
        start: Time,
        end: Time,
        weekdays: Weekdays,
        dates: BTreeSet<Date>,
    ) -> Result<Self, NoHours> {
        if start == end {
            return Err(NoHours::Empty);
        }
        Self::checked(Some((start, end)), weekdays, dates)
    }

    /// Returns whole weekdays and dates.
    pub fn all_day(weekdays: Weekdays, dates: BTreeSet<Date>) -> Result<Self, NoHours> {
        if weekdays == Weekdays::ALL {
            return Err(NoHours::Endless);
        }
        Self::checked(None, weekdays, dates)
    }

    fn checked(
        span: Option<(Time, Time)>,
        weekdays: Weekdays,
        dates: BTreeSet<Date>,
    ) -> Result<Self, NoHours> {
        if dates.len() > DATES_MAX {
            return Err(NoHours::TooManyDates);
        }
        Ok(Self {
            span,
            weekdays,
            dates,
        })
    }

    /// Returns true if a time of the clock is quiet.
    fn covers(&self, civil: DateTime) -> bool {
        let (date, time) = (civil.date(), civil.time());
        let is_begun = |date: Date| self.weekdays.contains(date.weekday());
        let by_hours = match self.span {
            None => is_begun(date),
            Some((start, end)) if start < end => start <= time && time < end && is_begun(date),
            Some((start, end)) => {
                let since_yesterday = || date.yesterday().is_ok_and(is_begun);
                (time >= start && is_begun(date)) || (time < end && since_yesterday())
            }
        };
        by_hours || self.dates.contains(&date)
    }

    /// Returns the next time of the clock at which hours or days can begin or end.
    fn edge_after(&self, civil: DateTime) -> Option<DateTime> {
        let times = self
            .span
            .map_or([None, None], |(start, end)| [Some(start), Some(end)]);
        let later = times
            .into_iter()
            .flatten()
            .filter(|time| *time > civil.time());
        match later.min() {
            Some(time) => Some(civil.date().to_datetime(time)),
            None => Some(civil.date().tomorrow().ok()?.to_datetime(Time::midnight())),
        }
    }

    /// Returns the first instant from `from` to `until` at which being quiet is as `wanted`.
    ///
    /// Between two changes of the clock its times are instants, so it is enough to look at the
    /// edges of the hours within each such stretch.
    fn first(
        &self,
        zone: &TimeZone,
        from: Timestamp,
        until: Timestamp,
        wanted: bool,
    ) -> Option<Timestamp> {
        let mut begin = from;
        while begin <= until {
            let offset = zone.to_offset(begin);
            let ends = zone
                .following(begin)
                .next()
                .map(|change| change.timestamp());
            let mut civil = offset.to_datetime(begin);
            loop {
                let at = offset.to_timestamp(civil).ok()?;
                if ends.is_some_and(|ends| at >= ends) {
                    break;
                }
                if at > until {
                    return None;
                }
                if self.covers(civil) == wanted {
                    return Some(at);
                }
                civil = self.edge_after(civil)?;
            }
            begin = ends?;
        }
        None
    }
}

/// Quiet hours by the clock of a zone.
#[derive(Clone, Debug, PartialEq)]
pub struct QuietRule {
    /// The rule as people see it, such as `22:00-08:00 Europe/Berlin`.
    pub name: String,
    pub hours: QuietHours,
    pub zone: TimeZone,
}

impl QuietRule {
    /// Returns the rule of some hours in a zone.
    pub fn new(hours: QuietHours, zone: TimeZone) -> Self {
        let place = zone.iana_name().unwrap_or("UTC");
        let name = match hours.span {
            Some((start, end)) => {
                format!("{}-{} {place}", clock_time(start), clock_time(end))
            }
            None => format!("whole days {place}"),
        };
        Self { name, hours, zone }
    }

    /// Returns true if the clock shows a quiet time at an instant.
    pub fn is_quiet(&self, at: Timestamp) -> bool {
        self.hours.covers(self.zone.to_datetime(at))
    }

    /// Returns the first instant, not before `at`, that is not quiet.
    pub fn next_allowed(&self, at: Timestamp) -> Option<Timestamp> {
        let until = at.checked_add(HORIZON).unwrap_or(Timestamp::MAX);
        self.hours.first(&self.zone, at, until, false)
    }

    /// Returns the first quiet instant from `at` until `until`.
    fn next_quiet(&self, at: Timestamp, until: Timestamp) -> Option<Timestamp> {
        self.hours.first(&self.zone, at, until, true)
    }
}

/// Writes a time of day, such as `09:00`.
pub(super) fn clock_time(time: Time) -> String {
    format!("{:02}:{:02}", time.hour(), time.minute())
}

/// All rules that hold for a message: a time is quiet if it is by any of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quiet(pub Vec<QuietRule>);

/// The end of quiet hours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Awake<'a> {
    /// The first instant that is not quiet; `None` if the rules together allow none.
    pub at: Option<Timestamp>,
    /// The rule that ends last; `None` if the time that was asked for is not quiet.
    pub rule: Option<&'a QuietRule>,
}

impl Quiet {
    pub fn is_quiet(&self, at: Timestamp) -> bool {
        self.0.iter().any(|rule| rule.is_quiet(at))
    }

    /// Returns the first instant, not before `at`, that is quiet by no rule.
    pub fn next_allowed(&self, at: Timestamp) -> Awake<'_> {
        let mut awake = Awake {
            at: Some(at),
            rule: None,
        };
        for _ in 0..ROUNDS_MAX {
            let Some(at) = awake.at else { break };
            let Some(rule) = self.0.iter().find(|rule| rule.is_quiet(at)) else {
                return awake;
            };
            awake = Awake {
                at: rule.next_allowed(at),
                rule: Some(rule),
            };
        }
        Awake { at: None, ..awake }
    }

    /// Returns the time for which an allowed time `at` lasts, at most `most`.
    pub fn allowed_for(&self, at: Timestamp, most: SignedDuration) -> SignedDuration {
        let Ok(until) = at.checked_add(most) else {
            return SignedDuration::ZERO;
        };
        let ends = self.0.iter().filter_map(|rule| rule.next_quiet(at, until));
        ends.min().map_or(most, |ends| ends.duration_since(at))
    }
}

#[cfg(test)]
#[path = "quiet_tests.rs"]
mod tests;
