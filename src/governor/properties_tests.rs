//! Invariants of the law for any input. The cases are the same in every run.

use crate::throttle::RateLimit;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::Value;

use super::bounds::Bounds;
use super::explain::Cause;
use super::law::Phase;
use super::plant_tests::Plant;
use super::policy::{Policy, SignalKind, SignalPolicy as About, SignalSource};
use super::{ControlState, Observation, Plan, SignalSample};

/// Returns a configuration with the same cases in every run.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        rng_seed: RngSeed::Fixed(5),
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    }
}

/// Returns hostile numbers.
fn wild() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => 0.0..5.0f64,
        1 => any::<f64>(),
        1 => prop::sample::select(vec![
            f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, -0.0, 1.0, 1e9, 1e12, 1e308, -1e308, 1e-308, 5e-324,
        ]),
    ]
}

fn maybe_wild() -> impl Strategy<Value = Option<f64>> {
    prop::option::of(wild())
}

/// An event in the life of a governor.
#[derive(Clone, Debug)]
enum GovernorEvent {
    Tick(Box<Observation>),
    Look {
        achieved: Option<f64>,
        looks: Vec<SignalSample>,
    },
    Follow(f64),
    Lapsed(f64),
    Knobs(Bounds),
    Successor,
}

/// Returns a time: mostly a little later, sometimes long before or after, rarely absurd.
///
/// The first part is relative to now, the second absolute.
fn time() -> impl Strategy<Value = (f64, Option<f64>)> {
    prop_oneof![
        8 => (0.0..8.0f64).prop_map(|step| (step, None)),
        1 => (-5000.0..5000.0f64).prop_map(|step| (step, None)),
        1 => wild().prop_map(|at| (0.0, Some(at))),
    ]
}

fn samples() -> impl Strategy<Value = Vec<SignalSample>> {
    let name = prop::sample::select(vec![
        "load", "load", "load", "other", "refused", "nobody", "",
    ]);
    let sample = (
        name,
        maybe_wild(),
        prop_oneof![3 => -10.0..5.0f64, 1 => wild()],
    )
        .prop_map(|(name, value, at)| SignalSample {
            signal: name.to_owned(),
            value,
            at,
        });
    prop::collection::vec(sample, 0..4)
}

/// Returns events whose times are still relative.
fn event() -> impl Strategy<Value = ((f64, Option<f64>), GovernorEvent)> {
    let tick = (
        samples(),
        maybe_wild(),
        maybe_wild(),
        maybe_wild(),
        wild(),
        wild(),
        prop::option::weighted(0.1, wild()),
    );
    let tick = tick.prop_map(
        |(
            readings,
            achieved_rps,
            limiting_share,
            mean_duration_s,
            completed,
            rejected,
            knob_rps,
        )| {
            GovernorEvent::Tick(Box::new(Observation {
                now: 0.0,
                readings,
                achieved_rps,
                limiting_share,
                mean_duration_s,
                completed,
                rejected,
                idle: false,
                discounted: rejected > completed,
                waiting: None,
                shared: None,
                capacity_rps: None,
                is_breakers_stop: false,
                knob_rps: knob_rps.map(RateLimit::new),
            }))
        },
    );
    let bounds = (wild(), wild(), wild())
        .prop_map(|(min, max, safe_rps)| GovernorEvent::Knobs(Bounds { min, max, safe_rps }));
    let what = prop_oneof![
        8 => tick,
        4 => (maybe_wild(), samples()).prop_map(|(achieved, looks)| GovernorEvent::Look { achieved, looks }),
        1 => wild().prop_map(GovernorEvent::Follow),
        1 => wild().prop_map(GovernorEvent::Lapsed),
        1 => bounds,
        1 => Just(GovernorEvent::Successor),
    ];
    (time(), what)
}

fn events() -> impl Strategy<Value = Vec<((f64, Option<f64>), GovernorEvent)>> {
    prop::collection::vec(event(), 1..100)
}

/// Returns a policy with a probed load, a second load and a share of refusals.
fn policy(durations: bool, signals: usize, model: bool) -> Policy {
    let mut policy = Plant::quick().policy;
    (policy.law.durations, policy.law.model) = (durations, model);
    let load = policy.signals[0].clone();
    policy.signals.push(About {
        name: "other".to_owned(),
        lag_s: 60.0,
        probe: None,
        kind: SignalKind::Latency,
        ..load.clone()
    });
    let refused = About {
        name: "refused".to_owned(),
        kind: SignalKind::Ratio,
        source: SignalSource::Feedback,
        setpoint: 0.01,
        lag_s: 0.0,
        probe: None,
        ..load
    };
    policy.signals.push(refused);
    policy.signals.truncate(signals);
    policy
}

const BOUNDS: Bounds = Bounds {
    min: 1.0,
    max: 2000.0,
    safe_rps: 5.0,
};

/// A governor under test.
struct Subject {
    policy: Policy,
    bounds: Bounds,
    state: ControlState,
    now: f64,
}

impl Subject {
    fn new(policy: Policy) -> Self {
        let state = ControlState::new(&policy, BOUNDS, RateLimit::PerSecond(20.0), 0.0);
        Self {
            policy,
            bounds: BOUNDS,
            state,
            now: 0.0,
        }
    }

    fn meets(
        &mut self,
        (step, absolute): (f64, Option<f64>),
        event: &GovernorEvent,
    ) -> Result<(), TestCaseError> {
        let now = absolute.unwrap_or(self.now + step);
        // A time that is not finite is tried once, and the clock continues from before.
        self.now = if now.is_finite() { now } else { self.now };
        let at = |samples: &[SignalSample]| -> Vec<SignalSample> {
            samples
                .iter()
                .map(|s| SignalSample {
                    at: now + s.at,
                    ..s.clone()
                })
                .collect()
        };
        match event {
            GovernorEvent::Tick(seen) => {
                let seen = Observation {
                    now,
                    readings: at(&seen.readings),
                    ..(**seen).clone()
                };
                let plan = self.state.tick(&self.policy, self.bounds, &seen);
                self.allows(&plan)?;
                sound(&plan)?;
            }
            GovernorEvent::Look { achieved, looks } => {
                if let Some(plan) =
                    self.state
                        .fast(&self.policy, self.bounds, now, *achieved, &at(looks))
                {
                    sound(&plan)?;
                    prop_assert_eq!(
                        (plan.rps, plan.breaker),
                        (0.0, Phase::Open),
                        "the fast path only stops"
                    );
                }
            }
            GovernorEvent::Follow(rps) => {
                let seen = Observation {
                    now,
                    ..Observation::default()
                };
                let plan = self.state.follow(
                    &self.policy,
                    self.bounds,
                    &seen,
                    RateLimit::new(*rps),
                    Cause::followed("a person has it"),
                );
                prop_assert!(plan.rps.is_finite() && plan.rps >= -1.0, "{plan:?}");
            }
            GovernorEvent::Lapsed(rps) => {
                self.state
                    .restart_from(&self.policy, self.bounds, RateLimit::new(*rps), self.now)
            }
            GovernorEvent::Knobs(bounds) => self.bounds = *bounds,
            GovernorEvent::Successor => {
                let stored = serde_json::to_value(&self.state).expect("a state is JSON");
                let text = stored.to_string();
                let resumed = crate::governor::stored::resume(stored, &self.policy, self.now);
                prop_assert!(resumed.is_some(), "{text}");
                self.state = resumed.expect("looked at above");
            }
        }
        Ok(())
    }

    /// Asserts that the rate is inside its bounds, or zero; a manual rate may be lower for a while.
    fn allows(&self, plan: &Plan) -> Result<(), TestCaseError> {
        let Bounds { min, max, .. } = self.bounds.sound();
        let least = self.state.hold.map_or(min, |hold| min.min(hold.rps));
        let inside = (least * (1.0 - 1e-9)..=max * (1.0 + 1e-9)).contains(&plan.rps);
        prop_assert!(
            plan.rps == 0.0 || inside,
            "{} outside {least} to {max}: {plan:?}",
            plan.rps
        );
        Ok(())
    }
}

/// Asserts that the plan is finite and not negative, and that its texts contain no NaN or infinity.
fn sound(plan: &Plan) -> Result<(), TestCaseError> {
    prop_assert!(plan.rps.is_finite() && plan.rps >= 0.0, "{plan:?}");
    prop_assert!(
        !plan.reason.contains("NaN") && !plan.reason.contains("inf"),
        "{}",
        plan.reason
    );
    prop_assert!(
        plan.terms.values().all(|term| !term.is_null()),
        "{:?}",
        plan.terms
    );
    Ok(())
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-5 * a.abs().max(b.abs())
}

/// Returns an observation of these loads at `now`, with tokens in demand.
fn reading(now: f64, rate: f64, loads: &[(&str, f64)]) -> Observation {
    let readings = loads.iter().map(|(name, value)| SignalSample {
        signal: (*name).to_owned(),
        value: Some(*value),
        at: now - 0.5,
    });
    Observation {
        now,
        readings: readings.collect(),
        achieved_rps: Some(rate),
        limiting_share: Some(1.0),
        ..Observation::default()
    }
}

/// Returns a governor that has seen these loads, one per tick.
fn lived(policy: &Policy, loads: &[(f64, f64)]) -> ControlState {
    let mut state = ControlState::new(policy, BOUNDS, RateLimit::PerSecond(20.0), 0.0);
    for (n, (load, other)) in loads.iter().enumerate() {
        let rate = state.knob;
        state.tick(
            policy,
            BOUNDS,
            &reading(
                2.0 * (n + 1) as f64,
                rate,
                &[("load", *load), ("other", *other)],
            ),
        );
    }
    state
}

/// Returns the knob that one more tick would set.
fn next(state: &ControlState, policy: &Policy, bounds: Bounds, loads: &[(&str, f64)]) -> f64 {
    let mut state = state.clone();
    let (now, rate) = (state.at.expect("it has lived") + 2.0, state.knob);
    state.tick(policy, bounds, &reading(now, rate, loads)).rps
}

fn life() -> impl Strategy<Value = Vec<(f64, f64)>> {
    prop::collection::vec((0.0..1.6f64, 0.0..1.6f64), 2..60)
}

/// Replaces one value somewhere in a stored state.
fn spoil(value: &mut Value, place: &mut usize, garbage: &Value) {
    match value {
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| spoil(item, place, garbage)),
        Value::Object(fields) => fields
            .values_mut()
            .for_each(|field| spoil(field, place, garbage)),
        leaf => {
            if *place == 0 {
                *leaf = garbage.clone();
            }
            *place = place.wrapping_sub(1);
        }
    }
}

fn leaves(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(leaves).sum(),
        Value::Object(fields) => fields.values().map(leaves).sum(),
        _ => 1,
    }
}

fn garbage() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        any::<f64>(),
        prop::sample::select(vec![0.0, -1.0, 1e308, -1e308, 1e-308, 5e-324, 1e15, -1e15])
    ];
    prop_oneof![
        12 => number.prop_map(|x| serde_json::json!(x)),
        1 => Just(Value::Null),
        1 => Just(serde_json::json!(true)),
        1 => Just(serde_json::json!("open")),
    ]
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn whatever_happens_the_rate_is_zero_or_inside_its_bounds_and_the_state_can_be_stored(
        events in events(), durations in any::<bool>(), signals in 1..4usize, model in any::<bool>(),
    ) {
        let mut subject = Subject::new(policy(durations, signals, model));
        for (time, event) in &events {
            subject.meets(*time, event)?;
        }
        let stored = serde_json::to_value(&subject.state).expect("a state is JSON");
        let text = stored.to_string();
        prop_assert!(crate::governor::stored::read(stored, &subject.policy).is_some(), "{text}");
    }

    #[test]
    fn a_state_that_was_stored_goes_on_as_the_one_that_was_not(
        events in events(), durations in any::<bool>(), signals in 1..4usize, model in any::<bool>(), load in 0.0..3.0f64,
    ) {
        let mut subject = Subject::new(policy(durations, signals, model));
        for (time, event) in &events {
            subject.meets(*time, event)?;
        }
        let stored = serde_json::to_string(&subject.state).expect("a state is JSON");
        let mut restored = crate::governor::stored::read(serde_json::from_str(&stored).expect("JSON"), &subject.policy).expect("a state");
        let now = subject.state.at.unwrap_or(0.0) + 2.0;
        let seen = reading(now, subject.state.knob.max(0.0), &[("load", load), ("other", load)]);
        let (a, b) = (subject.state.tick(&subject.policy, BOUNDS, &seen), restored.tick(&subject.policy, BOUNDS, &seen));
        // A number may lose its last bit as text, which is a large part of a millisecond for a time
        // in the far future.
        prop_assert!(close(a.rps, b.rps) && a.breaker == b.breaker, "{a:?}\n{b:?}");
    }

    #[test]
    fn a_stored_state_that_was_spoilt_is_refused_or_governs_within_bounds(
        life in life(), spoilt in prop::collection::vec((any::<prop::sample::Index>(), garbage()), 1..6), durations in any::<bool>(), model in any::<bool>(),
    ) {
        let policy = policy(durations, 3, model);
        let state = lived(&policy, &life);
        let mut stored = serde_json::to_value(&state).expect("a state is JSON");
        for (place, garbage) in &spoilt {
            let mut place = place.index(leaves(&stored));
            spoil(&mut stored, &mut place, garbage);
        }
        let Some(state) = crate::governor::stored::resume(stored, &policy, state.at.unwrap_or(0.0)) else { return Ok(()) };
        let mut subject = Subject { now: state.at.unwrap_or(0.0), policy, bounds: BOUNDS, state };
        for n in 0..20 {
            let load = 0.8 + 0.02 * f64::from(n);
            let readings = vec![SignalSample { signal: "load".to_owned(), value: Some(load), at: -0.5 }];
            let seen = Observation { readings, achieved_rps: Some(20.0), limiting_share: Some(1.0), ..Observation::default() };
            subject.meets((2.0, None), &GovernorEvent::Tick(Box::new(seen)))?;
            let stored = serde_json::to_value(&subject.state).expect("a state is JSON");
            prop_assert!(crate::governor::stored::read(stored, &subject.policy).is_some(), "what it keeps can be read again");
        }
    }

    #[test]
    fn a_higher_reading_never_gives_a_higher_rate(life in life(), a in 0.0..6.0f64, b in 0.0..6.0f64, breaker in any::<bool>(), model in any::<bool>()) {
        let mut policy = policy(false, 1, model);
        policy.law.breaker = breaker;
        let state = lived(&policy, &life);
        let (low, high) = (next(&state, &policy, BOUNDS, &[("load", a.min(b))]), next(&state, &policy, BOUNDS, &[("load", a.max(b))]));
        prop_assert!(high <= low * (1.0 + 1e-9), "{} reads {}: {low}; {}: {high}", "load", a.min(b), a.max(b));
    }

    #[test]
    fn a_higher_setpoint_never_gives_a_lower_rate(life in life(), load in 0.0..4.0f64, a in 0.5..2.0f64, b in 0.5..2.0f64, model in any::<bool>()) {
        let policy = policy(false, 1, model);
        let state = lived(&policy, &life);
        let at = |setpoint: f64| {
            let mut policy = policy.clone();
            (policy.signals[0].setpoint, policy.signals[0].trip) = (setpoint, 2.0 * setpoint);
            next(&state, &policy, BOUNDS, &[("load", load)])
        };
        let (low, high) = (at(a.min(b)), at(a.max(b)));
        prop_assert!(low <= high * (1.0 + 1e-9), "setpoint {}: {low}; {}: {high}", a.min(b), a.max(b));
    }

    #[test]
    fn above_the_setpoint_no_model_raises_the_rate(life in life(), breaker in any::<bool>()) {
        let mut policy = policy(false, 1, true);
        policy.law.breaker = breaker;
        let mut state = ControlState::new(&policy, BOUNDS, RateLimit::PerSecond(20.0), 0.0);
        for (n, (load, _)) in life.iter().enumerate() {
            let (before, phase) = (state.knob, state.breaker.phase);
            let seen = reading(2.0 * (n + 1) as f64, before, &[("load", *load)]);
            let rps = state.tick(&policy, BOUNDS, &seen).rps;
            let is_over = state.signals[0].predicted().is_some_and(|x| x > 1.0);
            prop_assert!(!is_over || phase == Phase::Open || rps <= before * (1.0 + 1e-9), "{before} to {rps}");
        }
    }

    #[test]
    fn a_higher_trip_level_never_gives_a_lower_rate(life in life(), load in 0.0..8.0f64, a in 1.1..6.0f64, b in 1.1..6.0f64, model in any::<bool>()) {
        let policy = policy(false, 1, model);
        let state = lived(&policy, &life);
        let at = |trip: f64| {
            let mut policy = policy.clone();
            policy.signals[0].trip = trip;
            next(&state, &policy, BOUNDS, &[("load", load)])
        };
        prop_assert!(at(a.min(b)) <= at(a.max(b)) * (1.0 + 1e-9));
    }

    #[test]
    fn lower_knobs_min_and_max_never_raise_the_rate(life in life(), load in 0.0..2.0f64, a in 1.0..500.0f64, b in 1.0..500.0f64, model in any::<bool>()) {
        let policy = policy(false, 1, model);
        let state = lived(&policy, &life);
        let max = |max: f64| next(&state, &policy, Bounds { max, ..BOUNDS }, &[("load", load)]);
        prop_assert!(max(a.min(b)) <= max(a.max(b)) * (1.0 + 1e-9));
        let min = |min: f64| next(&state, &policy, Bounds { min, ..BOUNDS }, &[("load", load)]);
        prop_assert!(min(a.min(b)) <= min(a.max(b)) * (1.0 + 1e-9));
    }

    #[test]
    fn another_signal_never_raises_the_rate(life in life(), load in 0.5..3.0f64, other in 0.0..3.0f64, model in any::<bool>()) {
        // A signal far from its limit abstains in favour of one that is nearer: the first is not
        // far.
        let (one, two) = (policy(false, 1, model), policy(false, 2, model));
        let both = lived(&two, &life);
        let mut alone = both.clone();
        alone.signals.truncate(1);
        let with = next(&both, &two, BOUNDS, &[("load", load), ("other", other)]);
        let without = next(&alone, &one, BOUNDS, &[("load", load)]);
        prop_assert!(with <= without * (1.0 + 1e-9), "{with} with the second, {without} without");
    }
}

proptest! {
    #![proptest_config(cases(30))]

    #[test]
    fn sane_readings_bring_the_rate_back_whatever_was_before(events in events(), durations in any::<bool>(), model in any::<bool>()) {
        let mut subject = Subject::new(policy(durations, 1, model));
        for (time, event) in &events {
            subject.meets(*time, event)?;
        }
        // Half an hour in the present century on a plant that reaches the setpoint at 80 jobs per
        // second.
        let (mut rate, mut average, began) = (subject.state.knob.max(0.0), 0.5, 1_700_000_000.0);
        let person = subject.state.stopped.then_some(RateLimit::PerSecond(20.0));
        let mut last = Plan::default();
        for n in 1..=900 {
            let (now, load) = (began + 2.0 * f64::from(n), 0.2 + 0.01 * rate);
            average += (load - average) * (1.0 - (-2.0f64 / 5.0).exp());
            let mut seen = reading(now, rate, &[("load", average)]);
            (seen.mean_duration_s, seen.knob_rps) = (Some(0.1), person.filter(|_| n == 1));
            last = subject.state.tick(&subject.policy, BOUNDS, &seen);
            rate = last.rps;
        }
        prop_assert!((40.0..=120.0).contains(&rate), "{rate} after half an hour: {last:?}");
    }
}
