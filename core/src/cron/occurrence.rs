//! Occurrences of an expression in a time zone. Pure.
//!
//! The rule for changes of the clock is that of Vixie's cron. An expression of fixed times of day
//! (no field of the time begins with `*`) runs each of its times once: a time that the clock skips
//! runs at the first instant after the gap, and several of them together run once; a time that the
//! clock repeats runs the first time only. An expression that names a rhythm (`*/15 * * * *`,
//! `0 * * * *`) follows real time: a skipped time does not run, and a repeated one runs twice.

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan as _};

use super::Expression;

/// Stretches of constant offset to search: more than a zone has in a hundred years.
const STRETCHES_MAX: usize = 1000;

impl Expression {
    /// Returns the first occurrence after `after`; `None` if there is none within a hundred years.
    pub fn next_after(&self, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
        let after = whole(after)?;
        if self.is_interval() {
            self.next_of_rhythm(zone, after)
        } else {
            self.next_of_times(zone, after)
        }
    }

    /// Returns the next `count` occurrences after `after`.
    pub fn upcoming(&self, zone: &TimeZone, after: Timestamp, count: usize) -> Vec<Timestamp> {
        std::iter::successors(self.next_after(zone, after), |last| {
            self.next_after(zone, *last)
        })
        .take(count)
        .collect()
    }

    /// Returns the last occurrence after `floor` and not after `until`.
    pub fn last_between(
        &self,
        zone: &TimeZone,
        floor: Timestamp,
        until: Timestamp,
    ) -> Option<Timestamp> {
        let follows = |at: i64| {
            let at = Timestamp::from_second(at).ok()?;
            self.next_after(zone, at).filter(|next| *next <= until)
        };
        // As long as an occurrence follows before `until`, the last one lies further on.
        let (mut low, mut high) = (whole(floor)?.as_second(), whole(until)?.as_second());
        let mut last = follows(low)?;
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            match follows(middle) {
                Some(later) => (low, last) = (middle, later),
                None => high = middle,
            }
        }
        Some(last)
    }

    /// Walks the calendar: every matching time has one instant, and later times have no earlier
    /// instants.
    fn next_of_times(&self, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
        let mut from = second_after(zone.to_datetime(after))?;
        loop {
            let civil = self.at_or_after(from)?;
            let at = instant(zone, civil)?;
            if at > after {
                return Some(at);
            }
            from = second_after(civil)?;
        }
    }

    /// Walks real time, from one stretch of constant offset to the next.
    fn next_of_rhythm(&self, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
        let mut from = after.checked_add(1.second()).ok()?;
        // A time that exists only inside gaps must not be searched for ever.
        for _ in 0..STRETCHES_MAX {
            let offset = zone.to_offset(from);
            let civil = self.at_or_after(offset.to_datetime(from))?;
            let at = offset.to_timestamp(civil).ok()?;
            match zone.following(from).next().map(|change| change.timestamp()) {
                Some(ends) if at >= ends => from = ends,
                _ => return Some(at),
            }
        }
        None
    }
}

/// Returns the one instant of a date and a time: the first of two, and the end of the gap for a
/// skipped one. So it is the first at which the clock shows this time or a later one.
pub(crate) fn instant(zone: &TimeZone, civil: DateTime) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(civil).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(civil).ok(),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(civil).ok(),
        AmbiguousOffset::Gap { after, .. } => {
            // With the later offset, the time lies before the gap by less than the length of the
            // gap.
            let before_the_leap = after.to_timestamp(civil).ok()?;
            let mut changes = zone
                .following(before_the_leap)
                .map(|change| change.timestamp());
            changes.find(|at| zone.to_datetime(*at) >= civil)
        }
    }
}

/// Returns the second that contains `at`.
fn whole(at: Timestamp) -> Option<Timestamp> {
    let second = at.as_nanosecond().div_euclid(1_000_000_000);
    Timestamp::from_second(i64::try_from(second).ok()?).ok()
}

fn second_after(civil: DateTime) -> Option<DateTime> {
    civil.checked_add(1.second()).ok()
}

#[cfg(test)]
#[path = "occurrence_tests.rs"]
mod tests;
