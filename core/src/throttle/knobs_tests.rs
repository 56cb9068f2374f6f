//! The reading and the checks of knobs.

use super::RateLimit;
use serde_json::json;

use super::super::Status;
use super::super::bucket::{Bucket, Start, UsageCounters};
use super::super::rules::TABLE;
use super::*;
use crate::input::wording::describe;

fn read(fields: &[(&str, &str)]) -> (Knobs, Vec<KnobProblem>) {
    Knobs::read(
        &fields
            .iter()
            .map(|(field, text)| ((*field).to_owned(), (*text).to_owned()))
            .collect(),
    )
}

#[test]
fn each_field_has_its_own_default() {
    let (knobs, problems) = read(&[("rps", "20")]);

    assert_eq!(
        knobs,
        Knobs {
            rps: RateLimit::PerSecond(20.0),
            ..Knobs::default()
        }
    );
    assert_eq!(problems, []);
}

#[test]
fn a_rate_that_cannot_be_read_runs_at_safe_rps_and_says_so() {
    for nonsense in [
        "ten", "", "NaN", "-2", "1e10", "inf", "0x10", "1e-9", "1 2", "--1", "5rps", "1e999",
    ] {
        let (knobs, problems) = read(&[("rps", nonsense), ("safe_rps", "3")]);

        assert_eq!(
            knobs.effective_rps(0),
            RateLimit::PerSecond(3.0),
            "{nonsense}"
        );
        assert_eq!(problems.len(), 1, "{nonsense}");
        let message = &problems[0].message;
        assert!(
            message.starts_with("must be a number from 0.000001")
                && message.contains(&format!(", not {nonsense:?};")),
            "{message}"
        );
        assert!(message.ends_with("; running at safe_rps 3"), "{message}");
    }
}

#[test]
fn a_missing_rate_runs_at_safe_rps_and_says_so() {
    let (knobs, problems) = read(&[("burst", "2")]);

    assert_eq!(knobs.effective_rps(0), RateLimit::PerSecond(1.0));
    assert_eq!(problems[0].field, "rps");
    assert!(
        problems[0]
            .message
            .starts_with("is missing: it must be a number"),
        "{}",
        problems[0].message
    );
}

#[test]
fn nonsense_in_another_number_of_the_rate_never_speeds_anything_up() {
    for field in ["burst", "window", "key_rps", "key_burst"] {
        assert_eq!(
            read(&[("rps", "50"), ("safe_rps", "5"), (field, "x")])
                .0
                .effective_rps(0),
            RateLimit::PerSecond(5.0),
            "{field}"
        );
        assert_eq!(
            read(&[("rps", "2"), ("safe_rps", "5"), (field, "x")])
                .0
                .effective_rps(0),
            RateLimit::PerSecond(2.0),
            "{field}"
        );
        assert_eq!(
            read(&[("rps", "-1"), ("safe_rps", "5"), (field, "x")])
                .0
                .effective_rps(0),
            RateLimit::PerSecond(5.0),
            "{field}"
        );
        assert_eq!(
            read(&[("rps", "0"), ("safe_rps", "5"), (field, "x")])
                .0
                .effective_rps(0),
            RateLimit::Stopped,
            "{field}"
        );
    }
    assert_eq!(
        read(&[("rps", "50"), ("safe_rps", "-1")])
            .0
            .effective_rps(0),
        RateLimit::PerSecond(1.0)
    );
}

#[test]
fn a_status_tells_that_a_field_that_shapes_the_rate_cannot_be_read() {
    let status = |field: &str| {
        let mut raw = BTreeMap::from(
            [("rps", "50"), ("safe_rps", "1")]
                .map(|(field, text)| (field.to_owned(), text.to_owned())),
        );
        raw.insert(field.to_owned(), "x".to_owned());
        let name = Name::new("reindex").unwrap();
        Status::read(name, raw, &UsageCounters::default(), 0)
    };
    for field in SHAPING {
        let status = status(field);
        assert_eq!(
            (status.is_careful(), status.knobs.rps),
            (true, RateLimit::PerSecond(1.0)),
            "{field}"
        );
    }
    for field in ["rps", "max", "weight", "concurrency"] {
        assert!(!status(field).is_careful(), "{field}");
    }
}

#[test]
fn a_status_tells_what_stands_still_by_its_knobs() {
    let status = |fields: &[(&str, &str)]| {
        let raw = fields.iter();
        let raw = raw.map(|(field, text)| ((*field).to_owned(), (*text).to_owned()));
        let name = Name::new("reindex").unwrap();
        Status::read(name, raw.collect(), &UsageCounters::default(), 0)
    };
    for (fields, wait_s) in [
        (&[("rps", "5")][..], 0.0),
        (&[("key_rps", "0.01")], 100.0),
        (
            &[("key_rps", "0.01"), ("key_windows", "9/1 50/3600")],
            3600.0,
        ),
        (&[("key_rps", "0")], -1.0),
        (&[("key_concurrency", "0")], -1.0),
    ] {
        assert_eq!(status(fields).key_wait_s(), wait_s, "{fields:?}");
    }
    for (fields, needs) in [
        (&[("mode", "auto")][..], true),
        (&[("mode", "shadow")], true),
        (&[("mode", "manual")], false),
        (
            &[("mode", "manual"), ("manual_until_ms", "1800000000000")],
            true,
        ),
        (&[("mode", "off")], false),
    ] {
        assert_eq!(status(fields).needs_governor(), needs, "{fields:?}");
    }
}

#[test]
fn nonsense_in_a_limit_of_concurrency_lets_one_job_run_at_a_time() {
    for nonsense in ["ten", "2.5", "-2", "1e7", ""] {
        let (knobs, problems) = read(&[
            ("rps", "50"),
            ("concurrency", nonsense),
            ("key_concurrency", nonsense),
        ]);

        assert_eq!(
            (knobs.rps.number(), knobs.concurrency, knobs.key_concurrency),
            (50.0, Some(1), Some(1)),
            "{nonsense}"
        );
        assert!(
            problems
                .iter()
                .all(|problem| problem.message.ends_with("; one job runs at a time")),
            "{problems:?}"
        );
    }
    let (knobs, _) = read(&[
        ("rps", "50"),
        ("concurrency", "1e2"),
        ("key_concurrency", "-1"),
        ("weight", "0.5"),
    ]);
    assert_eq!(
        (knobs.concurrency, knobs.key_concurrency, knobs.weight),
        (Some(100), None, 0.5)
    );
}

#[test]
fn nonsense_elsewhere_uses_that_fields_default_and_is_a_problem() {
    let fields = [
        ("rps", "50"),
        ("mode", "fast"),
        ("min", "low"),
        ("parent", "a b"),
        ("paused", "perhaps"),
        ("rsp", "1"),
    ];

    let (knobs, problems) = read(&fields);

    assert_eq!(
        knobs,
        Knobs {
            rps: RateLimit::PerSecond(50.0),
            ..Knobs::default()
        }
    );
    let named: Vec<&str> = problems
        .iter()
        .map(|problem| problem.field.as_str())
        .collect();
    assert_eq!(named, ["mode", "paused", "parent", "min", "rsp"]);
}

#[test]
fn a_lapsed_lease_falls_back_to_the_slower_rate() {
    let lease = |rps, mode| {
        read(&[
            ("rps", rps),
            ("safe_rps", "5"),
            ("valid_until", "1000"),
            ("mode", mode),
        ])
        .0
    };

    assert_eq!(
        lease("50", "auto").effective_rps(1_000_000),
        RateLimit::PerSecond(50.0)
    );
    assert_eq!(
        lease("50", "auto").effective_rps(1_000_001),
        RateLimit::PerSecond(5.0)
    );
    assert_eq!(
        lease("2", "auto").effective_rps(2_000_000),
        RateLimit::PerSecond(2.0)
    );
    assert_eq!(
        lease("-1", "auto").effective_rps(2_000_000),
        RateLimit::PerSecond(5.0)
    );
    assert_eq!(
        lease("50", "manual").effective_rps(2_000_000),
        RateLimit::PerSecond(50.0)
    );
}

#[test]
fn a_pause_stops_whatever_the_rate() {
    assert_eq!(
        read(&[("rps", "-1"), ("paused", "1")]).0.effective_rps(0),
        RateLimit::Stopped
    );
}

#[test]
fn interfaces_take_what_the_hash_can_hold() {
    let fields = [
        ("rps", json!(-1), Some("-1")),
        ("burst", json!(2.5), Some("2.5")),
        ("mode", json!("auto"), Some("auto")),
        ("paused", json!(true), Some("1")),
        ("parent", json!("search"), Some("search")),
        ("key_rps", json!(null), None),
        ("max", json!(1e6), Some("1000000")),
        (
            "manual_until_ms",
            json!(1_700_000_000_500_i64),
            Some("1700000000500"),
        ),
    ];
    let given = fields
        .iter()
        .map(|(field, value, _)| ((*field).to_owned(), value.clone()))
        .collect();

    let texts = Knobs::check(&given).unwrap();

    let expected = fields.map(|(field, _, text)| (field.to_owned(), text.map(str::to_owned)));
    assert_eq!(texts, expected.into());
}

#[test]
fn interfaces_refuse_the_rest_and_name_what_is_allowed() {
    let cases = [
        ("rps", json!("ten"), "must be a number"),
        ("rps", json!(-3), "must be a number"),
        ("rps", json!(1e10), "must be a number"),
        (
            "rps",
            json!(null),
            "must be a number from 0.000001 to 1000000000, or 0 (stopped), or -1 (unlimited), not null",
        ),
        ("rps", json!([1]), "must be a number"),
        ("safe_rps", json!(-1), "must be a number"),
        ("window", json!(0), "must be a number from 0.001"),
        ("mode", json!("fast"), "must be auto, manual, shadow or off"),
        ("paused", json!("yes"), "must be 0 or 1, true or false"),
        ("parent", json!("two words"), "must be the name"),
        (
            "concurrency",
            json!(2.5),
            "must be a whole number from 0 (none runs) to 1000000, or -1",
        ),
        ("key_concurrency", json!(-2), "must be a whole number"),
        ("over_limit", json!("ignore"), "must be wait, drop or merge"),
        ("weight", json!(0), "must be a number from 0.001 to 1000"),
        ("max_backlog", json!(0), "must be a whole number from 1"),
        ("on_backlog", json!("drop"), "must be signal or reject"),
        (
            "manual_until_ms",
            json!(1_700_000_000),
            "must be a whole number of unix milliseconds",
        ),
        (
            "seq",
            json!(3),
            "must be left out: Flyball itself writes it",
        ),
        (
            "rsp",
            json!(3),
            "is not a known knob; did you mean \"rps\"? allowed: rps, burst, window",
        ),
    ];
    for (field, value, expected) in cases {
        let problems = Knobs::check(&[(field.to_owned(), value.clone())].into()).unwrap_err();
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].field, field);
        assert!(
            problems[0].message.starts_with(expected),
            "{field} {value}: {}",
            problems[0].message
        );
        let found = format!(", not {}", describe(&value));
        assert!(
            ["seq", "rsp"].contains(&field) || problems[0].message.contains(&found),
            "{field} {value}: {}",
            problems[0].message
        );
    }
    let both = [("min".to_owned(), json!(5)), ("max".to_owned(), json!(2))].into();
    assert_eq!(
        Knobs::check(&both).unwrap_err()[0].message,
        "must be at most max 2, not 5"
    );
}

#[test]
fn what_people_type_becomes_values() {
    assert_eq!(Knobs::value_of("rps", "10"), json!(10));
    assert_eq!(Knobs::value_of("rps", "0.5"), json!(0.5));
    assert_eq!(Knobs::value_of("rps", "nan"), json!("nan"));
    assert_eq!(Knobs::value_of("paused", "true"), json!(true));
    assert_eq!(Knobs::value_of("parent", ""), json!(null));
    assert_eq!(Knobs::value_of("parent", "42"), json!("42"));
    assert_eq!(Knobs::value_of("mode", "off"), json!("off"));
}

#[test]
fn the_reference_shows_the_table() {
    let reference = include_str!("../../../docs/reference/knobs.md");
    for knob in TABLE {
        let cell = |text: &str| {
            if text.is_empty() {
                "—".to_owned()
            } else {
                format!("`{text}`")
            }
        };
        let unit = if knob.unit.is_empty() {
            "—"
        } else {
            knob.unit
        };
        let row = format!(
            "| `{}` | {} | {unit} | {} | {} |",
            knob.name,
            cell(knob.default),
            knob.allowed,
            knob.meaning
        );
        assert!(
            reference.lines().any(|line| line == row),
            "docs/reference/knobs.md lacks the row\n{row}"
        );
    }
}

#[test]
fn a_throttle_that_drops_counts_in_whole_tokens_for_each_window_and_no_other_does() {
    let key_rate = |key_rps: &str, window: &str, over_limit: &str| {
        let knobs = read(&[
            ("rps", key_rps),
            ("key_rps", key_rps),
            ("window", window),
            ("over_limit", over_limit),
        ])
        .0;
        assert_eq!(knobs.rate(0), knobs.key_rate());
        let mut bucket = Bucket::default();
        let taken = |bucket: &mut Bucket, now: f64| {
            let mut open = bucket.open(knobs.key_rate(), Start::Full, now, 1.0, 1000.0);
            let units = open.units(1.0, now);
            open.take(units, 1.0, now);
            *bucket = open.close();
            units
        };
        let window_us = knobs.window * 1e6;
        let now = 1e15;
        [0.0, 1.0, 2.0, 3.0].map(|n| taken(&mut bucket, now + n * window_us))
    };

    assert_eq!(key_rate("0.5", "5", "drop"), [3.0; 4]);
    assert_eq!(key_rate("0.5", "5", "wait"), [2.0; 4]);
    assert_eq!(key_rate("0.5", "5", "merge"), [2.0; 4]);
    assert_eq!(
        key_rate("0.3", "10", "drop"),
        [3.0; 4],
        "what is whole stays as it is, whatever the digits of a double say"
    );
    // Less than one token in a window is not rounded up: that would be ten times the requested rate
    // here.
    let slow = read(&[("rps", "0.1"), ("over_limit", "drop")]).0;
    assert_eq!(
        (slow.rate(0).rps.number(), slow.key_rate().rps.number()),
        (0.1, -1.0)
    );
    assert_eq!(
        read(&[("rps", "0"), ("over_limit", "drop")]).0.rate(0).rps,
        RateLimit::Stopped
    );
}

#[test]
fn the_highest_cost_follows_from_the_rate_that_is_wanted_and_does_not_fall_with_the_rate_in_force()
{
    type Case = (&'static [(&'static str, &'static str)], f64, f64);
    let cases: [Case; 9] = [
        (&[("rps", "1")], 1000.0, 1000.0),
        (&[("rps", "0.01")], 1000.0, 36.0),
        (&[("rps", "0.000001")], 1000.0, 10.0),
        (&[("rps", "10"), ("key_rps", "0.01")], 1000.0, 36.0),
        (&[("rps", "500"), ("window", "60")], 300_000.0, 300_000.0),
        (
            &[("rps", "500"), ("window", "60"), ("paused", "1")],
            300_000.0,
            300_000.0,
        ),
        (
            &[("rps", "0"), ("mode", "auto"), ("max", "5000")],
            50_000.0,
            50_000.0,
        ),
        (&[("rps", "-1")], 1e9, 1e9),
        (&[("rps", "0.01"), ("max_cost", "7000")], 7000.0, 7000.0),
    ];
    for (fields, taken, charged) in cases {
        let knobs = read(fields).0;
        assert_eq!(
            (knobs.max_cost(), knobs.charged_cost(0)),
            (taken, charged),
            "{fields:?}"
        );
    }
}

#[test]
fn refusals_are_as_pinned() {
    let set = [
        json!({"rps": "ten"}),
        json!({"rps": null, "burst": 1e5}),
        json!({"rps": [1], "safe_rps": -1, "window": 0}),
        json!({"mode": "atuo", "paused": "yes", "parent": "two words"}),
        json!({"mode": 1, "concurrency": 2.5, "max_backlog": 0}),
        json!({"manual_until_ms": 5, "max_pause": 0.5}),
        json!({"seq": 1, "why": "x", "rsp": 1}),
        json!({"min": 5, "max": 2}),
    ];
    let set = set.map(|fields| {
        let given: BTreeMap<String, serde_json::Value> =
            serde_json::from_value(fields.clone()).unwrap();
        (fields.to_string(), Knobs::check(&given).unwrap_err())
    });
    let hashes: [&[(&str, &str)]; 6] = [
        &[],
        &[("rps", "ten"), ("mode", "atuo")],
        &[("rps", "5"), ("burst", "x"), ("concurrency", "many")],
        &[
            ("rps", "5"),
            ("on_429", "x"),
            ("trust_scope", ""),
            ("paused", "maybe"),
            ("parent", "a b"),
        ],
        &[
            ("rps", "5"),
            ("min", "9"),
            ("max", "2"),
            ("colour", "red"),
            ("why", "a\0"),
        ],
        &[
            ("rps", "5"),
            ("over_limit", "x"),
            ("on_backlog", "y"),
            ("on_store_loss", "z"),
            ("max_cost", "-"),
        ],
    ];
    let read = hashes.map(|fields| (format!("hash {fields:?}"), read(fields).1));
    crate::input::pinned::check(
        "knobs",
        set.into_iter().chain(read).map(|(input, problems)| {
            let lines = problems
                .into_iter()
                .map(|problem| format!("{}: {}", problem.field, problem.message));
            (input, lines.collect())
        }),
    );
}
