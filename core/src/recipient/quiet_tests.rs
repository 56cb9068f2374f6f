use jiff::civil::{date, time};

use super::*;
use crate::recipient::changing_zones::changing_zones;

fn hours(text: &str) -> QuietHours {
    let time = |text: &str| text.parse::<Time>().unwrap();
    let (start, end) = text.split_once('-').unwrap();
    QuietHours::daily(time(start), time(end), Weekdays::ALL, BTreeSet::new()).unwrap()
}

fn rule(hours: QuietHours, zone: &str) -> QuietRule {
    QuietRule::new(hours, TimeZone::get(zone).unwrap())
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn next(rule: &QuietRule, from: &str) -> String {
    rule.next_allowed(at(from)).unwrap().to_string()
}

#[test]
fn the_next_allowed_time_is_the_next_eight_oclock_of_the_recipient() {
    for (zone, from, allowed) in [
        (
            "America/New_York",
            "2026-03-07T04:30:00Z",
            "2026-03-07T13:00:00Z",
        ),
        (
            "Europe/Berlin",
            "2026-06-10T21:00:00Z",
            "2026-06-11T06:00:00Z",
        ),
        (
            "Asia/Kolkata",
            "2026-06-10T17:00:00Z",
            "2026-06-11T02:30:00Z",
        ),
        ("UTC", "2026-06-10T08:00:00Z", "2026-06-10T08:00:00Z"),
        (
            "UTC",
            "2026-06-10T21:59:59.999Z",
            "2026-06-10T21:59:59.999Z",
        ),
        ("UTC", "2026-06-10T22:00:00Z", "2026-06-11T08:00:00Z"),
    ] {
        let rule = rule(hours("22:00-08:00"), zone);
        assert_eq!(next(&rule, from), allowed, "{zone} {from}");
    }
}

#[test]
fn a_night_with_a_change_of_the_clock_is_an_hour_shorter_or_longer() {
    let new_york = rule(hours("22:00-08:00"), "America/New_York");
    for (from, hours) in [
        ("2026-03-08T03:00:00Z", 9),
        ("2026-11-01T02:00:00Z", 11),
        ("2026-06-11T02:00:00Z", 10),
    ] {
        let allowed = new_york.next_allowed(at(from)).unwrap();
        assert_eq!(allowed.duration_since(at(from)).as_hours(), hours, "{from}");
        let before = at(from).checked_sub(SignedDuration::from_nanos(1)).unwrap();
        assert!(!new_york.is_quiet(before) && new_york.is_quiet(at(from)));
    }
}

#[test]
fn an_end_that_is_skipped_or_repeated_is_the_first_instant_outside() {
    for (zone, hours_text, from, allowed) in [
        // 02:30 is skipped: the clock goes from 02:00 to 03:00.
        (
            "America/New_York",
            "22:00-02:30",
            "2026-03-08T04:00:00Z",
            "2026-03-08T07:00:00Z",
        ),
        (
            "Europe/Berlin",
            "22:00-02:30",
            "2026-03-28T22:00:00Z",
            "2026-03-29T01:00:00Z",
        ),
        // Half an hour is skipped.
        (
            "Australia/Lord_Howe",
            "22:00-02:15",
            "2026-10-03T14:00:00Z",
            "2026-10-03T15:30:00Z",
        ),
        // 01:30 comes twice: the first one ends the hours, and then they begin again.
        (
            "America/New_York",
            "22:00-01:30",
            "2026-11-01T04:00:00Z",
            "2026-11-01T05:30:00Z",
        ),
        (
            "America/New_York",
            "22:00-01:30",
            "2026-11-01T05:59:59Z",
            "2026-11-01T05:59:59Z",
        ),
        (
            "America/New_York",
            "22:00-01:30",
            "2026-11-01T06:00:00Z",
            "2026-11-01T06:30:00Z",
        ),
        (
            "Europe/Berlin",
            "22:00-02:30",
            "2026-10-24T22:00:00Z",
            "2026-10-25T00:30:00Z",
        ),
        // At 03:10 the clock is outside although the "compatible" end were later.
        (
            "America/New_York",
            "22:00-02:30",
            "2026-03-08T07:10:00Z",
            "2026-03-08T07:10:00Z",
        ),
        // A start that is skipped: quiet from the first instant within.
        (
            "America/New_York",
            "02:15-04:00",
            "2026-03-08T07:00:00Z",
            "2026-03-08T08:00:00Z",
        ),
    ] {
        let rule = rule(hours(hours_text), zone);
        assert_eq!(next(&rule, from), allowed, "{zone} {hours_text} {from}");
    }
}

#[test]
fn the_hours_of_a_weekday_end_on_the_next_morning() {
    let span = (time(22, 0, 0, 0), time(8, 0, 0, 0));
    let friday = Weekdays::of([Weekday::Friday]);
    let hours = QuietHours::daily(span.0, span.1, friday, BTreeSet::new()).unwrap();
    let rule = rule(hours, "UTC");
    // 2026-06-12 is a Friday.
    for (from, allowed) in [
        ("2026-06-12T07:00:00Z", "2026-06-12T07:00:00Z"),
        ("2026-06-12T22:00:00Z", "2026-06-13T08:00:00Z"),
        ("2026-06-13T07:59:00Z", "2026-06-13T08:00:00Z"),
        ("2026-06-13T22:00:00Z", "2026-06-13T22:00:00Z"),
    ] {
        assert_eq!(next(&rule, from), allowed, "{from}");
    }
}

#[test]
fn whole_days_and_dates_end_at_midnight_or_with_the_hours_that_follow() {
    let weekend = Weekdays::of([Weekday::Saturday, Weekday::Sunday]);
    let holidays = BTreeSet::from([date(2026, 6, 12), date(2026, 6, 15)]);
    let days = rule(
        QuietHours::all_day(weekend, holidays.clone()).unwrap(),
        "UTC",
    );
    assert_eq!(next(&days, "2026-06-12T00:00:00Z"), "2026-06-16T00:00:00Z");
    assert_eq!(next(&days, "2026-06-11T23:59:59Z"), "2026-06-11T23:59:59Z");
    let (start, end) = (time(22, 0, 0, 0), time(8, 0, 0, 0));
    let nights = QuietHours::daily(start, end, Weekdays::ALL, holidays).unwrap();
    let nights = rule(nights, "UTC");
    assert_eq!(
        next(&nights, "2026-06-12T12:00:00Z"),
        "2026-06-13T08:00:00Z"
    );
}

#[test]
fn hours_that_are_never_or_always_quiet_are_refused() {
    let (eight, none) = (time(8, 0, 0, 0), BTreeSet::new());
    assert_eq!(
        QuietHours::daily(eight, eight, Weekdays::ALL, none.clone()),
        Err(NoHours::Empty)
    );
    assert_eq!(
        QuietHours::all_day(Weekdays::ALL, none),
        Err(NoHours::Endless)
    );
    let many = (0..367_i32)
        .map(|n| {
            date(2026, 1, 1)
                .checked_add(jiff::Span::new().days(n))
                .unwrap()
        })
        .collect();
    assert_eq!(
        QuietHours::all_day(Weekdays::of([]), many),
        Err(NoHours::TooManyDates)
    );
}

#[test]
fn a_year_of_dates_with_the_days_between_still_ends() {
    // Every weekday of 366 weekdays is a date, and every weekend is quiet.
    let weekend = Weekdays::of([Weekday::Saturday, Weekday::Sunday]);
    let days = (0..).map(|n: i32| {
        date(2026, 1, 5)
            .checked_add(jiff::Span::new().days(n))
            .unwrap()
    });
    let dates: BTreeSet<Date> = days
        .filter(|day| !weekend.contains(day.weekday()))
        .take(DATES_MAX)
        .collect();
    let last = *dates.last().unwrap();
    let rule = rule(QuietHours::all_day(weekend, dates).unwrap(), "UTC");
    let allowed = rule.next_allowed(at("2026-01-05T12:00:00Z")).unwrap();
    assert_eq!(
        TimeZone::UTC.to_datetime(allowed).date(),
        last.tomorrow().unwrap()
    );
}

#[test]
fn several_rules_allow_what_each_of_them_allows() {
    let quiet = Quiet(vec![
        rule(hours("22:00-08:00"), "Europe/Berlin"),
        rule(hours("07:30-10:00"), "UTC"),
    ]);
    let awake = quiet.next_allowed(at("2026-06-10T21:00:00Z"));
    assert_eq!(awake.at, Some(at("2026-06-11T06:00:00Z")));
    assert_eq!(awake.rule.unwrap().name, "22:00-08:00 Europe/Berlin");
    let awake = quiet.next_allowed(at("2026-06-11T07:45:00Z"));
    assert_eq!(awake.rule.unwrap().name, "07:30-10:00 UTC");
    let most = SignedDuration::from_hours(2);
    assert_eq!(
        quiet.allowed_for(at("2026-06-11T06:00:00Z"), most),
        SignedDuration::from_mins(90)
    );
    let never = Quiet(vec![
        rule(hours("20:00-08:00"), "UTC"),
        rule(hours("08:00-20:00"), "UTC"),
    ]);
    assert_eq!(never.next_allowed(at("2026-06-11T07:45:00Z")).at, None);
}

/// The clock test, written apart from the code: minutes of the day.
fn is_quiet_by_the_clock(zone: &TimeZone, at: Timestamp, (start, end): (i32, i32)) -> bool {
    let clock = zone.to_datetime(at);
    let minute = i32::from(clock.hour()) * 60 + i32::from(clock.minute());
    if start < end {
        start <= minute && minute < end
    } else {
        minute >= start || minute < end
    }
}

/// In every zone that changes its clock in 2025 to 2027, around every change: the next allowed time
/// is the first minute, found by looking at each, at which the clock is outside.
#[test]
fn the_next_allowed_time_is_that_of_scanning_each_minute_in_every_zone() {
    const WINDOWS: [(i32, i32); 6] = [
        (22 * 60, 8 * 60),
        (22 * 60, 2 * 60 + 30),
        (60 + 15, 2 * 60 + 15),
        (23 * 60 + 45, 30),
        (0, 90),
        (21 * 60, 60 + 30),
    ];
    let minute = SignedDuration::from_mins(1);
    let (zones, clocks) = changing_zones();
    let mut compared = 0;
    for (zone, changes) in &clocks {
        let name = zone.iana_name();
        for (n, change) in changes.iter().enumerate() {
            // Each window at a third of the changes, so that a zone sees all six.
            for (start, end) in WINDOWS.into_iter().skip(n % 3).step_by(3) {
                let clock = |minute: i32| time((minute / 60) as i8, (minute % 60) as i8, 0, 0);
                let hours =
                    QuietHours::daily(clock(start), clock(end), Weekdays::ALL, BTreeSet::new());
                let rule = QuietRule::new(hours.unwrap(), zone.clone());
                let first = change.checked_sub(SignedDuration::from_hours(10)).unwrap();
                let times = std::iter::successors(Some(first), |at| at.checked_add(minute).ok());
                let times: Vec<Timestamp> = times.take(34 * 60).collect();
                let quiet: Vec<bool> = times
                    .iter()
                    .map(|at| is_quiet_by_the_clock(zone, *at, (start, end)))
                    .collect();
                let mut allowed = None;
                for (n, at) in times.iter().enumerate().rev() {
                    if !quiet[n] {
                        allowed = Some(*at);
                    }
                    // The end of what was scanned knows no answer.
                    let Some(allowed) = allowed.filter(|_| n % 7 == 0) else {
                        continue;
                    };
                    compared += 1;
                    assert_eq!(rule.is_quiet(*at), quiet[n], "{name:?} {at}");
                    assert_eq!(
                        rule.next_allowed(*at),
                        Some(allowed),
                        "{name:?} {at} {start}-{end}"
                    );
                }
            }
        }
    }
    // Every time maps to the first allowed one at or after it, so the mapping is idempotent and
    // monotone.
    assert!(zones > 150 && compared > 50_000, "{zones} {compared}");
}
