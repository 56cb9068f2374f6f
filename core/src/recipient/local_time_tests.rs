use jiff::civil::Date;

use super::*;
use crate::recipient::changing_zones::changing_zones;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn instant(time: &str, zone: &str, accepted: &str) -> String {
    let zone = TimeZone::get(zone).unwrap();
    let time = LocalTime::parse(time).unwrap();
    time.instant(&zone, at(accepted)).unwrap().to_string()
}

#[test]
fn a_time_is_read_and_written_in_its_own_form() {
    for text in [
        "00:00",
        "09:05",
        "23:59",
        "2026-12-01T09:00",
        "2028-02-29T00:01",
    ] {
        let read = LocalTime::parse(text).unwrap();
        assert_eq!(read.to_string(), text);
    }
    for text in [
        "",
        "9:00",
        "24:00",
        "09:60",
        "09:00:00",
        "+9:00",
        "09-00",
        "2026-12-01",
        "2026-12-01 09:00",
        "2026-13-01T09:00",
        "2026-02-29T09:00",
        "1999-12-01T09:00",
        "3000-01-01T09:00",
        "2026-12-1T09:00",
        "2026-12-01T9:00",
        "2026-12-01T09:00Z",
        "26-12-01T09:00",
        "２026-12-01T09:00",
    ] {
        assert_eq!(LocalTime::parse(text), None, "{text}");
    }
}

#[test]
fn the_next_nine_oclock_is_that_of_the_recipient() {
    for (zone, accepted, goes) in [
        ("UTC", "2026-06-10T08:59:59Z", "2026-06-10T09:00:00Z"),
        ("UTC", "2026-06-10T09:01:00Z", "2026-06-11T09:00:00Z"),
        (
            "Europe/Berlin",
            "2026-06-10T08:00:00Z",
            "2026-06-11T07:00:00Z",
        ),
        (
            "America/New_York",
            "2026-06-10T08:00:00Z",
            "2026-06-10T13:00:00Z",
        ),
        (
            "Asia/Kolkata",
            "2026-06-10T03:31:00Z",
            "2026-06-11T03:30:00Z",
        ),
        (
            "Pacific/Kiritimati",
            "2026-06-10T18:59:00Z",
            "2026-06-10T19:00:00Z",
        ),
    ] {
        assert_eq!(instant("09:00", zone, accepted), goes, "{zone} {accepted}");
    }
}

/// A schedule that makes messages at nine makes them a little later.
#[test]
fn a_message_that_comes_while_the_clock_shows_its_time_is_not_late() {
    for accepted in ["2026-06-10T09:00:00Z", "2026-06-10T09:00:59.999Z"] {
        assert_eq!(instant("09:00", "UTC", accepted), "2026-06-10T09:00:00Z");
    }
}

#[test]
fn a_time_of_a_date_may_have_passed() {
    let time = "2026-12-01T09:00";
    for accepted in ["2026-06-10T08:00:00Z", "2027-06-10T08:00:00Z"] {
        assert_eq!(
            instant(time, "Asia/Tokyo", accepted),
            "2026-12-01T00:00:00Z"
        );
    }
}

#[test]
fn a_time_that_the_clock_leaps_over_is_the_instant_after_the_leap() {
    for (time, zone, accepted, goes) in [
        (
            "02:30",
            "America/New_York",
            "2026-03-08T05:00:00Z",
            "2026-03-08T07:00:00Z",
        ),
        (
            "2026-03-29T02:00",
            "Europe/Berlin",
            "2026-01-01T00:00:00Z",
            "2026-03-29T01:00:00Z",
        ),
        // Half an hour, and a day that had no midnight.
        (
            "02:15",
            "Australia/Lord_Howe",
            "2026-10-03T12:00:00Z",
            "2026-10-03T15:30:00Z",
        ),
        (
            "00:10",
            "Africa/Cairo",
            "2026-04-23T12:00:00Z",
            "2026-04-23T22:00:00Z",
        ),
    ] {
        assert_eq!(instant(time, zone, accepted), goes, "{time} {zone}");
    }
}

#[test]
fn a_time_that_the_clock_shows_twice_is_the_first_one() {
    let (time, zone) = ("01:30", "America/New_York");
    assert_eq!(
        instant(time, zone, "2026-11-01T04:00:00Z"),
        "2026-11-01T05:30:00Z"
    );
    // After the first one the day has no other.
    assert_eq!(
        instant(time, zone, "2026-11-01T05:40:00Z"),
        "2026-11-02T06:30:00Z"
    );
    let of_date = "2026-10-25T02:30";
    assert_eq!(
        instant(of_date, "Europe/Berlin", "2026-01-01T00:00:00Z"),
        "2026-10-25T00:30:00Z"
    );
}

/// In every zone that changes its clock in 2025 to 2027, around every change: the instant is the
/// first minute, found by looking at each, at which the clock shows the time or a later one.
#[test]
fn the_instant_is_that_of_scanning_each_minute_in_every_zone() {
    const TIMES: [i8; 12] = [0, 1, 15, 16, 30, 45, 60, 75, 90, 105, 119, 120];
    let begin = at("2025-01-01T00:00:00Z");
    let (zones, clocks) = changing_zones();
    let mut compared = 0;
    for (zone, changes) in &clocks {
        let name = zone.iana_name();
        for (n, change) in changes.iter().enumerate() {
            let first = change.checked_sub(SignedDuration::from_hours(52)).unwrap();
            let times = std::iter::successors(Some(first), |at| at.checked_add(MINUTE).ok());
            let times: Vec<(Timestamp, DateTime)> = times
                .take(104 * 60)
                .map(|at| (at, zone.to_datetime(at)))
                .collect();
            let scanned = |civil: DateTime| times.iter().find(|(_, shown)| *shown >= civil);
            // The hours around the change, on the clock of before.
            let around = times[50 * 60].1;
            for minute in TIMES.into_iter().skip(n % 3).step_by(3) {
                let later = SignedDuration::from_mins(2 * i64::from(minute));
                let time = around.checked_add(later).unwrap().time();
                let days: Vec<Timestamp> = dates(times[0].1.date(), 5)
                    .into_iter()
                    .map(|day| day.to_datetime(time))
                    .filter(|civil| times[0].1 < *civil)
                    .filter_map(|civil| {
                        let at = scanned(civil)?.0;
                        let of_date = LocalTime::On(civil).instant(zone, begin);
                        assert_eq!(of_date, Some(at), "{name:?} {civil}");
                        Some(at)
                    })
                    .collect();
                for (accepted, _) in times.iter().skip(1440).step_by(7) {
                    let waits = |at: &&Timestamp| accepted.duration_since(**at) < MINUTE;
                    // The end of what was scanned knows no answer.
                    let Some(goes) = days.iter().find(waits) else {
                        continue;
                    };
                    let next = LocalTime::Next(time).instant(zone, *accepted);
                    assert_eq!(next, Some(*goes), "{name:?} {accepted} {time}");
                    // Whoever is accepted until then goes with it.
                    let until = LocalTime::Next(time).instant(zone, *goes);
                    assert_eq!(until, Some(*goes), "{name:?} {goes} {time}");
                    compared += 1;
                }
            }
        }
    }
    assert!(zones > 150 && compared > 50_000, "{zones} {compared}");
}

fn dates(first: Date, days: usize) -> Vec<Date> {
    let dates = std::iter::successors(Some(first), |day| day.tomorrow().ok());
    dates.take(days).collect()
}
