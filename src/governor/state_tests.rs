use crate::throttle::RateLimit;
use proptest::prelude::*;

use super::*;
use crate::governor::plant_tests::Plant;
use crate::governor::policy::{FeedbackKind, SignalKind, SignalPolicy as About, SignalSource};

fn settled(mut plant: Plant, seconds: u64) -> Plant {
    plant.run(seconds);
    plant
}

/// Creates the quick plant with or without a model of the load.
fn quick(model: bool) -> Plant {
    let mut plant = Plant::quick();
    plant.policy.law.model = model;
    plant
}

#[test]
fn the_load_is_held_at_the_setpoint_within_a_tenth() {
    for (plant, noise) in [
        (Plant::quick(), 0.0),
        (Plant::quick(), 0.1),
        (Plant::usual(), 0.0),
        (Plant::usual(), 0.1),
    ] {
        let mut plant = plant;
        plant.noise = noise;
        plant.run(3600);
        let mean = plant.mean_load(1800.0);
        assert!((mean - 1.0).abs() < 0.1, "noise {noise}: {mean}");
        assert!(
            plant.since(1800.0).all(|s| s.phase == Phase::Closed),
            "noise {noise}"
        );
    }
}

#[test]
fn one_tuning_fits_costs_over_four_decades() {
    for cost in [1e-4, 1e-3, 1e-2, 0.1, 0.5] {
        let mut plant = Plant::usual();
        plant.bounds = Bounds {
            min: 1e-3,
            max: 1e5,
            safe_rps: 1.0,
        };
        (plant.cost, plant.knob) = (cost, 0.1 / cost);
        plant.state =
            ControlState::new(&plant.policy, plant.bounds, RateLimit::new(plant.knob), 0.0);
        plant.run(3600);
        assert!(
            (plant.mean_load(1800.0) - 1.0).abs() < 0.1,
            "{cost}: {}",
            plant.mean_load(1800.0)
        );
    }
}

#[test]
fn a_tenfold_cost_step_is_caught_by_the_probe_and_recovered_within_a_minute() {
    let mut plant = settled(Plant::quick(), 600);
    plant.cost *= 10.0;
    let step = plant.now;
    plant.run(300);

    let tripped = plant
        .since(step)
        .find(|s| s.phase == Phase::Open)
        .expect("trips")
        .t;
    assert!(tripped - step <= 3.0, "tripped after {} s", tripped - step);
    let peak = plant.since(step).map(|s| s.average).fold(0.0, f64::max);
    assert!(peak < 4.5, "peak {peak}");
    let seconds_over = plant.since(step).filter(|s| s.load > 1.2).count();
    assert!(seconds_over <= 4, "{seconds_over} s of overload");
    let back = plant
        .since(step + 5.0)
        .find(|s| s.knob >= 0.8 * plant.room())
        .expect("recovers")
        .t;
    assert!(back - step <= 60.0, "back after {} s", back - step);
    let trips = plant
        .since(step)
        .zip(plant.since(step + 1.0))
        .filter(|(a, b)| a.phase != Phase::Open && b.phase == Phase::Open);
    assert!(trips.count() <= 1, "no second overload");
    assert!((plant.mean_load(step + 120.0) - 1.0).abs() < 0.1);
}

#[test]
fn quick_settings_bear_noise_later_samples_and_rough_guesses_of_the_lag() {
    for (noise, visible_s, lag_s, step) in [
        (0.1, 1.0, 5.0, 10.0),
        (0.0, 5.0, 5.0, 10.0),
        (0.1, 3.0, 12.0, 10.0),
        (0.05, 1.0, 2.0, 10.0),
        (0.05, 1.0, 5.0, 3.0),
        (0.05, 1.0, 5.0, 30.0),
    ] {
        let mut plant = Plant::quick();
        (plant.noise, plant.visible_s, plant.lag_s) = (noise, visible_s, lag_s);
        plant.run(900);
        let case =
            format!("noise {noise}, visible after {visible_s} s, lag {lag_s} s, cost x{step}");
        assert!(
            (plant.mean_load(450.0) - 1.0).abs() < 0.1,
            "{case}: {}",
            plant.mean_load(450.0)
        );
        plant.cost *= step;
        plant.run(300);
        let over = plant.since(900.0).filter(|s| s.load > 1.2).count();
        let trips = plant
            .since(900.0)
            .zip(plant.since(901.0))
            .filter(|(a, b)| a.phase != Phase::Open && b.phase == Phase::Open)
            .count();
        let back = plant
            .since(910.0)
            .find(|s| s.knob >= 0.8 * plant.room())
            .map_or(f64::NAN, |s| s.t - 900.0);
        assert!(
            over <= 25 && trips <= 2 && back <= 100.0,
            "{case}: {over} s over, {trips} trips, back after {back} s"
        );
        assert!(
            (plant.mean_load(1050.0) - 1.0).abs() < 0.1,
            "{case}: {}",
            plant.mean_load(1050.0)
        );
    }
}

#[test]
fn a_tenfold_cost_step_is_bounded_even_through_late_metrics() {
    let mut plant = settled(Plant::usual(), 1800);
    plant.cost *= 10.0;
    let step = plant.now;
    plant.run(1200);

    let peak = plant.since(step).map(|s| s.average).fold(0.0, f64::max);
    assert!(peak < 5.5, "peak {peak}");
    let back = plant
        .since(step + 45.0)
        .find(|s| s.knob >= 0.8 * plant.room())
        .expect("recovers")
        .t;
    assert!(back - step <= 240.0, "back after {} s", back - step);
    assert!((plant.mean_load(step + 600.0) - 1.0).abs() < 0.1);
}

#[test]
fn the_restart_is_half_open_and_not_raised_until_a_sample_confirms_it() {
    for model in [false, true] {
        let mut plant = settled(quick(model), 600);
        plant.cost *= 10.0;
        let step = plant.now;
        plant.run(120);
        let half: Vec<f64> = plant
            .since(step)
            .filter(|s| s.phase == Phase::HalfOpen)
            .map(|s| s.knob)
            .collect();
        assert!(!half.is_empty());
        assert!(half.windows(2).all(|w| w[1] <= w[0]), "{half:?}");
        assert!(half[0] <= 0.85 * plant.room(), "{half:?}");
    }
}

#[test]
fn a_blind_governor_holds_then_decays_to_the_safe_rate_and_comes_back() {
    for plant in [Plant::quick(), Plant::usual()] {
        let mut plant = settled(plant, 1800);
        let before = plant.knob;
        plant.sighted = false;
        let dark = plant.now;
        plant.run(120);
        let hold_s = plant.policy.law.stale_hold_s;
        let during: Vec<f64> = plant.since(dark + 25.0).map(|s| s.knob).collect();
        assert!(
            during.windows(2).all(|w| w[1] <= w[0] * (1.0 + 1e-3)),
            "never rises while blind"
        );
        let held = plant
            .since(dark)
            .take_while(|s| s.t < dark + hold_s - 2.0 * plant.policy.law.tick_s)
            .last()
            .unwrap()
            .knob;
        assert!(
            (held / before - 1.0).abs() < 0.06,
            "held {held} of {before}"
        );
        plant.run(900);
        assert!(
            (plant.knob - plant.bounds.safe_rps).abs() < 1e-9,
            "{}",
            plant.knob
        );
        assert!(
            plant.plan.reason.contains("no new reading of load for"),
            "{}",
            plant.plan.reason
        );

        plant.sighted = true;
        plant.run(900);
        assert!(
            (plant.mean_load(plant.now - 300.0) - 1.0).abs() < 0.15,
            "{}",
            plant.mean_load(plant.now - 300.0)
        );
    }
}

#[test]
fn a_rate_that_grows_stops_growing_when_the_next_reading_is_late() {
    let mut plant = settled(Plant::quick(), 600);
    plant.cost /= 10.0;
    plant.run(15);
    let (growing, dark) = (plant.knob, plant.now);
    plant.sighted = false;

    plant.run(18);

    let late: Vec<f64> = plant.since(dark + 7.0).map(|s| s.knob).collect();
    assert!(
        growing > 1.2 * plant.since(dark - 15.0).next().unwrap().knob,
        "it was growing"
    );
    assert!(late.windows(2).all(|w| w[1] <= w[0]), "{late:?}");
    assert_eq!(plant.plan.limiting, "late", "{}", plant.plan.reason);
}

#[test]
fn blind_below_the_safe_rate_it_does_not_rise_to_it() {
    let mut plant = settled(Plant::quick(), 600);
    plant.bounds.safe_rps = 500.0;
    let before = plant.knob;
    plant.sighted = false;
    plant.run(600);
    assert!(plant.knob <= before * 1.01);
}

#[test]
fn a_persons_rate_is_the_new_start_and_is_not_exceeded_for_a_minute() {
    let mut plant = settled(Plant::quick(), 600);
    let (before, at) = (plant.knob, plant.now);
    plant.person = Some(30.0);
    plant.run(60);
    assert!(plant.since(at + 2.0).all(|s| s.knob <= 30.0 + 1e-9));
    assert_eq!(plant.plan.limiting, "person", "{}", plant.plan.reason);
    assert!(
        plant.plan.reason.contains("a person set 30 rps"),
        "{}",
        plant.plan.reason
    );
    plant.run(10);
    assert!(
        plant.knob > 30.0 && plant.knob < 40.0,
        "then grows from there: {}",
        plant.knob
    );
    plant.run(300);
    assert!((plant.knob / before - 1.0).abs() < 0.1);
}

#[test]
fn a_held_rate_is_still_lowered_and_the_breaker_still_works() {
    let mut plant = settled(Plant::quick(), 600);
    plant.person = Some(120.0);
    plant.run(50);
    assert!(
        plant.knob < 110.0,
        "too much: lowered all the same, {}",
        plant.knob
    );

    plant.person = Some(110.0);
    plant.cost *= 20.0;
    plant.run(10);
    assert!(plant.since(650.0).any(|s| s.phase == Phase::Open));
}

#[test]
fn a_persons_stop_stays_until_a_person_ends_it() {
    for model in [false, true] {
        let mut plant = settled(quick(model), 600);
        plant.person = Some(0.0);
        plant.run(600);
        assert!(plant.since(602.0).all(|s| s.knob == 0.0));
        plant.person = Some(40.0);
        plant.run(10);
        assert!((plant.knob - 40.0).abs() < 1e-9);
        plant.run(300);
        assert!((plant.mean_load(plant.now - 60.0) - 1.0).abs() < 0.1);
    }
}

#[test]
fn a_persons_rate_below_the_minimum_is_respected_while_it_is_held() {
    let mut plant = settled(Plant::quick(), 600);
    plant.person = Some(0.25);
    plant.run(30);
    assert!((plant.knob - 0.25).abs() < 1e-9);
    plant.run(60);
    assert!(plant.knob >= plant.bounds.min);
}

#[test]
fn a_throttle_that_nobody_uses_does_not_wind_up() {
    for mut plant in [Plant::quick(), Plant::usual()] {
        plant.run(1800);
        let before = plant.knob;
        plant.demand = 0.1;
        plant.run(3600);
        assert!(plant.knob <= before * 1.1, "{} from {before}", plant.knob);
        plant.demand = f64::INFINITY;
        let back = plant.now;
        plant.run(600);
        let peak = plant.since(back).map(|s| s.average).fold(0.0, f64::max);
        assert!(peak < 1.6, "{peak}");
    }
}

#[test]
fn it_never_grows_faster_than_fourfold_a_minute() {
    let mut plant = Plant::quick();
    plant.cost = 1e-6;
    plant.run(120);
    let rates: Vec<f64> = plant.record.iter().map(|s| s.knob).collect();
    for w in rates.windows(61) {
        assert!(w[60] <= w[0] * 4.2, "{} to {}", w[0], w[60]);
    }
}

#[test]
fn a_successor_with_the_stored_state_goes_on_without_a_jump() {
    let mut plant = settled(Plant::usual(), 1800);
    let before = plant.knob;
    let stored = serde_json::to_value(&plant.state).unwrap();
    plant.now += 20.0;
    plant.state = crate::governor::stored::resume(stored, &plant.policy, plant.now).unwrap();
    plant.run(10);
    assert!(
        (plant.knob / before - 1.0).abs() < 0.01,
        "{} after {before}",
        plant.knob
    );
}

#[test]
fn a_successor_without_state_starts_from_the_knob_in_force() {
    let mut plant = settled(Plant::usual(), 1800);
    let before = plant.knob;
    plant.state = ControlState::new(
        &plant.policy,
        plant.bounds,
        RateLimit::new(before),
        plant.now,
    );
    plant.run(60);
    assert!((plant.knob / before - 1.0).abs() < 0.05);
    plant.run(600);
    assert!((plant.mean_load(plant.now - 300.0) - 1.0).abs() < 0.1);
}

#[test]
fn a_state_of_another_form_is_not_taken_up() {
    let plant = Plant::quick();
    let mut stored = serde_json::to_value(&plant.state).unwrap();
    assert!(crate::governor::stored::resume(stored.clone(), &plant.policy, 0.0).is_some());
    stored["form"] = 99.into();
    assert_eq!(
        crate::governor::stored::resume(stored, &plant.policy, 0.0),
        None
    );
    assert_eq!(
        crate::governor::stored::resume(serde_json::json!({"u": 1}), &plant.policy, 0.0),
        None
    );
}

#[test]
fn another_setpoint_is_reached_without_a_stop_or_a_swing() {
    for setpoint in [0.8, 1.3] {
        let mut plant = Plant::usual();
        plant.policy.law.model = true;
        plant.run(1800);
        let (before, changed) = (plant.knob, plant.now);
        let signal = &mut plant.policy.signals[0];
        (signal.setpoint, signal.trip) = (setpoint, 2.0 * setpoint);
        plant.run(1200);
        let room = (setpoint - plant.background) / plant.cost;
        let (least, most) = (0.9 * before.min(room), 1.1 * before.max(room));
        assert!(
            plant
                .since(changed)
                .all(|s| s.phase == Phase::Closed && (least..=most).contains(&s.knob)),
            "{setpoint}: outside {least} to {most}"
        );
        let mean = plant.mean_load(changed + 600.0);
        assert!((mean / setpoint - 1.0).abs() < 0.1, "{setpoint}: {mean}");
    }
}

#[test]
fn following_a_person_keeps_the_hand_over_bumpless() {
    let mut plant = settled(Plant::quick(), 600);
    for t in 1..60 {
        let seen = Observation {
            now: plant.now + 2.0 * f64::from(t),
            achieved_rps: Some(33.0),
            ..Observation::default()
        };
        let plan = plant.state.follow(
            &plant.policy,
            plant.bounds,
            &seen,
            RateLimit::PerSecond(33.0),
            Cause::followed("ann has it"),
        );
        assert_eq!(
            (plan.rps, plan.reason.as_str()),
            (33.0, "ann has it; the governor only tracks it")
        );
    }
    plant.now += 120.0;
    plant.knob = 33.0;
    let handed = plant.now;
    plant.run(2);
    let first = plant.since(handed).last().unwrap().knob;
    assert!((first / 33.0 - 1.0).abs() < 0.06, "{first}");
}

#[test]
fn a_clock_that_is_set_back_changes_nothing_but_the_times() {
    for model in [false, true] {
        let mut plant = settled(quick(model), 600);
        let before = plant.knob;
        plant.now -= 3600.0;
        plant.state.tick(
            &plant.policy,
            plant.bounds,
            &Observation {
                now: plant.now,
                ..Observation::default()
            },
        );
        assert!((plant.state.knob / before - 1.0).abs() < 0.02);
        let late = plant.state.signals[0].front.at.unwrap();
        assert!(
            late <= plant.now && late > plant.now - 10.0,
            "{late} at {}",
            plant.now
        );
    }
}

#[test]
fn the_lower_of_two_signals_decides_and_the_other_does_not_wind_up() {
    let mut plant = Plant::quick();
    let second = About {
        name: "other".to_owned(),
        probe: None,
        ..plant.policy.signals[0].clone()
    };
    plant.policy.signals.push(second);
    let mut state = ControlState::new(&plant.policy, plant.bounds, RateLimit::PerSecond(20.0), 0.0);
    let feed = |state: &mut ControlState, now: f64, load: f64, other: f64| {
        let sample = |name: &str, value| SignalSample {
            signal: name.to_owned(),
            value: Some(value),
            at: now - 1.0,
        };
        let readings = vec![sample("load", load), sample("other", other)];
        let seen = Observation {
            now,
            readings,
            achieved_rps: Some(20.0),
            limiting_share: Some(1.0),
            ..Observation::default()
        };
        state.tick(&plant.policy, plant.bounds, &seen)
    };
    for t in 1..500 {
        feed(&mut state, f64::from(t) * 2.0, 0.9, 1.0);
    }
    assert!(
        state.signals[0].u - state.u < 0.5,
        "the loser tracks the winner"
    );
    let before = state.knob;
    let plan = (500..503)
        .map(|t| feed(&mut state, f64::from(t) * 2.0, 1.5, 1.0))
        .last()
        .unwrap();
    assert!(
        plan.rps < before && plan.terms["signal"] == "load",
        "{plan:?}"
    );
}

/// Returns hostile numbers.
fn wild() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => 0.0..5.0f64,
        1 => any::<f64>(),
        1 => prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e308, -1e308, 1e-308, 5e-324]),
    ]
}

fn maybe(x: impl Strategy<Value = f64>) -> impl Strategy<Value = Option<f64>> {
    prop::option::of(x)
}

proptest! {
    // The same cases in every run.
    #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(3), ..ProptestConfig::with_cases(150) })]

    #[test]
    fn whatever_comes_in_a_finite_bounded_rate_comes_out(
        steps in prop::collection::vec(
            ((wild(), -5.0..20.0f64, any::<bool>()), maybe(wild()), wild(), maybe(wild()), maybe(wild()), maybe(wild()), (wild(), wild(), maybe(wild()))), 1..120),
        (min, max, safe) in (wild(), wild(), wild()), durations in any::<bool>(), ratio in any::<bool>(),
    ) {
        let mut plant = Plant::quick();
        plant.policy.law.durations = durations;
        if ratio {
            let about = About { name: "refused".to_owned(), kind: SignalKind::Ratio, source: SignalSource::Feedback, feedback: Some(FeedbackKind::Refused), trips: true, soft: Some(0.1), setpoint: 0.01, lag_s: 0.0, probe: None, ..plant.policy.signals[0].clone() };
            plant.policy.signals.push(about);
        }
        let bounds = Bounds { min, max, safe_rps: safe };
        let sound = bounds.sound();
        let mut state = ControlState::new(&plant.policy, bounds, RateLimit::PerSecond(20.0), 0.0);
        let mut now = 0.0;
        for ((jump, step, absurd), value, at, achieved, limiting, duration, (completed, rejected, knob)) in steps {
            now = if absurd && jump.is_finite() { jump } else { now + step };
            let sample = SignalSample { signal: "load".to_owned(), value, at: if absurd { at } else { now - 1.0 } };
            let seen = Observation {
                now, readings: vec![sample.clone()], achieved_rps: achieved, limiting_share: limiting, mean_duration_s: duration,
                completed, rejected, idle: absurd && completed > 1.0, knob_rps: if absurd { knob.map(RateLimit::new) } else { None },
                waiting: limiting, ..Observation::default()
            };
            let looked = state.fast(&plant.policy, bounds, now, achieved, &[sample]);
            for plan in looked.into_iter().chain([state.tick(&plant.policy, bounds, &seen)]) {
                prop_assert!(plan.rps.is_finite() && plan.rps >= 0.0 && plan.rps <= sound.max * (1.0 + 1e-12), "{plan:?} in {sound:?}");
                prop_assert!(!plan.reason.contains("NaN") && !plan.reason.contains("inf"), "{}", plan.reason);
            }
            let stored = serde_json::to_value(&state).unwrap();
            let text = stored.to_string();
            prop_assert!(crate::governor::stored::resume(stored, &plant.policy, now).is_some(), "{text}");
        }
    }

    #[test]
    fn a_higher_load_never_asks_for_more(a in 0.0..6.0f64, b in 0.0..6.0f64) {
        let (low, high) = (a.min(b), a.max(b));
        let ask = |load: f64| {
            let mut plant = settled(Plant::usual(), 200);
            plant.policy.law.breaker = false;
            let seen = Observation {
                now: plant.now + 5.0,
                readings: vec![SignalSample { signal: "load".to_owned(), value: Some(load), at: plant.now }],
                achieved_rps: Some(plant.knob), limiting_share: Some(1.0), ..Observation::default()
            };
            plant.state.tick(&plant.policy, plant.bounds, &seen).rps
        };
        prop_assert!(ask(high) <= ask(low) * (1.0 + 1e-9));
    }
}
