use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::providers::{Channel, Recipient};
use crate::recipient::rules::defaults;

pub(super) fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Noon of a Wednesday.
pub(super) fn noon() -> Timestamp {
    at("2026-06-10T12:00:00Z")
}

fn profile(value: serde_json::Value) -> Profile {
    Profile::parse(&value).unwrap()
}

/// Quiet from 22:00 to 08:00 in UTC, on every channel.
pub(super) fn sleeper() -> Profile {
    let night = json!({"start": "22:00", "end": "08:00"});
    profile(json!({"quiet_hours": {"email": night, "push": night, "sms": night}}))
}

pub(super) fn ada() -> Recipient {
    Recipient::parse(Channel::Push, "abc").unwrap()
}

/// A push of some category to somebody.
pub(super) fn push<'a>(to: &'a Recipient, category: &'a str) -> Candidate<'a> {
    Candidate {
        origin: Origin::Sender,
        job: None,
        priority: 2,
        channel: Channel::Push,
        category,
        template: Some("news"),
        to: Some(to),
        recipient: RecipientKey::of_address("acme", to),
        actor: None,
        digest: None,
        at_most: None,
        local: None,
        accepted_at: noon(),
        deadline: None,
        is_cancelled: false,
    }
}

pub(super) fn rules(text: &str) -> RecipientRules {
    RecipientRules::parse("r.toml", text).unwrap()
}

pub(super) struct Scene {
    pub profile: Profile,
    pub defaults: Profile,
    pub rules: RecipientRules,
}

impl Scene {
    pub fn new(profile: Profile, rules: RecipientRules) -> Self {
        Self {
            profile,
            defaults: Profile::default(),
            rules,
        }
    }

    pub fn policy(&self) -> GatePolicy<'_> {
        GatePolicy {
            profile: &self.profile,
            defaults: &self.defaults,
            rules: &self.rules,
        }
    }

    pub fn plan(
        &self,
        message: &Candidate<'_>,
        rows: &GateRows<'_>,
        now: Timestamp,
    ) -> MessagePlan {
        plan(message, self.policy(), rows, now)
    }

    pub fn verify(
        &self,
        message: &Candidate<'_>,
        rows: &GateRows<'_>,
        now: Timestamp,
    ) -> MessagePlan {
        verify(message, self.policy(), rows, now)
    }
}

pub(super) fn free() -> Scene {
    Scene::new(Profile::default(), defaults())
}

/// Returns the seconds of sends so many seconds before `now`.
pub(super) fn sent(now: Timestamp, before: &[i64]) -> Vec<i64> {
    before.iter().map(|s| now.as_second() - s).collect()
}

fn ended(plan: MessagePlan) -> (MessageGate, UnsentReason) {
    match plan {
        MessagePlan::Ended { gate, reason, .. } => (gate, reason),
        other => panic!("{other:?}"),
    }
}

fn holds(plan: MessagePlan) -> Vec<(MessageGate, String)> {
    match plan {
        MessagePlan::Held { holds, .. } => holds
            .into_iter()
            .map(|hold| (hold.gate, hold.until.to_string()))
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_that_nothing_stops_goes_at_once() {
    let to = ada();
    let rows = GateRows::default();
    assert_eq!(
        free().plan(&push(&to, "product"), &rows, noon()),
        MessagePlan::Send
    );
    assert_eq!(
        free().verify(&push(&to, "product"), &rows, noon()),
        MessagePlan::Send
    );
}

/// Everything is wrong with a message; what is taken away, one after the other, is what the gates
/// find, in their order.
#[test]
fn the_first_gate_that_stops_a_message_decides() {
    let to = ada();
    let mut scene = Scene::new(
        profile(json!({
            "preferences": {"categories": {"product": false}},
            "quiet_hours": {"push": {"start": "10:00", "end": "14:00"}}
        })),
        defaults(),
    );
    let full = sent(noon(), &[5, 4, 3, 2, 1]);
    let times = [CapTimes {
        sent: &full,
        reserved: &[],
    }];
    let mut rows = GateRows {
        is_suppressed: true,
        claim: Some(DedupClaim {
            job: 7,
            at: noon(),
            is_marked: true,
        }),
        times: &times,
        ..GateRows::default()
    };
    let mut message = push(&to, "product");
    message.is_cancelled = true;
    message.deadline = Some(noon());

    let found = |scene: &Scene, message: &Candidate<'_>, rows: &GateRows<'_>| {
        ended(scene.plan(message, rows, noon()))
    };
    use MessageGate::{Deadline, Dedup, Preferences, Suppression};
    use UnsentReason::{Cancelled, Duplicate, Expired, OptedOut, Suppressed, Unreachable};
    assert_eq!(found(&scene, &message, &rows), (Deadline, Cancelled));
    message.is_cancelled = false;
    assert_eq!(found(&scene, &message, &rows), (Deadline, Expired));
    message.deadline = None;
    message.to = None;
    assert_eq!(found(&scene, &message, &rows), (Deadline, Unreachable));
    message.to = Some(&to);
    assert_eq!(found(&scene, &message, &rows), (Suppression, Suppressed));
    rows.is_suppressed = false;
    assert_eq!(found(&scene, &message, &rows), (Preferences, OptedOut));
    scene.profile.preferences.0.clear();
    assert_eq!(found(&scene, &message, &rows), (Dedup, Duplicate));
    rows.claim = None;
    message.digest = Some("new-comment");
    assert!(matches!(
        scene.plan(&message, &rows, noon()),
        MessagePlan::Collected { digest, .. } if digest == "new-comment"
    ));
    message.digest = None;
    // At 14:00 the hour's five messages are two hours old.
    assert_eq!(
        holds(scene.plan(&message, &rows, noon())),
        [(MessageGate::QuietHours, "2026-06-10T14:00:00Z".to_owned())]
    );
    scene.profile.quiet.clear();
    assert_eq!(
        holds(scene.plan(&message, &rows, noon())),
        [(MessageGate::Caps, "2026-06-10T12:59:55Z".to_owned())]
    );
}

#[test]
fn quiet_hours_and_caps_move_a_message_until_it_suits_both() {
    let to = ada();
    let scene = Scene::new(
        sleeper(),
        rules("[categories.product]\ncaps.push = { per_day = \"1 per 1d\" }\nover_cap = \"hold\""),
    );
    // At 23:00 the night holds it until 08:00; the cap until 07:30 of the day after: night again.
    let now = at("2026-06-10T23:00:00Z");
    let last = sent(at("2026-06-10T22:30:00Z"), &[0]);
    let times = [CapTimes {
        sent: &last,
        reserved: &[],
    }];
    let rows = GateRows {
        times: &times,
        ..GateRows::default()
    };
    let mut message = push(&to, "product");
    message.accepted_at = now;
    let plan = scene.plan(&message, &rows, now);
    // 22:30 of the next day is quiet too: 35.5 hours after acceptance, of which the cap's share is
    // less than a day.
    let goes = at("2026-06-12T08:00:00Z");
    assert_eq!(plan.planned_at(now), Some(goes));
    let MessagePlan::Held {
        holds, reserve_s, ..
    } = plan
    else {
        panic!("it goes at once")
    };
    let gates: Vec<MessageGate> = holds.iter().map(|hold| hold.gate).collect();
    assert_eq!(
        gates,
        [
            MessageGate::QuietHours,
            MessageGate::Caps,
            MessageGate::QuietHours
        ]
    );
    assert_eq!(reserve_s, goes.as_second());
    assert_eq!(scene.plan(&message, &rows, goes), MessagePlan::Send);
}

#[test]
fn a_critical_message_passes_quiet_hours_and_digests_and_neither_caps_nor_suppression() {
    let to = ada();
    let scene = Scene::new(sleeper(), defaults());
    let now = at("2026-06-10T23:00:00Z");
    let mut message = push(&to, "security");
    (message.priority, message.digest) = (CRITICAL, Some("new-comment"));
    assert_eq!(
        scene.plan(&message, &GateRows::default(), now),
        MessagePlan::Send
    );
    let full = sent(now, &[20; 20]);
    let times = [CapTimes {
        sent: &full,
        reserved: &[],
    }];
    let mut rows = GateRows {
        times: &times,
        ..GateRows::default()
    };
    let MessagePlan::Refused { rule, reset_at } = scene.plan(&message, &rows, now) else {
        panic!("it is accepted");
    };
    assert_eq!(rule, "per_hour 20 per 1h");
    assert_eq!(reset_at, at("2026-06-10T23:59:40Z"));
    assert_eq!(
        ended(scene.verify(&message, &rows, now)),
        (MessageGate::Caps, UnsentReason::Capped)
    );
    rows.is_suppressed = true;
    assert_eq!(
        ended(scene.plan(&message, &rows, now)).1,
        UnsentReason::Suppressed
    );
}

#[test]
fn the_policies_over_a_cap_are_those_of_the_categories() {
    let (to, now) = (ada(), noon());
    let full = sent(now, &[10; 20]);
    let times = [
        CapTimes {
            sent: &full,
            reserved: &[],
        },
        CapTimes::default(),
    ];
    let rows = GateRows {
        times: &times,
        ..GateRows::default()
    };
    let scene = free();
    assert_eq!(
        ended(scene.plan(&push(&to, "marketing"), &rows, now)),
        (MessageGate::Caps, UnsentReason::Capped)
    );
    // No type of digest lists the template.
    assert_eq!(
        holds(scene.plan(&push(&to, "product"), &rows, now)).len(),
        1
    );
    let typed = Scene::new(
        Profile::default(),
        rules(
            "[digests.news]\ntemplate = \"n\"\ncategory = \"product\"\nwindow_s = 60\ntemplates = [\"news\"]\ncollects = \"over_cap\"",
        ),
    );
    let plan = typed.plan(&push(&to, "product"), &rows, now);
    assert!(
        matches!(&plan, MessagePlan::Collected { digest, .. } if digest == "news"),
        "{plan:?}"
    );
    assert_eq!(
        typed.plan(&push(&to, "product"), &GateRows::default(), now),
        MessagePlan::Send
    );
    // A cap of a week would hold it for longer than it is valid.
    let billing = Recipient::parse(Channel::Sms, "+15550100").unwrap();
    let mut message = push(&billing, "billing");
    message.channel = Channel::Sms;
    let week = sent(now, &[300_000, 290_000, 280_000, 270_000, 260_000]);
    let times = [CapTimes {
        sent: &week,
        reserved: &[],
    }];
    let rows = GateRows {
        times: &times,
        ..GateRows::default()
    };
    assert_eq!(
        ended(scene.plan(&message, &rows, now)).1,
        UnsentReason::Capped
    );
    let later = at("2026-06-11T12:00:00Z");
    message.accepted_at = later;
    assert!(
        scene
            .plan(&message, &rows, later)
            .planned_at(later)
            .is_some()
    );
}

#[test]
fn a_plan_looks_at_reservations_and_an_attempt_at_sends_alone() {
    let (to, now) = (ada(), noon());
    let scene = Scene::new(
        Profile::default(),
        rules("[categories.product]\ncaps.push = { per_day = \"2 per 1d\" }\nover_cap = \"hold\""),
    );
    let gone = sent(now, &[86_000]);
    // Beside both of them there is no room for a third, until the first has left its window.
    let waiting = [now.as_second() + 200];
    let times = [CapTimes {
        sent: &gone,
        reserved: &waiting,
    }];
    let rows = GateRows {
        times: &times,
        ..GateRows::default()
    };
    let message = push(&to, "product");
    let planned = scene.plan(&message, &rows, now).planned_at(now).unwrap();
    assert_eq!(planned.as_second(), now.as_second() + 400);
    assert_eq!(scene.verify(&message, &rows, now), MessagePlan::Send);
}

#[test]
fn a_retry_is_no_duplicate_of_itself_and_takes_no_second_slot() {
    let (to, now) = (ada(), noon());
    let full = sent(now, &[1; 20]);
    let times = [CapTimes {
        sent: &full,
        reserved: &[],
    }];
    let mut rows = GateRows {
        claim: Some(DedupClaim {
            job: 7,
            at: now,
            is_marked: true,
        }),
        times: &times,
        has_slots: true,
        ..GateRows::default()
    };
    let mut message = push(&to, "product");
    message.job = Some(7);
    assert_eq!(free().verify(&message, &rows, now), MessagePlan::Send);
    rows.has_slots = false;
    assert_ne!(free().verify(&message, &rows, now), MessagePlan::Send);
    message.job = Some(8);
    assert_eq!(
        ended(free().verify(&message, &rows, now)).1,
        UnsentReason::Duplicate
    );
}

#[test]
fn a_preference_that_changes_between_plan_and_attempt_counts_unless_the_category_is_mandatory() {
    let (to, now) = (ada(), noon());
    let mut scene = free();
    assert_eq!(
        scene.plan(&push(&to, "product"), &GateRows::default(), now),
        MessagePlan::Send
    );
    scene.defaults = profile(json!({"preferences": {"all": false}}));
    let verify =
        |scene: &Scene, category| scene.verify(&push(&to, category), &GateRows::default(), now);
    assert_eq!(
        ended(verify(&scene, "product")),
        (MessageGate::Preferences, UnsentReason::OptedOut)
    );
    assert_eq!(verify(&scene, "security"), MessagePlan::Send);
    scene.profile = profile(json!({"preferences": {"categories": {"product": true}}}));
    assert_eq!(verify(&scene, "product"), MessagePlan::Send);
}

#[test]
fn each_mode_of_quiet_hours_does_what_it_says() {
    let to = ada();
    let now = at("2026-06-10T23:00:00Z");
    let of = |mode: &str| {
        let rules = rules(&format!(
            "[categories.product]\nquiet_on = {{ push = {mode:?} }}"
        ));
        let mut message = push(&to, "product");
        message.accepted_at = now;
        Scene::new(sleeper(), rules).plan(&message, &GateRows::default(), now)
    };
    assert_eq!(of("always"), MessagePlan::Send);
    assert_eq!(
        ended(of("drop")),
        (MessageGate::QuietHours, UnsentReason::Quiet)
    );
    for (mode, expected) in [("hold", false), ("digest_on_wake", true)] {
        let MessagePlan::Held { coalesces, .. } = of(mode) else {
            panic!("{mode}");
        };
        assert_eq!(coalesces, expected, "{mode}");
    }
}

#[test]
fn the_hours_of_the_law_hold_for_urgent_messages_and_always_too() {
    let to = Recipient::parse(Channel::Sms, "+1 312 555 0100").unwrap();
    let scene = Scene::new(
        profile(json!({"time_zone": "America/Chicago"})),
        rules("[categories.marketing]\nquiet = \"always\"\nquiet_presets = [\"us-tcpa\"]"),
    );
    let mut message = push(&to, "marketing");
    (message.channel, message.priority) = (Channel::Sms, CRITICAL);
    let now = at("2026-06-10T03:00:00Z");
    assert_eq!(
        holds(scene.plan(&message, &GateRows::default(), now)),
        [(MessageGate::QuietHours, "2026-06-10T13:00:00Z".to_owned())]
    );
}

#[test]
fn the_zone_of_the_device_counts_for_pushes_and_hours_of_the_tenant_where_there_are_no_own() {
    let to = ada();
    let mut scene = free();
    scene.defaults = sleeper();
    scene.profile = profile(json!({
        "time_zone": "Europe/Berlin", "device_time_zone": "Asia/Kolkata"
    }));
    // 03:30 in Kolkata, midnight in Berlin.
    let now = at("2026-06-10T22:00:00Z");
    let mut message = push(&to, "product");
    message.accepted_at = now;
    assert_eq!(
        holds(scene.plan(&message, &GateRows::default(), now)),
        [(MessageGate::QuietHours, "2026-06-11T02:30:00Z".to_owned())]
    );
    message.channel = Channel::Email;
    assert_eq!(
        holds(scene.plan(&message, &GateRows::default(), now)),
        [(MessageGate::QuietHours, "2026-06-11T06:00:00Z".to_owned())]
    );
}

#[test]
fn a_crowd_is_spread_and_an_urgent_message_is_not() {
    let to = ada();
    let scene = Scene::new(sleeper(), defaults());
    let now = at("2026-06-10T23:00:00Z");
    let rows = GateRows {
        held_with_it: 1_000_000,
        capacity_per_s: 1000.0,
        ..GateRows::default()
    };
    let mut message = push(&to, "product");
    message.accepted_at = now;
    let wakes = at("2026-06-11T08:00:00Z");
    let planned = scene.plan(&message, &rows, now).planned_at(now).unwrap();
    assert!(planned > wakes && planned.duration_since(wakes) < SignedDuration::from_mins(30));
    // It does not end because of its place.
    message.deadline = Some(wakes);
    assert_eq!(
        scene.plan(&message, &rows, now).planned_at(now),
        Some(wakes)
    );
    message.deadline = None;
    message.priority = 1;
    assert_eq!(
        scene.plan(&message, &rows, now).planned_at(now),
        Some(wakes)
    );
}

#[test]
fn what_an_attempt_took_does_not_hold_its_message_in_a_new_plan() {
    let (to, now) = (ada(), noon());
    let gone = sent(now, &[50, 40, 30, 20, 10]);
    let times = [CapTimes {
        sent: &gone,
        reserved: &[],
    }];
    let message = push(&to, "billing");
    let scene = Scene::new(
        Profile::default(),
        rules("[categories.billing]\ncaps.push = { per_hour = \"5 per 1h\" }"),
    );
    for has_slots in [false, true] {
        let rows = GateRows {
            times: &times,
            has_slots,
            ..GateRows::default()
        };
        let goes = scene.plan(&message, &rows, now) == MessagePlan::Send;
        assert_eq!(goes, has_slots);
    }
}

#[test]
fn a_message_that_would_go_after_its_deadline_ends_at_once() {
    let to = ada();
    let scene = Scene::new(sleeper(), defaults());
    let now = at("2026-06-10T23:00:00Z");
    let mut message = push(&to, "product");
    message.deadline = Some(at("2026-06-11T07:59:59Z"));
    assert_eq!(
        ended(scene.plan(&message, &GateRows::default(), now)),
        (MessageGate::QuietHours, UnsentReason::Expired)
    );
    message.deadline = Some(at("2026-06-11T08:00:00Z"));
    assert_eq!(
        holds(scene.plan(&message, &GateRows::default(), now)).len(),
        1
    );
}

#[test]
fn a_senders_own_cap_counts_for_its_template_alone() {
    let (to, now) = (ada(), noon());
    let cap = CapRule::parse("at_most", "1 per 24h").unwrap();
    let mut message = push(&to, "product");
    message.at_most = Some(&cap);
    let rules = defaults();
    let lists = cap_lists(&message, &rules);
    assert_eq!(lists.len(), 2);
    assert!(lists.is_sorted_by_key(|list| list.key));
    let own = lists
        .iter()
        .position(|list| list.caps.0 == [cap.clone()])
        .unwrap();
    let before = sent(now, &[100]);
    let mut times = [CapTimes::default(); 2];
    times[own].sent = &before;
    let rows = GateRows {
        times: &times,
        ..GateRows::default()
    };
    let planned = free().plan(&message, &rows, now).planned_at(now).unwrap();
    assert_eq!(planned.as_second(), now.as_second() + 86_300);
    let other = Candidate {
        template: Some("other"),
        ..message
    };
    assert_ne!(
        cap_lists(&other, &rules)
            .iter()
            .map(|list| list.key)
            .collect::<Vec<_>>(),
        lists.iter().map(|list| list.key).collect::<Vec<_>>()
    );
}
