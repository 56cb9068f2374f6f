//! Cron expressions: the times of day and the days that they name. Pure, without time zone or
//! clock.

use jiff::ToSpan as _;
use jiff::civil::{Date, DateTime, Time, time};

/// The longest expression, in bytes.
pub const MAX_BYTES: usize = 256;

/// The years in which a matching day is searched; a 29 February on a given weekday can be 40 years
/// away.
const HORIZON_YEARS: i16 = 100;

/// The allowed forms of a whole expression.
const SHAPE: &str = "5 fields (minute, hour, day of month, month, day of week), 6 with the second in front, or one of \
     @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually";

/// An error in an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct BadExpression {
    /// The field: `second`, `minute`, `hour`, `day of month`, `month`, `day of week`, or
    /// `expression` for the whole.
    pub field: &'static str,
    /// The problem, and the allowed values.
    pub message: String,
}

/// A parsed cron expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    seconds: u64,
    minutes: u64,
    hours: u64,
    /// Bits 1 to 31, and bit 0 for the last day of the month.
    days: u64,
    months: u64,
    /// Bits 0 (Sunday) to 6.
    weekdays: u64,
    /// Bits 1 to 5 for the first to fifth of each weekday in the month, bit 0 for the last.
    nth: [u8; 7],
    /// True if both day fields are restricted, so that either suffices, as in Vixie's cron.
    either_day: bool,
    /// True if a field of the time of day begins with `*`.
    interval: bool,
}

/// A field: its name, its range, and the names of its numbers.
struct Field {
    name: &'static str,
    low: u8,
    high: u8,
    /// The names of the numbers from `low` on.
    words: &'static [&'static str],
    allowed: &'static str,
}

const SECOND: Field = Field {
    name: "second",
    low: 0,
    high: 59,
    words: &[],
    allowed: "0 to 59",
};
const MINUTE: Field = Field {
    name: "minute",
    low: 0,
    high: 59,
    words: &[],
    allowed: "0 to 59",
};
const HOUR: Field = Field {
    name: "hour",
    low: 0,
    high: 23,
    words: &[],
    allowed: "0 to 23",
};
const DAY: Field = Field {
    name: "day of month",
    low: 1,
    high: 31,
    words: &[],
    allowed: "1 to 31, L for the last day",
};
const MONTH: Field = Field {
    name: "month",
    low: 1,
    high: 12,
    words: &[
        "january",
        "february",
        "march",
        "april",
        "may",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
    ],
    allowed: "1 to 12 or JAN to DEC",
};
const WEEKDAY: Field = Field {
    name: "day of week",
    low: 0,
    high: 6,
    words: &[
        "sunday",
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
        "saturday",
    ],
    allowed: "0 to 7 (0 and 7 are Sunday) or SUN to SAT, MON#2 for the second Monday of a month, 5L for its last Friday",
};

impl Field {
    fn bad(&self, what: impl std::fmt::Display) -> BadExpression {
        let allowed = self.allowed;
        let message = format!(
            "{what}; allowed: {allowed}, * for all, lists (1,3), ranges (1-5), steps (*/2)"
        );
        BadExpression {
            field: self.name,
            message,
        }
    }

    /// Returns the number that a name or a numeral denotes.
    fn value(&self, text: &str) -> Result<u8, BadExpression> {
        // Sunday is both 0 and 7.
        let high = if self.name == WEEKDAY.name {
            7
        } else {
            self.high
        };
        let word = text.to_ascii_lowercase();
        if let Some(at) = self
            .words
            .iter()
            .position(|full| *full == word || full[..3] == word)
        {
            return Ok(self.low + at as u8);
        }
        let is_numeral = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse::<u8>() {
            Ok(value) if is_numeral && (self.low..=high).contains(&value) => Ok(value),
            _ if is_numeral => Err(self.bad(format_args!("{text} is out of range"))),
            _ => Err(self.bad(format_args!("{text:?} is not a value"))),
        }
    }

    /// Returns one element of a list as bits.
    fn item(&self, text: &str) -> Result<u64, BadExpression> {
        let (range, step) = match text.split_once('/') {
            Some((range, step)) => (range, Some(self.step(text, step)?)),
            None => (text, None),
        };
        let (low, high) = if range == "*" {
            (self.low, self.high)
        } else if let Some((from, to)) = range.split_once('-') {
            let (low, mut high) = (self.value(from)?, self.value(to)?);
            // A week may end with Sunday.
            if self.name == WEEKDAY.name && high == 0 && low > 0 {
                high = 7;
            }
            if low > high {
                return Err(self.bad(format_args!(
                    "the range {range} runs backwards; write it as two ranges"
                )));
            }
            (low, high)
        } else {
            let value = self.value(range)?;
            (
                value,
                if step.is_some() {
                    self.high.max(value)
                } else {
                    value
                },
            )
        };
        Ok((low..=high)
            .step_by(step.unwrap_or(1))
            .fold(0, |bits, value| bits | 1 << value))
    }

    fn step(&self, item: &str, text: &str) -> Result<usize, BadExpression> {
        let most = usize::from(self.high - self.low);
        match text.parse::<usize>() {
            Ok(step)
                if (1..=most).contains(&step) && text.bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                Ok(step)
            }
            // As a minute, `*/90` would silently mean "at minute 0".
            _ => Err(self.bad(format_args!(
                "the step {text:?} of {item:?} is not a whole number from 1 to {most}"
            ))),
        }
    }

    fn list(
        &self,
        text: &str,
        mut each: impl FnMut(&str) -> Result<(), BadExpression>,
    ) -> Result<(), BadExpression> {
        for item in text.split(',') {
            if item.is_empty() {
                return Err(self.bad(format_args!("{text:?} has an empty element")));
            }
            each(item)?;
        }
        Ok(())
    }

    fn set(&self, text: &str) -> Result<u64, BadExpression> {
        let mut bits = 0;
        self.list(text, |item| {
            bits |= self.item(item)?;
            Ok(())
        })?;
        Ok(bits)
    }
}

impl Expression {
    /// Parses an expression.
    ///
    /// ```
    /// # use flyball_core as flyball;
    /// use flyball::cron::Expression;
    /// assert!(Expression::parse("30 2 * * MON-FRI").is_ok());
    /// let error = Expression::parse("61 2 * * *").unwrap_err().to_string();
    /// assert!(error.starts_with("minute: 61 is out of range; allowed: 0 to 59"), "{error}");
    /// ```
    pub fn parse(text: &str) -> Result<Self, BadExpression> {
        let whole = |message: String| BadExpression {
            field: "expression",
            message,
        };
        if text.len() > MAX_BYTES {
            return Err(whole(format!(
                "has {} bytes; allowed: at most {MAX_BYTES}",
                text.len()
            )));
        }
        let text = match text.trim() {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            at if at.starts_with('@') => {
                return Err(whole(format!("{at:?} is not known; allowed: {SHAPE}")));
            }
            fields => fields,
        };
        let parts: Vec<&str> = text.split_ascii_whitespace().collect();
        let (second, [minute, hour, day, month, weekday]) = match parts[..] {
            [minute, hour, day, month, weekday] => ("0", [minute, hour, day, month, weekday]),
            [second, minute, hour, day, month, weekday] => {
                (second, [minute, hour, day, month, weekday])
            }
            _ => {
                return Err(whole(format!(
                    "has {} fields; allowed: {SHAPE}",
                    parts.len()
                )));
            }
        };
        let (seconds, minutes, hours) = (SECOND.set(second)?, MINUTE.set(minute)?, HOUR.set(hour)?);
        let (days, months) = (days_of(any(day))?, MONTH.set(month)?);
        let (weekdays, nth) = weekdays_of(any(weekday))?;
        Ok(Self {
            seconds,
            minutes,
            hours,
            days,
            months,
            weekdays,
            nth,
            either_day: !any(day).starts_with('*') && !any(weekday).starts_with('*'),
            interval: [second, minute, hour]
                .iter()
                .any(|field| field.starts_with('*')),
        })
    }

    /// Returns true if a field of the time of day begins with `*`.
    ///
    /// Such an expression names a rhythm, which goes on through changes of the clock; any other
    /// names times of day, each of which happens once a day.
    pub fn is_interval(&self) -> bool {
        self.interval
    }

    /// Returns the first matching time at or after `from`, on a calendar without changes of the
    /// clock; `None` if there is none within a hundred years.
    pub fn at_or_after(&self, from: DateTime) -> Option<DateTime> {
        let (mut date, mut start) = (from.date(), from.time());
        let last_year = date.year().saturating_add(HORIZON_YEARS);
        while date.year() <= last_year {
            if self.months & 1 << date.month() == 0 {
                date = date.first_of_month().checked_add(1.month()).ok()?;
            } else if let Some(time) = self
                .is_day(date)
                .then(|| self.time_at_or_after(start))
                .flatten()
            {
                return Some(date.to_datetime(time));
            } else {
                date = date.tomorrow().ok()?;
            }
            start = Time::midnight();
        }
        None
    }

    fn is_day(&self, date: Date) -> bool {
        let (day, last) = (date.day(), date.days_in_month());
        let by_number = self.days & 1 << day != 0 || (self.days & 1 != 0 && day == last);
        let weekday = date.weekday().to_sunday_zero_offset() as usize;
        let nth = self.nth[weekday];
        let by_place = nth & 1 << ((day - 1) / 7 + 1) != 0 || (nth & 1 != 0 && day > last - 7);
        let by_weekday = self.weekdays & 1 << weekday != 0 || by_place;
        if self.either_day {
            by_number || by_weekday
        } else {
            by_number && by_weekday
        }
    }

    fn time_at_or_after(&self, start: Time) -> Option<Time> {
        let mut hour = next_bit(self.hours, start.hour())?;
        let mut floor = if hour == start.hour() {
            (start.minute(), start.second())
        } else {
            (0, 0)
        };
        loop {
            let minute = next_bit(self.minutes, floor.0);
            let second = minute.and_then(|minute| {
                next_bit(self.seconds, if minute == floor.0 { floor.1 } else { 0 })
            });
            match (minute, second) {
                (Some(minute), Some(second)) => return Some(time(hour, minute, second, 0)),
                // The minute matches, but its seconds have passed.
                (Some(minute), None) => floor = (minute + 1, 0),
                (None, _) => {
                    hour = next_bit(self.hours, hour + 1)?;
                    floor = (0, 0);
                }
            }
        }
    }
}

/// Replaces `?`, which some write for "any day", with `*`.
fn any(field: &str) -> &str {
    if field == "?" { "*" } else { field }
}

fn days_of(text: &str) -> Result<u64, BadExpression> {
    let mut bits = 0;
    DAY.list(text, |item| {
        bits |= if item.eq_ignore_ascii_case("l") {
            1
        } else {
            DAY.item(item)?
        };
        Ok(())
    })?;
    Ok(bits)
}

fn weekdays_of(text: &str) -> Result<(u64, [u8; 7]), BadExpression> {
    let (mut bits, mut nth) = (0, [0; 7]);
    WEEKDAY.list(text, |item| {
        if let Some((day, place)) = item.split_once('#') {
            let place = place
                .parse::<u8>()
                .ok()
                .filter(|place| (1..=5).contains(place));
            let place = place
                .ok_or_else(|| WEEKDAY.bad(format_args!("{item:?} must end with #1 to #5")))?;
            nth[usize::from(WEEKDAY.value(day)? % 7)] |= 1 << place;
        } else if let Some(day) = item.strip_suffix(['l', 'L']).filter(|day| !day.is_empty()) {
            nth[usize::from(WEEKDAY.value(day)? % 7)] |= 1;
        } else {
            bits |= WEEKDAY.item(item)?;
        }
        Ok(())
    })?;
    // 7 is Sunday too.
    Ok(((bits | bits >> 7) & 0x7f, nth))
}

/// Returns the lowest set bit at or above `from`.
fn next_bit(bits: u64, from: i8) -> Option<i8> {
    let rest = bits.checked_shr(u32::from(from.unsigned_abs()))?;
    (rest != 0).then(|| from + rest.trailing_zeros() as i8)
}

#[cfg(test)]
#[path = "expression_tests.rs"]
mod tests;
