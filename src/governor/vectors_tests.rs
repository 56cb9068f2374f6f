//! The law against input series with expected outputs, computed by an independent implementation of
//! the same equations.
//!
//! Some things differ there and are set here to match: the rate with stale signals ends at a
//! quarter of the last five minutes' mean (here at the knob `safe_rps`), and a restart is not held
//! until a sample confirms it (`confirm_s = 0`). The gain is 1.2, the restart is at 0.6 of the
//! room, and there are no steps of durations.

use crate::throttle::RateLimit;
use std::collections::BTreeMap;

use serde_json::Value;

use super::bounds::Bounds;
use super::law::Phase;
use super::law::PidController;
use super::policy::{ControllerTuning, Policy, SignalKind, SignalPolicy};
use super::{ControlState, Observation, SignalSample};
use crate::control::lag_filter::delag;
use crate::control::pid::Gains;
use crate::control::{History, LogPid, Observer};

fn vectors() -> Value {
    serde_json::from_str(include_str!("testdata/vectors.json")).unwrap()
}

fn policy(signals: &[(&str, SignalKind, f64, f64)]) -> Policy {
    let signal = |&(name, kind, setpoint, lag_s): &(&str, SignalKind, f64, f64)| {
        SignalPolicy::of_prometheus(name, kind, "q", setpoint, lag_s)
    };
    let law = ControllerTuning {
        confirm_s: 0.0,
        late_gaps: 1e6,
        gain: 1.2,
        restart: 0.6,
        durations_check: false,
        duration_step: 1e6,
        model: false,
        ..ControllerTuning::default()
    };
    Policy {
        signals: signals.iter().map(signal).collect(),
        law,
    }
}

#[track_caller]
fn near(name: &str, row: usize, got: f64, expected: &Value) {
    let expected = expected
        .as_f64()
        .unwrap_or_else(|| panic!("row {row}: nothing is expected of {name}"));
    let off = (got - expected).abs() / expected.abs().max(1e-3);
    assert!(
        off < 1e-6,
        "row {row}: {name} is {got}, expected {expected}"
    );
}

/// Returns the row's samples; `only` names the signal if a row lists them without names.
fn samples(row: &Value, only: &str) -> Vec<SignalSample> {
    let pair = |signal: &str, pair: &Value| SignalSample {
        signal: signal.to_owned(),
        value: pair[1].as_f64(),
        at: pair[0].as_f64().unwrap(),
    };
    match &row["new"] {
        Value::Object(by_name) => by_name
            .iter()
            .flat_map(|(name, list)| list.as_array().unwrap().iter().map(move |p| pair(name, p)))
            .collect(),
        Value::Array(list) => list.iter().map(|p| pair(only, p)).collect(),
        _ => Vec::new(),
    }
}

/// Runs a series open-loop, compares every number that a row expects, and asserts how many of each
/// there were, so that a renamed column cannot pass by silence.
fn run(name: &str, policy: &Policy, rps: f64, bounds: Bounds, compared: &[(&str, usize)]) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let only = policy.signals[0].name.as_str();
    let mut state: Option<ControlState> = None;
    for (n, row) in vectors()[name].as_array().unwrap().iter().enumerate() {
        let now = row["now"].as_f64().unwrap();
        let state = state
            .get_or_insert_with(|| ControlState::new(policy, bounds, RateLimit::new(rps), now));
        let achieved = row["ach"].as_f64().unwrap();
        let seen = Observation {
            now,
            readings: samples(row, only),
            achieved_rps: Some(achieved),
            limiting_share: Some(row["limiting"].as_f64().unwrap_or(1.0)),
            mean_duration_s: row["dur"].as_f64(),
            ..Observation::default()
        };
        let mut history = state.history.clone();
        history.push(now, 5.0, achieved * state.work.w);
        let safe_rps = 0.25 * history.mean(now - 300.0, now) / state.work.w;
        let plan = state.tick(policy, Bounds { safe_rps, ..bounds }, &seen);

        let open = plan.breaker == Phase::Open;
        assert_eq!(open, row["state"] == "open", "row {n}");
        let about = state
            .signals
            .iter()
            .find(|s| row["sel"] == s.name.as_str())
            .unwrap_or(&state.signals[0]);
        let pid = about.controller.pid();
        let of_pid =
            |read: fn(&PidController) -> Option<f64>| pid.and_then(read).unwrap_or(f64::NAN);
        for (field, got) in [
            ("knob", plan.rps),
            ("u", state.u),
            ("x", about.front.x),
            ("z", about.front.z),
            ("i", about.controller.integral()),
            ("e", about.e),
            ("kc", pid.map_or(0.0, |pid| pid.kc)),
            ("xp", of_pid(|pid| pid.xp)),
            ("b", of_pid(|pid| Some(pid.observer.b))),
            ("c", of_pid(|pid| pid.observer.c) * state.work.w),
        ] {
            if !row[field].is_null() {
                near(field, n, got, &row[field]);
                *counts.entry(field).or_default() += 1;
            }
        }
    }
    assert_eq!(counts, compared.iter().copied().collect(), "{name}");
}

/// The number of comparisons of a series: `all` of the columns that every row has, and `read` of
/// those that begin with the first reading.
macro_rules! compared {
    ($all:literal: $($every:ident)*, $read:literal: $($later:ident)*) => {
        &[$((stringify!($every), $all),)* $((stringify!($later), $read),)*]
    };
}

const WIDE: Bounds = Bounds {
    min: 0.1,
    max: 1000.0,
    safe_rps: 0.0,
};

#[test]
fn the_first_ticks() {
    let compared = compared!(24: knob u e kc i, 19: x z xp b c);
    run(
        "first_ticks",
        &policy(&[("mongo", SignalKind::Load, 2.0, 60.0)]),
        10.0,
        WIDE,
        compared,
    );
}

#[test]
fn blindness_and_return() {
    let compared = compared!(50: knob u e kc i, 50: x z xp b c);
    run(
        "stale",
        &policy(&[("mongo", SignalKind::Load, 2.0, 60.0)]),
        10.0,
        WIDE,
        compared,
    );
}

#[test]
fn a_trip_and_its_restart() {
    let compared = compared!(120: knob, 114: x z xp b c);
    run(
        "breaker",
        &policy(&[("mongo", SignalKind::Load, 2.0, 60.0)]),
        10.0,
        WIDE,
        compared,
    );
}

#[test]
fn the_minimum_over_two_signals() {
    let compared = compared!(60: knob u e kc i, 60: x z xp b c);
    run(
        "selection",
        &policy(&[
            ("mongo", SignalKind::Load, 2.0, 60.0),
            ("es", SignalKind::Load, 4.0, 60.0),
        ]),
        10.0,
        WIDE,
        compared,
    );
}

#[test]
fn an_empty_queue_does_not_wind_up() {
    let compared = compared!(69: knob u e kc i, 67: x z xp b c);
    run(
        "idle",
        &policy(&[("mongo", SignalKind::Load, 2.0, 60.0)]),
        10.0,
        WIDE,
        compared,
    );
}

#[test]
fn a_quota_that_halves() {
    let compared = compared!(60: knob u e kc i, 58: x z);
    run(
        "ratio",
        &policy(&[("p429", SignalKind::Ratio, 0.01, 0.0)]),
        80.0,
        WIDE,
        compared,
    );
}

#[test]
fn durations_as_an_inner_loop() {
    let mut policy = policy(&[("mongo", SignalKind::Load, 2.0, 60.0)]);
    policy.law.durations = true;
    run(
        "durations",
        &policy,
        10.0,
        WIDE,
        compared!(40: knob u e kc i, 38: x z xp b c),
    );
}

#[test]
fn eighty_minutes_with_a_tenfold_cost_step() {
    let trace = &vectors()["trace_s1"];
    let policy = policy(&[("mongo", SignalKind::Load, 2.0, 60.0)]);
    let bounds = Bounds {
        min: 0.1,
        max: 100.0,
        safe_rps: 0.0,
    };
    let mut state = ControlState::new(&policy, bounds, RateLimit::PerSecond(100.0), 0.0);
    for (n, row) in trace["rows"].as_array().unwrap().iter().enumerate() {
        let now = row[0].as_f64().unwrap();
        let sample = |p: &Value| SignalSample {
            signal: "mongo".to_owned(),
            value: p[1].as_f64(),
            at: p[0].as_f64().unwrap(),
        };
        let seen = Observation {
            now,
            readings: row[3].as_array().unwrap().iter().map(sample).collect(),
            achieved_rps: row[1].as_f64(),
            limiting_share: row[2].as_f64(),
            ..Observation::default()
        };
        near("knob", n, state.tick(&policy, bounds, &seen).rps, &row[4]);
    }
}

#[test]
fn the_parts() {
    let vectors = vectors();
    let number = |v: &Value| v.as_f64().unwrap();
    for (n, case) in vectors["delag"].as_array().unwrap().iter().enumerate() {
        near(
            "z",
            n,
            delag(
                number(&case["x1"]),
                number(&case["x0"]),
                number(&case["dt"]),
                number(&case["tau"]),
            ),
            &case["z"],
        );
    }
    let mut history = History::default();
    for record in vectors["history"]["records"].as_array().unwrap() {
        history.push(number(&record[0]), 5.0, number(&record[1]));
    }
    for (n, case) in vectors["history"]["mean"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
    {
        near(
            "mean",
            n,
            history.mean(number(&case["a"]), number(&case["b"])),
            &case["out"],
        );
    }
    for (n, case) in vectors["history"]["ema"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
    {
        near(
            "lagged",
            n,
            history.lagged(number(&case["at"]), number(&case["tau"])),
            &case["out"],
        );
    }
    let mut observer = Observer::default();
    for (n, step) in vectors["observer"]["steps"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
    {
        observer.update(
            number(&step["z"]),
            number(&step["phi"]),
            number(&step["dt"]),
        );
        near("b", n, observer.b, &step["b"]);
        near("c", n, observer.c.unwrap(), &step["c"]);
        near("R", n, observer.noise, &step["R"]);
        near("room", n, observer.room(0.0).unwrap(), &step["room"]);
        near("room1", n, observer.room(1.0).unwrap(), &step["room1"]);
    }
    let mut pid = LogPid::default();
    for (n, call) in vectors["pid_terms"]["calls"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
    {
        // With dt 1: ki = kc/ti, kd = kc*td. Following 0, the integral stays 0.
        let (kp, ki, kd) = (
            number(&call["kp"]),
            number(&call["ki"]),
            number(&call["kd"]),
        );
        let (_, terms) = pid.next(
            Gains {
                kc: kp,
                ti_s: kp / ki,
                td_s: kd / kp,
            },
            number(&call["y"]),
            0.0,
            1.0,
        );
        for (got, expected) in [terms.p, terms.i, terms.d]
            .into_iter()
            .zip(call["out"].as_array().unwrap())
        {
            near("term", n, got, expected);
        }
    }
}
