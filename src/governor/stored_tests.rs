use super::super::filter::LineGovernor;
use super::*;
use crate::governor::plant_tests::Plant;
use crate::governor::{Observation, SignalSample};

const BOUNDS: Bounds = Bounds {
    min: 1.0,
    max: 500.0,
    safe_rps: 5.0,
};

fn recorded() -> Value {
    serde_json::from_str(include_str!("testdata/stored_form_1.json")).unwrap()
}

fn policy(recorded: &Value) -> Policy {
    let text = recorded["policy"].as_str().unwrap();
    let mut policy = Policy::parse(text, "recorded.toml").unwrap().unwrap();
    // Durations always counted for the governor that wrote it.
    policy.law.durations_check = false;
    policy
}

#[test]
fn a_governor_continues_from_a_state_of_form_1_as_the_one_that_wrote_it() {
    let recorded = recorded();
    let mut governor =
        LineGovernor::resume(policy(&recorded), BOUNDS, recorded["state"].clone()).unwrap();
    let lines = recorded["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 25);
    for line in lines {
        let plan = governor.take(&line["line"].to_string()).unwrap().unwrap();
        assert_eq!(serde_json::to_value(&plan).unwrap(), line["answer"]);
    }
}

#[test]
fn the_present_form_is_read_back_to_the_last_bit() {
    let recorded = recorded();
    let policy = policy(&recorded);
    let governor = LineGovernor::resume(policy.clone(), BOUNDS, recorded["state"].clone()).unwrap();
    let stored = governor.state().unwrap();
    assert_eq!(stored["form"], FORM);
    assert!(stored["signals"][0]["controller"]["pid"].is_object());
    assert!(stored["signals"][2]["controller"]["quota"].is_object());
    let again = LineGovernor::resume(policy, BOUNDS, stored.clone()).unwrap();
    assert_eq!(again.state().unwrap(), stored);
}

#[test]
fn the_shadow_of_a_state_of_form_1_is_read_too() {
    let recorded = recorded();
    let mut state = recorded["state"].clone();
    let mut own = state.clone();
    own["breaker"]["trips"] = 3.into();
    state["shadow"] = serde_json::json!({"own": own, "score": {
        "since": 1.0, "seconds": 2.0, "lower_s": 0.0, "higher_s": 0.0, "stopped_s": 0.0, "over_s": 0.0, "braked_s": 0.0,
        "real": {"jobs": 1.0, "overload_s": 0.0, "peak": 0.0, "load": null, "rps": 1.0},
        "own": {"jobs": 1.0, "overload_s": 0.0, "peak": 0.0, "load": null, "rps": 1.0},
    }});
    let state = crate::governor::stored::read(state, &policy(&recorded)).unwrap();
    assert_eq!(state.shadow.unwrap().own.breaker.trips, 3);
}

#[test]
fn a_state_of_an_unknown_form_is_not_read() {
    let recorded = recorded();
    for form in [Value::Null, 0.into(), 3.into(), "2".into()] {
        let mut state = recorded["state"].clone();
        state["form"] = form;
        assert!(LineGovernor::resume(policy(&recorded), BOUNDS, state).is_none());
    }
}

#[test]
fn a_stop_that_is_newer_than_the_state_opens_the_breaker_which_then_goes_round() {
    let mut plant = Plant::quick();
    plant.run(600);
    let before = plant.knob;
    reopen(&mut plant.state, &plant.policy, plant.bounds, plant.now);
    assert_eq!(
        (plant.state.breaker.phase, plant.state.breaker.by.as_ref()),
        (Phase::Open, None)
    );
    assert_eq!(plant.state.rate(plant.bounds, plant.now), 0.0);

    let recorded = plant.state.breaker.clone();
    reopen(
        &mut plant.state,
        &plant.policy,
        plant.bounds,
        plant.now + 1.0,
    );
    assert_eq!(plant.state.breaker, recorded, "it is open already");

    while plant.state.breaker.phase == Phase::Open {
        plant.run(1);
        assert!(plant.now < 700.0, "{}", plant.plan.reason);
    }
    assert!(
        plant.knob > 0.0 && plant.knob <= before,
        "{} after {before}",
        plant.knob
    );
}

#[test]
fn a_policy_without_a_breaker_opens_none() {
    let mut plant = Plant::quick();
    plant.policy.law.breaker = false;
    plant.run(60);
    reopen(&mut plant.state, &plant.policy, plant.bounds, plant.now);
    assert_eq!(plant.state.breaker.phase, Phase::Closed);
}

#[test]
fn a_policy_in_another_unit_goes_on_as_the_one_before() {
    let mut plant = Plant::quick();
    plant.run(300);
    let rates = |factor: f64| {
        let (mut state, mut policy) = (plant.state.clone(), plant.policy.clone());
        let signal = &mut policy.signals[0];
        signal.setpoint *= factor;
        signal.trip *= factor;
        signal.scale *= factor;
        let tick = |n: u32| {
            let now = plant.now + 2.0 * f64::from(n);
            let sample = SignalSample {
                signal: policy.signals[0].name.clone(),
                value: Some(0.9 * factor),
                at: now - 1.0,
            };
            let seen = Observation {
                now,
                readings: vec![sample],
                achieved_rps: Some(state.knob),
                limiting_share: Some(1.0),
                ..Observation::default()
            };
            state.tick(&policy, plant.bounds, &seen).rps
        };
        (1..=20).map(tick).collect::<Vec<f64>>()
    };
    let before = rates(1.0);
    for factor in [0.001, 1000.0] {
        for (rps, expected) in rates(factor).into_iter().zip(&before) {
            assert!((rps / expected - 1.0).abs() < 1e-6, "{rps}, not {expected}");
        }
    }
}
