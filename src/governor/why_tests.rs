use std::collections::BTreeMap;

use super::super::decision::timestamp;
use super::super::policy::Policy;
use super::super::{Bounds, Finding, Found, Observation, Plan, Sample, State};
use super::*;
use crate::throttle::{Knobs, Name, store::Problem};

const NOW: f64 = 1_700_000_000.0;

fn status(rps: f64, mode: Mode) -> Status {
    let knobs = Knobs {
        rps,
        mode,
        min: 1.0,
        max: 2000.0,
        safe_rps: 5.0,
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
        effective_rps: rps,
        lease_lapsed: false,
        used: 0.0,
        limited_us: 0.0,
        at_us: (NOW * 1e6) as i64,
        expires_in_s: None,
    }
}

fn ask(status: Option<&Status>, view: Option<&View>, decision: Option<&Decision>, ready: Option<u64>) -> String {
    sentence(Asked { name: "reindex", status, view, decision, ready, now: NOW })
}

/// A governor that read `load` 4 s ago, and its view.
fn governed(load: f64, change: impl FnOnce(&mut State, &Policy)) -> View {
    let text = "[[signal]]\nname = \"search-load\"\nquery = \"q\"\nsetpoint = 1.0\n";
    let policy = Policy::parse(text, "f").unwrap().unwrap();
    let bounds = Bounds { min: 1.0, max: 2000.0, safe_rps: 5.0 };
    let mut state = State::new(&policy, bounds, 118.0, NOW - 5.0);
    let sample = Sample { signal: "search-load".to_owned(), value: Some(load), at: NOW - 4.0 };
    let seen = Observation { now: NOW, readings: vec![sample], limiting_share: Some(1.0), ..Observation::default() };
    state.tick(&policy, bounds, &seen);
    change(&mut state, &policy);
    View::new(&state, &policy, NOW).unwrap()
}

#[test]
fn a_governed_throttle_names_its_signal_its_age_and_the_last_move() {
    let view = governed(0.97, |_, _| {});
    let plan = Plan { rps: 118.0, ..Plan::default() };
    let decision = Decision { at: timestamp(NOW - 3.0), ..Decision::new("reindex", NOW, &plan, 120.0, Mode::Auto) };
    assert_eq!(
        ask(Some(&status(118.0, Mode::Auto)), Some(&view), Some(&decision), None),
        "reindex runs at 118 rps because search-load is at 0.97 of its setpoint 1 (4 s old); \
         the governor last moved it 3 s ago from 120 rps."
    );
}

#[test]
fn an_unknown_throttle_says_how_to_make_it_and_what_waits() {
    assert_eq!(
        ask(None, None, None, Some(12)),
        "there is no throttle reindex; create it with: flyball throttle set reindex rps=10; 12 jobs wait"
    );
}

#[test]
fn a_hand_on_the_knob_has_a_name_a_time_and_a_reason() {
    let manual = status(50.0, Mode::Manual);
    let expected = "reindex runs at 50 rps because that was set by ann 5 min ago (\"deploy\") \
                    (manual: the governor keeps its hands off); nothing waits.";
    assert_eq!(ask(Some(&manual), None, None, Some(0)), expected);

    let mut paused = status(50.0, Mode::Auto);
    paused.knobs.paused = true;
    assert_eq!(ask(Some(&paused), None, None, Some(1)), "reindex is paused by ann 5 min ago (\"deploy\"); 1 job waits.");

    let stopped = status(0.0, Mode::Off);
    assert!(ask(Some(&stopped), None, None, None).starts_with("reindex is stopped: rps 0 was set by ann 5 min ago"));
    let free = status(-1.0, Mode::Manual);
    assert!(ask(Some(&free), None, None, None).starts_with("reindex runs without a limit: rps -1 was set by ann"));
}

#[test]
fn nonsense_and_a_lapsed_lease_are_told_first() {
    let mut nonsense = status(5.0, Mode::Auto);
    nonsense.problems.push(Problem {
        field: "rps".to_owned(),
        message: "\"ten\" cannot be used: it must be a number; running at safe_rps 5".to_owned(),
    });
    let told = ask(Some(&nonsense), None, None, None);
    assert_eq!(
        told,
        "reindex runs at 5 rps because its knob rps \"ten\" cannot be used: it must be a number; running at safe_rps 5."
    );

    let mut lapsed = status(118.0, Mode::Auto);
    (lapsed.lease_lapsed, lapsed.effective_rps) = (true, 5.0);
    lapsed.knobs.valid_until_ms = Some(((NOW - 40.0) * 1e3) as i64);
    let told = ask(Some(&lapsed), None, None, None);
    assert!(
        told.starts_with("reindex runs at 5 rps, no faster than safe_rps 5, because no governor has renewed its knob for 40 s"),
        "{told}"
    );
}

#[test]
fn an_open_breaker_says_what_tripped_it_and_since_when() {
    let view = governed(9.0, |state, policy| {
        let bounds = Bounds { min: 1.0, max: 2000.0, safe_rps: 5.0 };
        state.tick(policy, bounds, &Observation { now: NOW + 5.0, ..Observation::default() });
    });
    let told = sentence(Asked {
        name: "reindex",
        status: Some(&status(0.0, Mode::Auto)),
        view: Some(&view),
        decision: None,
        ready: None,
        now: NOW + 5.0,
    });
    assert_eq!(
        told,
        "reindex is stopped by its breaker: search-load rose to 9 x its setpoint 5 s ago; it starts again when the load is gone."
    );
}

#[test]
fn blindness_idleness_and_a_held_edit_have_their_words() {
    let stale = governed(0.9, |state, policy| {
        let bounds = Bounds { min: 1.0, max: 2000.0, safe_rps: 5.0 };
        state.tick(policy, bounds, &Observation { now: NOW + 75.0, ..Observation::default() });
    });
    let mut stale = stale;
    stale.age(NOW + 75.0);
    stale.signals[0].problem = Some("http://x cannot be reached: refused".to_owned());
    let told = ask(Some(&status(100.0, Mode::Auto)), Some(&stale), None, None);
    assert!(told.contains("because there has been no new reading of search-load for 79 s: it is lowered towards safe_rps and not raised (http://x"), "{told}");

    let idle = governed(0.5, |state, policy| {
        let bounds = Bounds { min: 1.0, max: 2000.0, safe_rps: 5.0 };
        state.tick(policy, bounds, &Observation { now: NOW + 5.0, limiting_share: Some(0.0), ..Observation::default() });
    });
    let told = ask(Some(&status(118.0, Mode::Auto)), Some(&idle), None, None);
    assert!(
        told.contains("because nobody waits for its tokens, so it is not raised (search-load is at 0.5 of its setpoint 1"),
        "{told}"
    );

    let held = governed(0.5, |state, policy| {
        let bounds = Bounds { min: 1.0, max: 2000.0, safe_rps: 5.0 };
        let seen = Observation { now: NOW + 5.0, limiting_share: Some(1.0), knob_rps: Some(30.0), ..Observation::default() };
        state.tick(policy, bounds, &seen);
    });
    let told = ask(Some(&status(30.0, Mode::Auto)), Some(&held), None, None);
    assert!(told.contains("because a person set it, and it is not raised for 65 s more (search-load"), "{told}");
}

#[test]
fn what_the_watchdogs_found_is_told_at_the_end_while_the_governor_is_at_work() {
    let view = governed(0.97, |state, _| {
        let sentence = "the rate swings between 10 and 40 rps".to_owned();
        state.watch.found = vec![Found { finding: Finding::Oscillating, since: NOW - 600.0, sentence }];
    });
    let told = ask(Some(&status(118.0, Mode::Auto)), Some(&view), None, Some(3));
    let expected = "; 3 jobs wait. Watchdog, oscillating for 10 min: the rate swings between 10 and 40 rps.";
    assert!(told.ends_with(expected), "{told}");
    let told = ask(Some(&status(118.0, Mode::Manual)), Some(&view), None, None);
    assert!(!told.contains("Watchdog"), "{told}");
}

#[test]
fn an_automatic_throttle_without_a_governor_says_so() {
    let told = ask(Some(&status(20.0, Mode::Auto)), None, None, Some(3));
    assert_eq!(told, "reindex runs at 20 rps; its mode is auto, but no governor has decided yet; 3 jobs wait.");
}
