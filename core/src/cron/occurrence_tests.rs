use std::collections::BTreeSet;

use jiff::civil::date;
use proptest::prelude::*;

use super::*;

/// Zones with uncommon changes of the clock: by half an hour, by two hours, at midnight, at a
/// minute past, by a whole day, with winter as the exception, in months of their own.
const ZONES: [&str; 18] = [
    "UTC",
    "Europe/Berlin",
    "Europe/Dublin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Havana",
    "America/St_Johns",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Antarctica/Troll",
    "Africa/Casablanca",
    "Africa/Cairo",
    "Asia/Tehran",
    "Asia/Gaza",
    "Asia/Kathmandu",
];

fn upcoming_times(text: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
    let zone = TimeZone::get(zone).unwrap();
    let found = Expression::parse(text)
        .unwrap()
        .upcoming(&zone, after.parse().unwrap(), count);
    found
        .iter()
        .map(|at| {
            at.to_zoned(zone.clone())
                .strftime("%m-%d %H:%M%:z")
                .to_string()
        })
        .collect()
}

#[test]
fn a_time_that_the_clock_leaps_over_comes_once_at_the_end_of_the_leap() {
    let before = "2026-03-28T12:00:00Z";
    let nightly = ["03-29 03:00+02:00", "03-30 02:30+02:00"];
    assert_eq!(
        upcoming_times("30 2 * * *", "Europe/Berlin", before, 2),
        nightly
    );
    assert_eq!(
        upcoming_times("0,15,30,45 2 * * *", "Europe/Berlin", before, 2),
        ["03-29 03:00+02:00", "03-30 02:00+02:00"]
    );
    assert_eq!(
        upcoming_times("0 2,3 * * *", "Europe/Berlin", before, 2),
        ["03-29 03:00+02:00", "03-30 02:00+02:00"]
    );
    // A zone whose clock skips midnight, and an island that skipped a whole day.
    assert_eq!(
        upcoming_times("@daily", "America/Sao_Paulo", "2018-11-03T12:00:00Z", 2),
        ["11-04 01:00-02:00", "11-05 00:00-02:00"]
    );
    assert_eq!(
        upcoming_times("0 9 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z", 3),
        [
            "12-29 09:00-10:00",
            "12-31 00:00+14:00",
            "12-31 09:00+14:00"
        ]
    );
}

#[test]
fn a_time_that_the_clock_shows_twice_comes_the_first_time_only() {
    assert_eq!(
        upcoming_times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2),
        ["10-25 02:30+02:00", "10-26 02:30+01:00"]
    );
    // After the first of the two, and on the second of them.
    for after in ["2026-10-25T00:45:00Z", "2026-10-25T01:30:00Z"] {
        assert_eq!(
            upcoming_times("30 2 * * *", "Europe/Berlin", after, 1),
            ["10-26 02:30+01:00"]
        );
    }
}

#[test]
fn a_rhythm_goes_with_real_time() {
    assert_eq!(
        upcoming_times("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", 3),
        [
            "03-29 01:30+01:00",
            "03-29 03:00+02:00",
            "03-29 03:30+02:00"
        ]
    );
    assert_eq!(
        upcoming_times("*/30 * * * *", "Europe/Berlin", "2026-10-24T23:30:00Z", 5),
        [
            "10-25 02:00+02:00",
            "10-25 02:30+02:00",
            "10-25 02:00+01:00",
            "10-25 02:30+01:00",
            "10-25 03:00+01:00"
        ]
    );
    // A skipped time does not run.
    assert_eq!(
        upcoming_times("*/30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 1),
        ["03-30 02:00+02:00"]
    );
}

#[test]
fn the_second_of_asking_is_not_an_occurrence_and_a_fraction_is_no_reason_to_skip_one() {
    let zone = TimeZone::UTC;
    let every_second = Expression::parse("* * * * * *").unwrap();
    let at: Timestamp = "2026-11-20T10:00:00.5Z".parse().unwrap();
    assert_eq!(
        every_second.next_after(&zone, at),
        Some("2026-11-20T10:00:01Z".parse().unwrap())
    );
    let at: Timestamp = "2026-11-20T10:00:01Z".parse().unwrap();
    assert_eq!(
        every_second.next_after(&zone, at),
        Some("2026-11-20T10:00:02Z".parse().unwrap())
    );
}

#[test]
fn the_last_occurrence_before_a_time_is_found_however_long_ago_it_was() {
    let zone = TimeZone::get("Europe/Berlin").unwrap();
    let at = |text: &str| -> Timestamp { text.parse().unwrap() };
    let yearly = Expression::parse("@yearly").unwrap();
    let (floor, until) = (at("2000-06-01T00:00:00Z"), at("2026-11-20T00:00:00Z"));
    assert_eq!(
        yearly.last_between(&zone, floor, until),
        Some(at("2025-12-31T23:00:00Z"))
    );
    assert_eq!(
        yearly.last_between(&zone, at("2026-02-01T00:00:00Z"), until),
        None
    );
    let every_second = Expression::parse("* * * * * *").unwrap();
    assert_eq!(
        every_second.last_between(&zone, floor, at("2026-11-20T10:00:01.9Z")),
        Some(at("2026-11-20T10:00:01Z"))
    );
    assert_eq!(every_second.last_between(&zone, floor, floor), None);
}

/// The content of an expression, apart from its notation.
#[derive(Debug)]
struct ExpressionCase {
    text: String,
    minutes: BTreeSet<i8>,
    hours: BTreeSet<i8>,
    weekdays: Option<BTreeSet<i8>>,
    is_interval: bool,
}

fn some_of(range: std::ops::Range<i8>, most: usize) -> impl Strategy<Value = BTreeSet<i8>> {
    proptest::collection::btree_set(range, 1..=most)
}

fn list(of: &BTreeSet<i8>) -> String {
    of.iter().map(i8::to_string).collect::<Vec<_>>().join(",")
}

fn expression_cases() -> impl Strategy<Value = ExpressionCase> {
    let minutes = prop_oneof![
        some_of(0..60, 4).prop_map(|set| (list(&set), set)),
        (1i8..=59).prop_map(|step| {
            (
                format!("*/{step}"),
                (0..60).step_by(step as usize).collect(),
            )
        })
    ];
    let hours = prop_oneof![
        some_of(0..24, 4).prop_map(|set| (list(&set), set)),
        // The hours in which clocks are changed.
        some_of(0..4, 3).prop_map(|set| (list(&set), set)),
        (1i8..=23).prop_map(|step| (
            format!("*/{step}"),
            (0..24).step_by(step as usize).collect()
        )),
    ];
    (minutes, hours, proptest::option::of(some_of(0..7, 6))).prop_map(
        |((minute, minutes), (hour, hours), weekdays)| ExpressionCase {
            text: format!(
                "{minute} {hour} * * {}",
                weekdays.as_ref().map_or("*".to_owned(), list)
            ),
            is_interval: minute.starts_with('*') || hour.starts_with('*'),
            minutes,
            hours,
            weekdays,
        },
    )
}

impl ExpressionCase {
    fn names(&self, civil: DateTime) -> bool {
        let weekday = civil.weekday().to_sunday_zero_offset();
        self.minutes.contains(&civil.minute())
            && self.hours.contains(&civil.hour())
            && self
                .weekdays
                .as_ref()
                .is_none_or(|days| days.contains(&weekday))
    }

    /// Walks real minutes: a fixed time comes when the clock first shows it or has skipped it.
    fn occurrences(&self, zone: &TimeZone, from: Timestamp, minutes: i64) -> Vec<Timestamp> {
        let mut found = Vec::new();
        // A walk that begins in the repeated hour must know the times that were shown before.
        let head_start = 26 * 60;
        let mut furthest: Option<DateTime> = None;
        for minute in -head_start..=minutes {
            let at = from + jiff::SignedDuration::from_mins(minute);
            let civil = zone.to_datetime(at);
            let comes = if self.is_interval {
                self.names(civil)
            } else {
                let mut comes = false;
                let mut shown = furthest.map_or(civil, |last| last + 1.minute());
                while shown <= civil {
                    comes |= self.names(shown);
                    shown += 1.minute();
                }
                furthest = furthest.max(Some(civil));
                comes
            };
            if comes && minute > 0 {
                found.push(at);
            }
        }
        found
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn occurrences_are_those_that_somebody_with_a_watch_would_see(
        case in expression_cases(), zone in 0..ZONES.len(), year in 1990i16..2045, change in 0usize..3, hours_before in 0i64..60,
    ) {
        let zone = TimeZone::get(ZONES[zone]).unwrap();
        let start = zone.to_zoned(date(year, 1, 1).at(0, 0, 0, 0)).unwrap().timestamp();
        let change = zone.following(start).nth(change).map_or(start, |change| change.timestamp());
        // Some zones list a change at the end of 32 bits, which is not a whole minute.
        let from = change - jiff::SignedDuration::from_hours(hours_before) - jiff::SignedDuration::from_secs(change.as_second() % 60);
        let minutes = 4 * 24 * 60;
        let until = from + jiff::SignedDuration::from_mins(minutes);

        let expression = Expression::parse(&case.text).unwrap();
        let mut found = Vec::new();
        let mut at = from;
        while let Some(next) = expression.next_after(&zone, at).filter(|next| *next <= until) {
            prop_assert!(next > at);
            found.push(next);
            at = next;
        }

        prop_assert_eq!(&found, &case.occurrences(&zone, from, minutes), "{} after {}", &case.text, from);
        prop_assert_eq!(expression.last_between(&zone, from, until), found.last().copied());
    }

    #[test]
    fn from_any_second_the_next_occurrence_is_later_and_none_lies_between(
        case in expression_cases(), zone in 0..ZONES.len(), at in 631_152_000i64..2_524_608_000,
    ) {
        let zone = TimeZone::get(ZONES[zone]).unwrap();
        let expression = Expression::parse(&case.text).unwrap();
        let at = Timestamp::from_second(at).unwrap();
        let next = expression.next_after(&zone, at).unwrap();
        prop_assert!(next > at);
        prop_assert_eq!(expression.next_after(&zone, next - jiff::SignedDuration::from_secs(1)), Some(next));
    }
}
