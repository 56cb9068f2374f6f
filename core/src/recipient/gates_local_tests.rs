use jiff::tz::TimeZone;
use proptest::prelude::*;
use serde_json::json;

use super::super::fields::GatedArgs;
use super::super::local_time::{LocalInstant, LocalTime};
use super::tests::{Scene, ada, at, free, noon, push, rules, sent, sleeper};
use super::*;
use crate::providers::Recipient;

/// Returns the time of a clock for a message that is accepted at noon.
fn local(time: &str, zone: &str) -> LocalInstant {
    let zone = TimeZone::get(zone).unwrap();
    LocalInstant::of(LocalTime::parse(time).unwrap(), &zone, noon()).unwrap()
}

/// A push of a category at a time of a clock.
fn later<'a>(to: &'a Recipient, category: &'a str, local: LocalInstant) -> Candidate<'a> {
    Candidate {
        local: Some(local),
        accepted_at: noon().max(local.at),
        ..push(to, category)
    }
}

/// Returns each gate with its rule and the end of the wait.
fn holds(plan: MessagePlan) -> Vec<(MessageGate, String, String)> {
    match plan {
        MessagePlan::Held { holds, .. } => holds
            .into_iter()
            .map(|hold| (hold.gate, hold.rule, hold.until.to_string()))
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_waits_until_the_clock_of_its_recipient_shows_its_time() {
    let to = ada();
    let mut scene = free();
    scene.profile = Profile::parse(&json!({"time_zone": "Europe/Berlin"})).unwrap();
    let goes = "2026-06-11T07:00:00Z";
    for (time, priority) in [("09:00", 2), ("2026-06-11T09:00", 2), ("09:00", CRITICAL)] {
        let mut message = later(&to, "security", local(time, "Europe/Berlin"));
        message.priority = priority;
        let waits = [(
            MessageGate::LocalTime,
            format!("{time} Europe/Berlin"),
            goes.to_owned(),
        )];
        assert_eq!(
            holds(scene.plan(&message, &GateRows::default(), noon())),
            waits
        );
        assert_eq!(
            holds(scene.verify(&message, &GateRows::default(), noon())),
            waits
        );
        for now in [goes, "2026-06-11T07:00:01Z", "2026-06-13T12:00:00Z"] {
            let again = scene.plan(&message, &GateRows::default(), at(now));
            assert_eq!(again, MessagePlan::Send, "{time} {now}");
        }
    }
    let passed = later(&to, "security", local("2026-06-10T09:00", "Europe/Berlin"));
    assert_eq!(
        scene.plan(&passed, &GateRows::default(), noon()),
        MessagePlan::Send
    );
}

#[test]
fn quiet_hours_and_caps_are_asked_for_that_time() {
    let to = ada();
    let mut scene = Scene::new(
        sleeper(),
        rules(
            "[categories.product]\nover_cap = \"hold\"\nvalid_for_s = 43200\ncaps.push = { a = \"1 per 1h\" }",
        ),
    );
    let night = later(&to, "product", local("23:00", "UTC"));
    let waits = |gate, rule: &str, until: &str| (gate, rule.to_owned(), until.to_owned());
    let asleep = [
        waits(MessageGate::LocalTime, "23:00 UTC", "2026-06-10T23:00:00Z"),
        waits(
            MessageGate::QuietHours,
            "22:00-08:00 UTC",
            "2026-06-11T08:00:00Z",
        ),
    ];
    assert_eq!(
        holds(scene.plan(&night, &GateRows::default(), noon())),
        asleep
    );
    // A cap that is full now is free by then, and one that others have taken for then is not.
    let morning = later(&to, "product", local("09:00", "UTC"));
    let (gone, taken) = (sent(noon(), &[1]), sent(at("2026-06-11T08:30:00Z"), &[0]));
    for (reserved, ends) in [
        (&[][..], "2026-06-11T09:00:00Z"),
        (&taken[..], "2026-06-11T09:30:00Z"),
    ] {
        let times = [CapTimes {
            sent: &gone,
            reserved,
        }];
        let rows = GateRows {
            times: &times,
            ..GateRows::default()
        };
        let plan = scene.plan(&morning, &rows, noon());
        assert_eq!(plan.planned_at(noon()), Some(at(ends)), "{plan:?}");
    }
    // What is dropped in quiet hours ends at once if its time is within them.
    scene.rules = rules("[categories.product]\nquiet = \"drop\"");
    assert!(matches!(
        scene.plan(&night, &GateRows::default(), noon()),
        MessagePlan::Ended {
            reason: UnsentReason::Quiet,
            ..
        }
    ));
}

#[test]
fn a_crowd_of_one_time_goes_over_a_span_but_for_what_is_urgent() {
    let to = ada();
    let scene = Scene::new(sleeper(), rules(""));
    let rows = GateRows {
        held_with_it: 9000,
        capacity_per_s: 10.0,
        ..GateRows::default()
    };
    let nine = local("09:00", "UTC");
    let goes = |message: &Candidate<'_>| {
        let plan = scene.plan(message, &rows, noon());
        plan.planned_at(noon())
            .unwrap()
            .duration_since(message.local.unwrap().at)
    };
    let mut message = later(&to, "product", nine);
    let place = goes(&message);
    assert!(
        place.is_positive() && place < SignedDuration::from_mins(30),
        "{place:?}"
    );
    message.deadline = Some(nine.at);
    assert!(goes(&message).is_zero(), "it would be too late");
    message.deadline = None;
    for priority in [CRITICAL, 1] {
        message.priority = priority;
        assert!(goes(&message).is_zero());
    }
    // Never into quiet hours.
    let evening = later(&to, "product", local("21:59", "UTC"));
    assert!(goes(&evening) < SignedDuration::from_mins(1));
}

#[test]
fn a_message_that_names_a_time_is_never_collected() {
    let to = ada();
    let text = "[digests.news]\ntemplate = \"morning\"\ncategory = \"product\"\nwindow_s = 60\ntemplates = [\"news\"]\n\
                [categories.product]\nover_cap = \"digest\"\nvalid_for_s = 86400\nquiet = \"digest_on_wake\"\n\
                caps.push = { a = \"1 per 1d\" }";
    let scene = Scene::new(sleeper(), rules(text));
    let first = push(&to, "product");
    assert!(matches!(
        scene.plan(&first, &GateRows::default(), noon()),
        MessagePlan::Collected { .. }
    ));
    let night = later(&to, "product", local("23:00", "UTC"));
    let gone = sent(noon(), &[1]);
    let times = [CapTimes {
        sent: &gone,
        reserved: &[],
    }];
    let rows = GateRows {
        times: &times,
        ..GateRows::default()
    };
    match scene.plan(&night, &rows, noon()) {
        MessagePlan::Held {
            holds, coalesces, ..
        } => {
            let last = holds.last().unwrap();
            assert!(!coalesces);
            // Until the cap has room, on the morning after.
            assert_eq!(last.gate, MessageGate::Caps);
            assert_eq!(last.until.to_string(), "2026-06-11T11:59:59Z");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn age_and_validity_count_from_that_time() {
    let args = |more: serde_json::Value| {
        let mut args = json!({"channel": "push", "to": "abc", "valid_for_s": 3600});
        let fields = args.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        GatedArgs::parse(&args).unwrap()
    };
    let own = Profile::parse(&json!({
        "time_zone": "Europe/Berlin", "device_time_zone": "America/New_York",
    }))
    .unwrap();
    let (nobody, accepted) = (Profile::default(), noon());
    for (profile, defaults, goes) in [
        (&own, &nobody, "2026-06-10T13:00:00Z"),
        (&nobody, &own, "2026-06-10T13:00:00Z"),
        (&nobody, &nobody, "2026-06-11T09:00:00Z"),
    ] {
        let times =
            args(json!({"local_time": "09:00"})).times(profile, defaults, accepted, accepted);
        assert_eq!(times.local.unwrap().at, at(goes));
        assert_eq!(times.accepted_at, at(goes));
        assert_eq!(
            times.deadline,
            Some(at(goes) + SignedDuration::from_hours(1))
        );
    }
    // A message that is sent again after its time counts from then, and goes at once.
    let anew = at("2026-06-12T12:00:00Z");
    let times = args(json!({"local_time": "09:00"})).times(&own, &nobody, accepted, anew);
    assert_eq!(times.local.unwrap().at, at("2026-06-10T13:00:00Z"));
    assert_eq!(times.accepted_at, anew);
    let plain = args(json!({})).times(&own, &nobody, accepted, accepted);
    assert_eq!((plain.local, plain.accepted_at), (None, accepted));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The time that is told stays the same until then, and the attempt finds the same gates.
    #[test]
    fn a_message_goes_at_the_local_time_that_it_was_told(
        minute in 0i64..1440, asked in 0i64..5000, zone in 0usize..5, hour in 0u8..24, priority in 0i32..4,
        before in prop::collection::vec(0i64..90_000, 0..6),
    ) {
        let zones = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"];
        let to = ada();
        let scene = Scene::new(
            sleeper(),
            rules("[categories.product]\nover_cap = \"hold\"\nvalid_for_s = 2592000\ncaps.push = { a = \"2 per 3h\", b = \"4 per 1d\" }"),
        );
        let accepted = noon() + SignedDuration::from_mins(minute);
        let zone = TimeZone::get(zones[zone]).unwrap();
        let time = LocalTime::parse(&format!("{hour:02}:30")).unwrap();
        let due = LocalInstant::of(time, &zone, accepted).unwrap();
        let mut gone = sent(accepted, &before);
        gone.sort_unstable();
        let times = [CapTimes { sent: &gone, reserved: &[] }];
        let rows = GateRows { times: &times, held_with_it: 900, capacity_per_s: 10.0, ..GateRows::default() };
        let mut message = later(&to, "product", due);
        (message.priority, message.accepted_at) = (priority, accepted.max(due.at));
        let planned = scene.plan(&message, &rows, accepted).planned_at(accepted).unwrap();
        prop_assert!(planned >= due.at);
        let wait = planned.duration_since(accepted).as_millis_f64();
        // Another check on the way there, before the local time, tells the same.
        let again = accepted + SignedDuration::from_millis((wait * asked as f64 / 5000.0) as i64);
        if again < due.at {
            let told = scene.plan(&message, &rows, again).planned_at(again);
            prop_assert_eq!(told, Some(planned));
        }
        let then = Timestamp::from_second(noted_at(planned)).unwrap();
        prop_assert_eq!(scene.verify(&message, &rows, then), MessagePlan::Send);
    }
}
