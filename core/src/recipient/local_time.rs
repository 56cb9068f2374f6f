//! Times of the recipient's clock that senders name.
//!
//! There is one definition. The instant of a date and a time is the first one at which the clock of
//! the zone shows them, or later ones: where the clock leaps over them, it is the instant after the
//! leap, and where it shows them twice, the first.

use std::fmt;

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::quiet::clock_time;
use crate::cron::occurrence::instant;

/// The form of these times, for messages; `flyball.is_local_time` checks the same.
pub const FORM: &str = "a time of the recipient's clock as HH:MM, or as YYYY-MM-DDTHH:MM of the years 2000 to 2999, such as 09:00 or 2026-12-01T09:00";

/// The time for which a clock shows an hour and a minute: a message that comes then is not late.
const MINUTE: SignedDuration = SignedDuration::from_mins(1);

/// The days whose times may be the next one: the clock may have shown today's or tomorrow's already.
const DAYS: usize = 4;

/// A time of the recipient's clock, in minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalTime {
    /// The next time at which the clock shows an hour and a minute.
    Next(Time),
    /// An hour and a minute of a date.
    On(DateTime),
}

impl LocalTime {
    /// Reads `HH:MM` or `YYYY-MM-DDTHH:MM`.
    pub fn parse(text: &str) -> Option<Self> {
        let Some((date, time)) = text.split_once('T') else {
            return clock(text).map(Self::Next);
        };
        let mut parts = date.splitn(3, '-');
        let mut number = |digits| decimal(parts.next()?, digits);
        let (year, month, day) = (number(4)?, number(2)?, number(2)?);
        // A date of another age is a mistake, and would go at once or never.
        let year = Some(year).filter(|year| (2000..3000).contains(year))?;
        let (month, day) = (i8::try_from(month).ok()?, i8::try_from(day).ok()?);
        let date = jiff::civil::Date::new(year, month, day).ok()?;
        Some(Self::On(date.to_datetime(clock(time)?)))
    }

    /// Returns the instant at which a message goes that was accepted at `accepted`, or that may go
    /// from then on. It can be in the past; `None` if time ends before.
    ///
    /// It is the same however often and however late it is asked for.
    pub fn instant(self, zone: &TimeZone, accepted: Timestamp) -> Option<Timestamp> {
        let time = match self {
            Self::On(civil) => return instant(zone, civil),
            Self::Next(time) => time,
        };
        let passed = accepted.checked_sub(MINUTE).unwrap_or(Timestamp::MIN);
        let yesterday = zone.to_datetime(accepted).date().yesterday().ok();
        let days = std::iter::successors(yesterday, |day| day.tomorrow().ok()).take(DAYS);
        let mut shown = days.filter_map(|day| instant(zone, day.to_datetime(time)));
        shown.find(|at| *at > passed)
    }
}

impl fmt::Display for LocalTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Next(time) => f.write_str(&clock_time(*time)),
            Self::On(civil) => write!(f, "{}T{}", civil.date(), clock_time(civil.time())),
        }
    }
}

/// A time of the recipient's clock with its instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalInstant {
    pub time: LocalTime,
    pub at: Timestamp,
}

impl LocalInstant {
    /// Returns a time with its instant in a zone, as [`LocalTime::instant`] does.
    pub fn of(time: LocalTime, zone: &TimeZone, accepted: Timestamp) -> Option<Self> {
        let at = time.instant(zone, accepted)?;
        Some(Self { time, at })
    }

    /// Returns the rule as people see it, such as `09:00 Europe/Berlin`.
    pub fn rule(&self, zone: &TimeZone) -> String {
        format!("{} {}", self.time, zone.iana_name().unwrap_or("UTC"))
    }
}

/// Reads a time of day, such as `09:00`.
pub(super) fn clock(text: &str) -> Option<Time> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text| i8::try_from(decimal(text, 2)?).ok();
    Time::new(number(hour)?, number(minute)?, 0, 0).ok()
}

/// Reads a number of so many digits.
fn decimal(text: &str, digits: usize) -> Option<i16> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
#[path = "local_time_tests.rs"]
mod tests;
