//! Digests, and the promise of a plan, at the gates.

use jiff::Timestamp;
use proptest::prelude::*;

use super::tests::{Scene, ada, at, free, noon, push, rules, sent, sleeper};
use super::*;
use crate::recipient::collectors::collectors;

/// The war story: 47 posts of one creator in a day, for one follower. Each is in one digest, and no
/// 24 hours have more than three messages.
#[test]
fn forty_seven_posts_of_a_creator_are_at_most_three_messages_a_day() {
    let (to, scene) = (ada(), free());
    let mut item = push(&to, "product");
    (item.actor, item.digest) = (Some("eve"), Some("creator-activity"));
    let kind = digest_type(&item, &scene.rules).unwrap();
    let closing = Candidate {
        origin: Origin::Digest,
        digest: None,
        ..item
    };
    let lists = cap_lists(&closing, &scene.rules);
    let mut sends: Vec<Vec<i64>> = vec![Vec::new(); lists.len()];
    let (mut open, mut shown, mut messages) = (None::<OpenDigest>, 0, Vec::new());
    for minute in 0..3 * 1440 {
        let now = noon() + SignedDuration::from_mins(minute);
        let is_post = minute < 1440 && minute % 30 == 0 && minute / 30 < 47;
        if is_post {
            let digests: Vec<_> = open
                .iter()
                .map(|open| (kind.name.as_str(), *open))
                .collect();
            let rows = GateRows {
                digests: &digests,
                ..GateRows::default()
            };
            match scene.plan(&item, &rows, now) {
                MessagePlan::Collected {
                    arrival: Arrival::Joins(digest),
                    ..
                } => open = Some(digest),
                other => panic!("{other:?}"),
            }
        }
        let Some(due) = open.as_mut().filter(|open| open.closes_at <= now) else {
            continue;
        };
        let times: Vec<CapTimes<'_>> = sends
            .iter()
            .map(|sent| CapTimes {
                sent,
                reserved: &[],
            })
            .collect();
        let rows = GateRows {
            times: &times,
            ..GateRows::default()
        };
        match scene.plan(&closing, &rows, now) {
            MessagePlan::Send => {
                shown += due.items;
                messages.push(now.as_second());
                open = None;
                for (list, sent) in lists.iter().zip(&mut sends) {
                    assert!(list.caps.take(sent, now, &TimeZone::UTC).is_ok());
                }
            }
            held => due.put_off(held.planned_at(now).unwrap()),
        }
    }
    assert_eq!((shown, open), (47, None));
    assert!(messages.windows(4).all(|four| four[3] - four[0] >= 86_400));
    assert_eq!(
        messages.len(),
        4,
        "three, and one with the rest on the next day"
    );
}

#[test]
fn a_leading_item_that_may_not_go_at_once_is_collected() {
    let to = ada();
    let leading =
        "[digests.likes]\ntemplate = \"l\"\ncategory = \"product\"\nwindow_s = 60\nleading = true";
    let scene = Scene::new(sleeper(), rules(leading));
    let mut message = push(&to, "product");
    message.digest = Some("likes");
    let arrival =
        |message: &Candidate<'_>, now| match scene.plan(message, &GateRows::default(), now) {
            MessagePlan::Collected { arrival, .. } => arrival,
            other => panic!("{other:?}"),
        };
    assert!(matches!(arrival(&message, noon()), Arrival::Leads(open) if open.items == 0));
    message.priority = 1;
    let urgent = scene.plan(&message, &GateRows::default(), noon());
    assert_eq!(urgent, MessagePlan::Send, "an urgent one is not collected");
    message.priority = 2;
    let night = at("2026-06-10T23:00:00Z");
    assert!(matches!(arrival(&message, night), Arrival::Joins(open) if open.items == 1));
    let lists = cap_lists(&message, &scene.rules);
    assert_eq!(
        collectors(&message, &lists, &scene.rules)
            .iter()
            .map(|kind| kind.name.as_str())
            .collect::<Vec<_>>(),
        ["likes"]
    );
}

#[test]
fn what_one_cap_collects_no_other_holds_or_drops() {
    let (to, now) = (ada(), noon());
    let (earlier, later) = (sent(now, &[10; 3]), sent(now, &[5; 3]));
    let mut message = push(&to, "product");
    message.actor = Some("eve");
    for over_cap in ["hold", "drop", "digest", "refuse"] {
        let text = format!(
            "[categories.product]\nover_cap = \"{over_cap}\"\ncaps.push = {{ per_day = \"3 per 1d\" }}\n"
        );
        let scene = Scene::new(Profile::default(), rules(&text));
        let lists = cap_lists(&message, &scene.rules);
        assert_eq!(lists.len(), 2);
        // The cap of the category makes it wait longer.
        let of_creator = OverCap::Digest(Some("creator-activity".to_owned()));
        let times: Vec<CapTimes<'_>> = lists
            .iter()
            .map(|list| CapTimes {
                sent: if list.over == of_creator {
                    &earlier
                } else {
                    &later
                },
                reserved: &[],
            })
            .collect();
        let rows = GateRows {
            times: &times,
            ..GateRows::default()
        };
        match scene.plan(&message, &rows, now) {
            MessagePlan::Refused { .. } => assert_eq!(over_cap, "refuse"),
            MessagePlan::Collected { digest, .. } => {
                assert_ne!(over_cap, "refuse");
                assert_eq!(digest, "creator-activity");
            }
            other => panic!("{over_cap}: {other:?}"),
        }
        // An attempt collects nothing.
        let verified = scene.verify(&message, &rows, now);
        let is_held = matches!(verified, MessagePlan::Held { .. });
        assert_eq!(
            is_held,
            ["hold", "digest"].contains(&over_cap),
            "{over_cap}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The time that is told is the one that the gates give then, unless something changes.
    #[test]
    fn a_message_goes_at_the_time_that_it_was_told(
        minute in 0i64..3 * 1440, before in prop::collection::vec(0i64..200_000, 0..12), priority in 0i32..4
    ) {
        let to = ada();
        let scene = Scene::new(
            sleeper(),
            rules("[categories.product]\nover_cap = \"hold\"\nvalid_for_s = 2592000\ncaps.push = { a = \"2 per 3h\", b = \"4 per 1d\", c = \"3 per local_day\" }"),
        );
        let now = noon() + SignedDuration::from_mins(minute);
        let mut gone = sent(now, &before);
        gone.sort_unstable();
        let times = [CapTimes { sent: &gone, reserved: &[] }];
        let rows = GateRows { times: &times, held_with_it: 9000, capacity_per_s: 10.0, ..GateRows::default() };
        let mut message = push(&to, "product");
        (message.priority, message.accepted_at) = (priority, now);
        let planned = scene.plan(&message, &rows, now).planned_at(now).unwrap();
        let later = Timestamp::from_second(noted_at(planned)).unwrap();
        prop_assert_eq!(scene.verify(&message, &rows, later), MessagePlan::Send);
        prop_assert!(priority == CRITICAL || !scene.profile.quiet.is_empty() && !quiet_of(&message, scene.policy()).is_quiet(planned));
    }
}

/// A message that may become one with others takes no room of a cap, and is not ended by it: the one
/// that they become is judged.
#[test]
fn caps_do_not_judge_what_may_become_one_until_it_wakes() {
    let to = ada();
    let scene = Scene::new(
        sleeper(),
        rules(
            "[categories.product]\nquiet = \"digest_on_wake\"\nover_cap = \"drop\"\ncaps.push = { per_day = \"1 per 1d\" }",
        ),
    );
    let night = at("2026-06-10T23:00:00Z");
    let gone = sent(night, &[60]);
    let times = [CapTimes {
        sent: &gone,
        reserved: &[],
    }];
    let rows = GateRows {
        times: &times,
        ..GateRows::default()
    };
    let mut message = push(&to, "product");
    message.accepted_at = night;
    match scene.plan(&message, &rows, night) {
        MessagePlan::Held {
            holds, coalesces, ..
        } => {
            let gates: Vec<MessageGate> = holds.iter().map(|hold| hold.gate).collect();
            assert_eq!((gates, coalesces), (vec![MessageGate::QuietHours], true));
        }
        other => panic!("{other:?}"),
    }
    let morning = at("2026-06-11T08:00:00Z");
    let alone = scene.plan(&message, &rows, morning);
    assert!(
        matches!(
            alone,
            MessagePlan::Ended {
                reason: UnsentReason::Capped,
                ..
            }
        ),
        "{alone:?}"
    );
}

/// By the rules that ship, a cap of a day holds for a day: the sixth message of one second waits, as
/// one of the next second does.
#[test]
fn a_burst_of_one_second_waits_for_a_cap_like_what_comes_later() {
    let to = ada();
    let full = vec![noted_at(noon() + SignedDuration::from_millis(100)); 5];
    let times = [CapTimes {
        sent: &full,
        reserved: &[],
    }];
    let rows = GateRows {
        times: &times,
        ..GateRows::default()
    };
    for after_ms in [101, 400, 900, 1000, 1100, 5000] {
        let now = noon() + SignedDuration::from_millis(after_ms);
        let mut message = push(&to, "news");
        message.accepted_at = now;
        let plan = free().plan(&message, &rows, now);
        let room = at("2026-06-11T12:00:01Z");
        assert_eq!(plan.planned_at(now), Some(room), "{after_ms}: {plan:?}");
    }
    // One that is a second older would wait for longer than it is valid.
    let mut message = push(&to, "news");
    message.accepted_at = noon();
    let plan = free().plan(&message, &rows, noon() + SignedDuration::from_secs(1));
    let is_capped = matches!(
        plan,
        MessagePlan::Ended {
            reason: UnsentReason::Capped,
            ..
        }
    );
    assert!(is_capped, "{plan:?}");
}

#[test]
fn a_window_of_zero_makes_no_message_a_duplicate() {
    let (to, now) = (ada(), noon());
    let scene = Scene::new(
        Profile::default(),
        rules("[categories.product]\ndedup_window_s = 0\n"),
    );
    for is_marked in [false, true] {
        let rows = GateRows {
            claim: Some(DedupClaim {
                job: 7,
                at: now,
                is_marked,
            }),
            ..GateRows::default()
        };
        let message = push(&to, "product");
        assert_eq!(scene.plan(&message, &rows, now), MessagePlan::Send);
        assert_eq!(scene.verify(&message, &rows, now), MessagePlan::Send);
    }
}

#[test]
fn an_urgent_message_does_not_become_one_with_others_when_it_wakes() {
    let to = ada();
    let scene = Scene::new(
        sleeper(),
        rules("[categories.product]\nquiet = \"digest_on_wake\"\n"),
    );
    let night = at("2026-06-10T23:00:00Z");
    for (priority, becomes_one) in [(1, false), (2, true), (3, true)] {
        let mut message = push(&to, "product");
        (message.accepted_at, message.priority) = (night, priority);
        match scene.plan(&message, &GateRows::default(), night) {
            MessagePlan::Held { coalesces, .. } => assert_eq!(coalesces, becomes_one, "{priority}"),
            other => panic!("{other:?}"),
        }
    }
}
