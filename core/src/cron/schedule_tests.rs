use serde_json::json;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn due(expression: &str, next_at: &str, now: &str, catch_up: CatchUp) -> Vec<String> {
    let timing = Timing::new(expression, "UTC").unwrap();
    timing
        .due(at(next_at), at(now), catch_up)
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn after_a_downtime_one_run_stands_for_all_that_were_missed() {
    let missed = due(
        "0 2 * * *",
        "2026-11-17T02:00:00Z",
        "2026-11-20T17:00:00Z",
        CatchUp::One,
    );
    assert_eq!(missed, ["2026-11-20T02:00:00Z"]);
    let missed = due(
        "* * * * *",
        "2026-11-20T16:50:00Z",
        "2026-11-20T17:00:10Z",
        CatchUp::One,
    );
    assert_eq!(missed, ["2026-11-20T17:00:00Z"]);
}

#[test]
fn all_that_were_missed_run_if_that_is_asked_for_up_to_a_hundred() {
    let missed = due(
        "0 2 * * *",
        "2026-11-17T02:00:00Z",
        "2026-11-20T17:00:00Z",
        CatchUp::All,
    );
    assert_eq!(missed.len(), 4);
    let missed = due(
        "* * * * * *",
        "2016-11-17T02:00:00Z",
        "2026-11-20T17:00:00Z",
        CatchUp::All,
    );
    assert_eq!(
        (missed.len(), missed[0].as_str(), missed[99].as_str()),
        (100, "2026-11-20T16:58:21Z", "2026-11-20T17:00:00Z")
    );
}

#[test]
fn missed_occurrences_are_forgotten_if_that_is_asked_for_and_late_ones_are_not() {
    assert!(
        due(
            "0 2 * * *",
            "2026-11-17T02:00:00Z",
            "2026-11-20T17:00:00Z",
            CatchUp::None
        )
        .is_empty()
    );
    let late = due(
        "0 2 * * *",
        "2026-11-20T02:00:00Z",
        "2026-11-20T02:00:59Z",
        CatchUp::None,
    );
    assert_eq!(late, ["2026-11-20T02:00:00Z"]);
}

#[test]
fn occurrences_that_are_only_a_little_late_all_run() {
    for catch_up in [CatchUp::One, CatchUp::All, CatchUp::None] {
        assert_eq!(
            due(
                "* * * * * *",
                "2026-11-20T17:00:01Z",
                "2026-11-20T17:00:03.2Z",
                catch_up
            )
            .len(),
            3
        );
        assert!(
            due(
                "* * * * * *",
                "2026-11-20T17:00:04Z",
                "2026-11-20T17:00:03.2Z",
                catch_up
            )
            .is_empty()
        );
    }
}

#[test]
fn everything_that_is_wrong_with_a_schedule_is_reported_at_once() {
    let job = NewJob {
        unique_key: Some("mine".into()),
        ..NewJob::new("http", json!({}))
    };
    let wrong = NewSchedule::new("a b", "0 25 * * *", job)
        .time_zone("Europe/Atlantis")
        .catch_up(CatchUp::All);
    let fields: Vec<&str> = wrong
        .problems()
        .iter()
        .map(|problem| problem.field)
        .collect();
    assert_eq!(
        fields,
        ["name", "expression", "time_zone", "catch_up", "unique_key"]
    );

    let both = Timing::problems("0 0 30 2 *", "Europe/Atlantis");
    let fields: Vec<&str> = both.iter().map(|problem| problem.field).collect();
    assert_eq!(fields, ["expression", "time_zone"]);
    assert_eq!(Timing::problems("@daily", "Europe/Berlin"), []);
    for zone in ["localtime", "Factory", "posixrules", "posix/UTC"] {
        assert_eq!(Timing::problems("@daily", zone).len(), 1, "{zone}");
        assert!(Timing::checked("@daily", zone).is_err(), "{zone}");
    }

    let zone = Timing::new("@daily", "Europe/Atlantis").unwrap_err();
    assert_eq!(zone.field, "time_zone");
    assert!(
        zone.message
            .starts_with("\"Europe/Atlantis\" is not a time zone; allowed: names of the IANA list")
    );
    let never = Timing::new("0 0 30 2 *", "UTC").unwrap_err();
    assert_eq!(
        (never.field, never.message.as_str()),
        ("expression", "never comes: no day matches all fields")
    );
    let hour = Timing::new("0 25 * * *", "UTC").unwrap_err();
    assert!(
        hour.message
            .starts_with("hour: 25 is out of range; allowed: 0 to 23")
    );
}

#[test]
fn the_words_of_the_policies_are_those_that_are_stored() {
    for (word, policy) in CATCH_UPS {
        assert_eq!(
            (policy.as_str(), serde_json::to_value(policy).unwrap()),
            (word, json!(word))
        );
    }
    for (word, policy) in OVERLAPS {
        assert_eq!(
            (policy.as_str(), serde_json::to_value(policy).unwrap()),
            (word, json!(word))
        );
    }
}
