use std::collections::BTreeMap;

use super::*;
use crate::governor::manual_override::ManualOverride;
use crate::governor::policy::Policy;
use crate::governor::time::timestamp;
use crate::governor::{
    ActiveFinding, Bounds, ControlState, Finding, Observation, Plan, Score, SignalSample,
};
use crate::throttle::{KnobProblem, Knobs, Name, RateLimit};

#[path = "why_gone_tests.rs"]
mod gone;
#[path = "why_silent_tests.rs"]
mod silent;

const NOW: f64 = 1_700_000_000.0;

fn status(rps: f64, mode: Mode) -> Status {
    let knobs = Knobs {
        rps: RateLimit::new(rps),
        mode,
        min: 1.0,
        max: 2000.0,
        safe_rps: RateLimit::PerSecond(5.0),
        seq: 7,
        term: 1,
        by: "ann".to_owned(),
        at_ms: ((NOW - 300.0) * 1e3) as i64,
        why: "deploy".to_owned(),
        ..Knobs::default()
    };
    Status {
        name: Name::new("reindex").unwrap(),
        knobs,
        raw: BTreeMap::new(),
        problems: Vec::new(),
        effective_rps: RateLimit::new(rps),
        lease_expired: false,
        used: 0.0,
        limited_us: 0.0,
        at_us: (NOW * 1e6) as i64,
        expires_in_s: None,
        refusal: None,
        debt_until_ms: None,
        has_bucket: false,
    }
}

fn ask(
    status: Option<&Status>,
    view: Option<&GovernorView>,
    decisions: &[Decision],
    ready: Option<u64>,
) -> String {
    sentence(WhyInput {
        decisions,
        ready,
        ..input(status, view)
    })
}

/// Returns the facts about a throttle without decisions and waiting jobs.
fn input<'a>(status: Option<&'a Status>, view: Option<&'a GovernorView>) -> WhyInput<'a> {
    WhyInput {
        name: "reindex",
        status,
        view,
        decisions: &[],
        pattern: None,
        ready: None,
        now: NOW,
    }
}

const POLICY: &str = "[[signal]]\nname = \"search-load\"\nquery = \"q\"\nsetpoint = 2.0\n\
                      [[signal]]\nname = \"mongo-load\"\nquery = \"m\"\nsetpoint = 4.0\n";
const BOUNDS: Bounds = Bounds {
    min: 1.0,
    max: 2000.0,
    safe_rps: 5.0,
};

fn reading(signal: &str, value: f64, at: f64) -> SignalSample {
    SignalSample {
        signal: signal.to_owned(),
        value: Some(value),
        at,
    }
}

/// Returns a governor that read `load` 14 s ago and its other signal 9 s ago.
fn governor(load: f64) -> (ControlState, Policy) {
    let policy = Policy::parse(POLICY, "f").unwrap().unwrap();
    let mut state = ControlState::new(&policy, BOUNDS, RateLimit::PerSecond(34.2), NOW - 15.0);
    let seen = |now: f64, readings: Vec<SignalSample>| Observation {
        now,
        readings,
        limiting_share: Some(1.0),
        achieved_rps: Some(34.0),
        ..Observation::default()
    };
    let readings = vec![
        reading("search-load", load, NOW - 14.0),
        reading("mongo-load", 2.6, NOW - 9.0),
    ];
    state.tick(&policy, BOUNDS, &seen(NOW - 5.0, readings));
    state.tick(&policy, BOUNDS, &seen(NOW, Vec::new()));
    (state, policy)
}

/// Returns the governor's view after `change`.
fn governed(load: f64, change: impl FnOnce(&mut ControlState, &Policy)) -> GovernorView {
    let (mut state, policy) = governor(load);
    change(&mut state, &policy);
    GovernorView::new(&state, &policy, NOW).unwrap()
}

fn decision(ago_s: f64, rps: f64, before: f64) -> Decision {
    let plan = Plan {
        rps,
        ..Plan::default()
    };
    Decision {
        at: timestamp(NOW - ago_s),
        ..Decision::new("reindex", NOW, &plan, RateLimit::new(before), Mode::Auto)
    }
}

#[test]
fn the_rate_comes_first_then_who_holds_it_and_what_else_there_is_to_know() {
    let mut view = governed(1.96, |_, _| {});
    view.signals[1].proposed_rps = Some(51.2);
    view.last_trip = Some(crate::governor::explain::view::TripView {
        at: timestamp(NOW - 720.0),
        by: "search-load".to_owned(),
        height: 2.4,
    });
    let decisions = [decision(5.0, 34.2, 33.8), decision(120.0, 32.5, 32.2)];
    assert_eq!(
        ask(
            Some(&status(34.2, Mode::Auto)),
            Some(&view),
            &decisions,
            None
        ),
        "34.2 rps, held by search-load 1.96 of 2.00 (sample 14 s old); would be 51.2 by mongo-load; grew 3 %/min; \
         last trip 12 min ago."
    );
    view.last_trip.as_mut().unwrap().by = "mongo-load".to_owned();
    let falling = [decision(5.0, 34.2, 33.8), decision(240.0, 60.0, 68.0)];
    let reported = ask(
        Some(&status(34.2, Mode::Auto)),
        Some(&view),
        &falling,
        Some(12),
    );
    assert!(
        reported.ends_with("fell 16 %/min; last trip 12 min ago by mongo-load; 12 jobs wait."),
        "{reported}"
    );
    let steady = ask(
        Some(&status(34.2, Mode::Auto)),
        Some(&view),
        &[decision(200.0, 34.2, 34.1)],
        None,
    );
    assert!(steady.contains("steady for 3 min"), "{steady}");
    let young = ask(
        Some(&status(34.2, Mode::Auto)),
        Some(&view),
        &[decision(20.0, 34.2, 10.0)],
        None,
    );
    assert!(
        !young.contains("%/min"),
        "twenty seconds are no trend: {young}"
    );
}

#[test]
fn what_can_be_borne_is_told_where_it_sets_the_rate() {
    let view = governed(1.96, |_, _| {});
    let of = |capacity: f64, why: &str| {
        let mut status = status(34.2, Mode::Auto);
        (status.knobs.capacity, status.knobs.capacity_reason) =
            (RateLimit::new(capacity), why.to_owned());
        status.effective_rps = status.knobs.effective_rps(status.at_us);
        ask(Some(&status), Some(&view), &[], None)
    };
    assert_eq!(
        of(5.0, "two of five accounts"),
        "5 rps, because the system behind it can take no more: two of five accounts."
    );
    assert_eq!(
        of(0.0, "no account"),
        "stopped, because the system behind it can take nothing: no account."
    );
    assert_eq!(
        of(0.0, ""),
        "stopped, because the system behind it can take nothing."
    );
    assert!(
        of(50.0, "five accounts").starts_with("34.2 rps, held by search-load"),
        "{}",
        of(50.0, "five accounts")
    );
}

#[test]
fn the_next_signal_is_told_as_its_controller_asks() {
    let view = governed(1.96, |_, _| {});
    assert_eq!(view.signal.as_deref(), Some("search-load"));
    let proposed_rps = view.signals[1].proposed_rps.unwrap();
    let reported = ask(Some(&status(34.2, Mode::Auto)), Some(&view), &[], None);
    assert!(
        proposed_rps > view.rps
            && reported.contains(&format!("would be {} by mongo-load", number(proposed_rps))),
        "{reported}"
    );
}

#[test]
fn an_unknown_throttle_says_how_to_make_it_and_what_waits() {
    assert_eq!(
        ask(None, None, &[], Some(12)),
        "there is no throttle reindex; create it with: flyball throttle set reindex rps=10; 12 jobs wait"
    );
}

#[test]
fn a_hand_on_the_knob_has_a_name_a_time_and_a_reason() {
    let manual = status(50.0, Mode::Manual);
    let expected = "50 rps, set by ann 5 min ago (\"deploy\"); mode manual: the governor changes \
                    nothing; nothing waits.";
    assert_eq!(ask(Some(&manual), None, &[], Some(0)), expected);

    let mut paused = status(50.0, Mode::Auto);
    paused.knobs.paused = true;
    assert_eq!(
        ask(Some(&paused), None, &[], Some(1)),
        "paused by ann 5 min ago (\"deploy\"); resume it with: flyball throttle resume reindex; 1 job \
         waits."
    );

    let stopped = status(0.0, Mode::Off);
    let reported = ask(Some(&stopped), None, &[], None);
    assert_eq!(
        reported,
        "stopped, set by ann 5 min ago (\"deploy\"); set a rate with: flyball throttle set reindex \
         rps=10; mode off: no governor controls it."
    );
    let view = governed(1.0, |_, _| {});
    assert_eq!(
        ask(Some(&status(0.0, Mode::Auto)), Some(&view), &[], None),
        "stopped by ann 5 min ago (\"deploy\") (rps 0); the governor leaves it stopped; set a rate \
         with: flyball throttle set reindex rps=10."
    );
    let mut edited = Status {
        raw: [("rps", "5"), ("written", "20 - -")]
            .map(|(field, text)| (field.to_owned(), text.to_owned()))
            .into(),
        ..status(5.0, Mode::Off)
    };
    edited.knobs.by.clear();
    assert_eq!(
        ask(Some(&edited), None, &[], None),
        "5 rps, set in Redis directly; mode off: no governor controls it."
    );
    // A governor that is gone saw an older change last.
    let mut view = governed(1.0, |_, _| {});
    view.manual_override = Some(OverrideView {
        what: "rps 20".to_owned(),
        by: Some("ann".to_owned()),
        at: timestamp(NOW - 300.0),
        why: String::new(),
    });
    edited.knobs.at_ms = 0;
    assert!(ask(Some(&edited), Some(&view), &[], None).starts_with("5 rps, set in Redis directly"));
    edited.knobs.paused = true;
    assert!(ask(Some(&edited), Some(&view), &[], None).starts_with("paused in Redis directly"));
    let mut free = status(-1.0, Mode::Manual);
    assert!(ask(Some(&free), None, &[], None).starts_with("no limit, set by ann 5 min ago"));
    free.knobs.concurrency = Some(8);
    let reported = ask(Some(&free), None, &[], None);
    assert!(
        reported.starts_with("at most 8 jobs at once, set by ann 5 min ago"),
        "{reported}"
    );
    (free.knobs.concurrency, free.knobs.key_rps) = (None, RateLimit::PerSecond(0.5));
    let reported = ask(Some(&free), None, &[], None);
    assert!(
        reported.starts_with("at most 0.5 tokens a second for each key, set by ann 5 min ago"),
        "{reported}"
    );
}

#[test]
fn an_edit_in_redis_is_nobodys_and_what_stands_beside_it_is_not_its_reason() {
    let mut manual = status(50.0, Mode::Manual);
    (manual.knobs.by, manual.knobs.why) = ("governor".to_owned(), "search-load reads 2".to_owned());
    let view = governed(1.0, |state, _| {
        state.overrides.last = Some(ManualOverride {
            what: "mode manual".to_owned(),
            by: None,
            at: NOW - 40.0,
            why: String::new(),
        });
    });
    let reported = ask(Some(&manual), Some(&view), &[], None);
    assert!(
        reported.starts_with("50 rps, set by somebody 40 s ago; mode manual"),
        "{reported}"
    );
}

#[test]
fn shadow_mode_tells_what_it_would_set_and_its_score() {
    let view = governed(1.96, |state, policy| {
        let seen = Observation {
            now: NOW + 5.0,
            achieved_rps: Some(50.0),
            limiting_share: Some(1.0),
            ..Observation::default()
        };
        crate::governor::shadow::tick(state, policy, BOUNDS, &seen, RateLimit::PerSecond(50.0));
        state.shadow.as_mut().unwrap().score = Score {
            seconds: 7200.0,
            lower_s: 600.0,
            ..Score::begin(NOW - 7200.0)
        };
    });
    let reported = ask(Some(&status(50.0, Mode::Shadow)), Some(&view), &[], None);
    assert!(
        reported.starts_with(
            "50 rps, set by ann 5 min ago (\"deploy\"); mode shadow: the governor would set "
        ),
        "{reported}"
    );
    assert!(
        reported.contains(" rps, held by ") && reported.contains(" s old); "),
        "{reported}"
    );
    assert!(
        reported.contains("; in 2 h of shadow mode it would have let "),
        "{reported}"
    );
}

#[test]
fn nonsense_and_a_lapsed_lease_are_told_first() {
    let mut nonsense = status(5.0, Mode::Auto);
    nonsense.problems.push(KnobProblem {
        field: "rps".to_owned(),
        message: "\"ten\" cannot be used: it must be a number; running at safe_rps 5".to_owned(),
    });
    let reported = ask(Some(&nonsense), None, &[], None);
    assert_eq!(
        reported,
        "5 rps, because its knob rps \"ten\" cannot be used: it must be a number; running at safe_rps 5."
    );

    let mut lapsed = status(118.0, Mode::Auto);
    (lapsed.lease_expired, lapsed.effective_rps) = (true, RateLimit::PerSecond(5.0));
    lapsed.knobs.valid_until_ms = Some(((NOW - 40.0) * 1e3) as i64);
    let reported = ask(Some(&lapsed), None, &[], None);
    assert!(
        reported.starts_with(
            "5 rps, limited to safe_rps 5, because no governor has renewed its lease \
                          for 40 s; check"
        ),
        "{reported}"
    );
}

#[test]
fn an_open_breaker_says_what_tripped_it_and_since_when() {
    let (mut state, policy) = governor(1.0);
    let seen = |now: f64, readings| Observation {
        now,
        readings,
        ..Observation::default()
    };
    state.tick(
        &policy,
        BOUNDS,
        &seen(NOW + 5.0, vec![reading("search-load", 18.0, NOW + 4.0)]),
    );
    state.tick(&policy, BOUNDS, &seen(NOW + 10.0, Vec::new()));
    let view = GovernorView::new(&state, &policy, NOW + 10.0).unwrap();
    let status = status(0.0, Mode::Auto);
    let requested = WhyInput {
        now: NOW + 10.0,
        ..input(Some(&status), Some(&view))
    };
    assert_eq!(
        sentence(requested),
        "stopped by the breaker: search-load rose to 9 x its setpoint 5 s ago; it restarts when \
         the load is gone; search-load still reads 18 of 2 (sample 6 s old)."
    );
    let trip = view.last_trip.unwrap();
    assert_eq!(
        (trip.at, trip.by.as_str(), trip.height),
        (timestamp(NOW + 5.0), "search-load", 9.0)
    );

    // A person takes over and hands back: the trip is still reported.
    state.follow(
        &policy,
        BOUNDS,
        &seen(NOW + 15.0, Vec::new()),
        RateLimit::PerSecond(10.0),
        crate::governor::explain::Cause::followed("a person"),
    );
    assert!(
        GovernorView::new(&state, &policy, NOW + 15.0)
            .unwrap()
            .last_trip
            .is_some()
    );
}

#[test]
fn blindness_idleness_and_a_held_edit_have_their_words() {
    let mut stale = governed(1.8, |state, policy| {
        state.tick(
            policy,
            BOUNDS,
            &Observation {
                now: NOW + 75.0,
                ..Observation::default()
            },
        );
    });
    stale.age(NOW + 75.0);
    stale.signals[0].problem = Some("http://x cannot be reached: refused".to_owned());
    let reported = ask(Some(&status(30.0, Mode::Auto)), Some(&stale), &[], None);
    let expected = "30 rps, lowered towards safe_rps and not raised, because there has been no new reading of search-load, mongo-load \
                    for 89 s (http://x";
    assert!(reported.starts_with(expected), "{reported}");

    let idle = governed(1.8, |state, policy| {
        state.tick(
            policy,
            BOUNDS,
            &Observation {
                now: NOW + 5.0,
                limiting_share: Some(0.0),
                ..Observation::default()
            },
        );
    });
    let reported = ask(Some(&status(34.2, Mode::Auto)), Some(&idle), &[], None);
    assert!(
        reported.starts_with(
            "34.2 rps, not raised, because no job waits for its tokens, search-load \
                          1.8 of 2.0 (sample"
        ),
        "{reported}"
    );

    let held = governed(1.8, |state, policy| {
        state.overrides.last = Some(ManualOverride {
            what: "rps 30".to_owned(),
            by: Some("bob".to_owned()),
            at: NOW + 5.0,
            why: "too fast".to_owned(),
        });
        let seen = Observation {
            now: NOW + 5.0,
            limiting_share: Some(1.0),
            knob_rps: Some(RateLimit::PerSecond(30.0)),
            ..Observation::default()
        };
        state.tick(policy, BOUNDS, &seen);
    });
    let reported = ask(Some(&status(30.0, Mode::Auto)), Some(&held), &[], None);
    assert!(
        reported.starts_with(
            "30 rps, set by bob (\"too fast\") and not raised for 65 s more, search-load 1.8 of 2.0"
        ),
        "{reported}"
    );
    assert!(
        held.reason.contains(
            "; bob (\"too fast\") set 30 rps 0 s ago, so it is not raised for another 60 \
                       s"
        ),
        "{}",
        held.reason
    );
}

#[test]
fn every_word_of_limiting_and_every_phase_has_its_words() {
    let words = crate::governor::law::Clamp::ALL.map(|clamp| clamp.as_str());
    let mut reported = std::collections::BTreeSet::new();
    for word in words.into_iter().chain(["start", "search-load"]) {
        for phase in [Phase::Closed, Phase::HalfOpen, Phase::Open] {
            let mut view = governed(1.96, |_, _| {});
            (view.limiting, view.breaker) = (word.to_owned(), phase);
            let sentence = ask(Some(&status(34.2, Mode::Auto)), Some(&view), &[], None);
            let is_told = match phase {
                Phase::Closed => !sentence.contains("trip") || word == "confirm",
                Phase::HalfOpen => sentence.contains("after a trip"),
                Phase::Open => sentence.contains("by the breaker: "),
            };
            assert!(
                is_told && sentence.len() > 30,
                "{word} {phase:?}: {sentence}"
            );
            if phase == Phase::Closed {
                assert!(
                    reported.insert(sentence.clone()),
                    "{word} has no words of its own: {sentence}"
                );
            }
        }
    }
}

#[test]
fn what_the_watchdogs_found_is_told_at_the_end_while_the_governor_is_at_work() {
    let view = governed(0.97, |state, _| {
        let sentence = "the rate swings between 10 and 40 rps".to_owned();
        state.watchdogs.found = vec![ActiveFinding {
            finding: Finding::Oscillating,
            since: NOW - 600.0,
            sentence,
        }];
    });
    let reported = ask(Some(&status(118.0, Mode::Auto)), Some(&view), &[], Some(3));
    let expected =
        "; 3 jobs wait. Watchdog, oscillating for 10 min: the rate swings between 10 and 40 rps.";
    assert!(reported.ends_with(expected), "{reported}");
    let reported = ask(Some(&status(118.0, Mode::Manual)), Some(&view), &[], None);
    assert!(!reported.contains("Watchdog"), "{reported}");
}

#[test]
fn a_quota_that_refusals_taught_is_told_with_its_age_and_slots_are_called_slots() {
    let policy = "[[signal]]\nname = \"refused\"\nsource = \"feedback\"\nkind = \"ratio\"\nsetpoint = 0.01\n";
    let reported = |law: &str, limit: Option<u32>| {
        let policy = Policy::parse(&format!("{policy}{law}"), "f")
            .unwrap()
            .unwrap();
        let mut state = ControlState::new(&policy, BOUNDS, RateLimit::PerSecond(80.0), NOW - 245.0);
        for (ago, rejected) in [(240.0, 0.0), (235.0, 80.0), (230.0, 0.0)] {
            let seen = Observation {
                now: NOW - ago,
                achieved_rps: Some(80.0),
                limiting_share: Some(1.0),
                completed: 400.0 - rejected,
                rejected,
                ..Observation::default()
            };
            state.tick(&policy, BOUNDS, &seen);
        }
        let mut status = status(60.0, Mode::Auto);
        status.knobs.concurrency = limit;
        let view = GovernorView::new(&state, &policy, NOW - 230.0).unwrap();
        let decided = state.plan.unwrap();
        assert!(
            decided.terms["learned_quota"]["refused"]["refused_share"] == 0.2,
            "{:?}",
            decided.terms
        );
        ask(Some(&status), Some(&view), &[], None)
    };
    let rate = reported("", None);
    assert!(rate.starts_with("60 rps, "), "{rate}");
    assert!(
        rate.contains("refused learned a quota of 64 rps 4 min ago, when 20 % were refused"),
        "{rate}"
    );
    let slots = reported("[governor]\nactuator = \"concurrency\"\n", Some(12));
    assert!(
        slots.starts_with("12 slots, ") && slots.contains("learned a quota of 64 slots"),
        "{slots}"
    );
}

#[test]
fn durations_that_do_not_count_are_told_with_the_age_of_the_finding() {
    let told = |verdict| {
        let view = governed(1.96, |state, _| {
            state.work.evidence.verdict = verdict;
            state.work.evidence.since = Some(NOW - 720.0);
        });
        ask(Some(&status(34.2, Mode::Auto)), Some(&view), &[], None)
    };
    let silent = told(Verdict::Uninformative);
    assert!(
        silent.contains(
            "; job durations do not reflect the load, found 12 min ago, so jobs are counted"
        ),
        "{silent}"
    );
    for counts in [Verdict::Unknown, Verdict::Informative] {
        assert!(!told(counts).contains("durations"));
    }
}
