use crate::throttle::RateLimit;
use serde_json::json;

use super::watch::*;
use crate::governor::plant_tests::Plant;
use crate::governor::{ControlState, Phase};

/// Runs the plant and returns every finding that occurred, and the lowest gain factor.
fn run(plant: &mut Plant, seconds: u64, change: impl Fn(&mut Plant, u64)) -> (Vec<Finding>, f64) {
    let (mut ever, mut least) = (Vec::new(), 1.0f64);
    for n in 0..seconds {
        change(plant, n);
        plant.run(1);
        for found in &plant.state.watchdogs.found {
            if !ever.contains(&found.finding) {
                ever.push(found.finding);
            }
        }
        least = least.min(plant.state.watchdogs.oscillation.gain_factor());
    }
    (ever, least)
}

fn trips(plant: &Plant, from: f64) -> usize {
    let phases: Vec<Phase> = plant.since(from).map(|s| s.phase).collect();
    phases
        .windows(2)
        .filter(|w| w[0] != Phase::Open && w[1] == Phase::Open)
        .count()
}

/// Returns the standard deviation of the log of the knob.
fn spread(plant: &Plant, from: f64) -> f64 {
    let logs: Vec<f64> = plant.since(from).map(|s| s.knob.max(1e-3).ln()).collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    (logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / logs.len() as f64).sqrt()
}

#[test]
fn a_delay_that_nobody_told_makes_it_swing_without_the_watchdog_and_calm_with_it() {
    for (plant, hidden_s) in [
        (Plant::usual as fn() -> Plant, 120),
        (Plant::usual, 150),
        (Plant::usual, 180),
        (Plant::quick, 30),
    ] {
        let mut alone = plant();
        alone.hidden_s = hidden_s;
        run(&mut alone, 14_400, |plant, _| {
            plant.state.watchdogs = Watchdogs::default()
        });
        assert!(
            spread(&alone, 7200.0) > 0.5,
            "{hidden_s} s: it swings: {}",
            spread(&alone, 7200.0)
        );

        let mut watched = plant();
        watched.hidden_s = hidden_s;
        let (found, least) = run(&mut watched, 14_400, |_, _| {});
        assert!(
            found.contains(&Finding::Oscillating) && least < 1.0,
            "{hidden_s} s: {found:?}"
        );
        assert!(
            spread(&watched, 10_800.0) < 0.1,
            "{hidden_s} s: {}",
            spread(&watched, 10_800.0)
        );
        assert!(
            (watched.mean_load(10_800.0) - 1.0).abs() < 0.1,
            "{hidden_s} s: {}",
            watched.mean_load(10_800.0)
        );
        assert_eq!(trips(&watched, 10_800.0), 0, "{hidden_s} s");
    }
}

#[test]
fn a_model_rests_after_a_found_swing_until_that_is_forgiven() {
    for hidden_s in [120, 150, 180] {
        let mut plant = Plant::usual();
        (plant.policy.law.model, plant.hidden_s) = (true, hidden_s);
        let (found, _) = run(&mut plant, 14_400, |_, _| {});
        let watchdogs = &plant.state.watchdogs;
        assert!(found.contains(&Finding::Oscillating), "{hidden_s} s");
        assert!(!watchdogs.detuned(&plant.policy).law.model, "{hidden_s} s");
        let (spread, mean) = (spread(&plant, 10_800.0), plant.mean_load(10_800.0));
        assert!(
            spread < 0.1 && (mean - 1.0).abs() < 0.1 && trips(&plant, 10_800.0) == 0,
            "{hidden_s} s: {spread}, {mean}"
        );
    }
}

#[test]
fn what_is_found_is_told_in_full_when_it_begins_and_by_its_word_while_it_lasts() {
    let mut plant = Plant::quick();
    plant.hidden_s = 30;
    let mut reasons = Vec::new();
    for _ in 0..3600 {
        plant.run(1);
        reasons.push((plant.plan.reason.clone(), plant.plan.terms.clone()));
    }

    let begun = reasons
        .iter()
        .position(|(reason, _)| reason.contains("; oscillating: the rate swings between"))
        .expect("begins");
    assert_eq!(reasons[begun].1["findings"], json!(["oscillating"]));
    assert_eq!(reasons[begun].1["gain_factor"], json!(0.5));
    assert!(
        reasons[begun..]
            .iter()
            .any(|(reason, _)| reason.ends_with("; still oscillating"))
    );
    let ended = reasons
        .iter()
        .position(|(reason, _)| reason.ends_with("; no longer oscillating"))
        .expect("ends");
    assert!(ended > begun && !reasons[ended].1.contains_key("findings"));
    assert_eq!(
        reasons[ended].1["gain_factor"],
        json!(0.5),
        "the gain comes back later"
    );
}

#[test]
fn ordinary_noise_and_incidents_find_nothing() {
    for plant in [Plant::quick as fn() -> Plant, Plant::usual] {
        for noise in [0.0, 0.1, 0.2] {
            let mut quiet = plant();
            quiet.noise = noise;
            assert_eq!(
                run(&mut quiet, 10_800, |_, _| {}),
                (vec![], 1.0),
                "noise {noise}"
            );

            let mut costly = plant();
            costly.noise = noise;
            let steps = |plant: &mut Plant, n: u64| {
                if n.is_multiple_of(3600) {
                    plant.cost = if n.is_multiple_of(7200) { 0.01 } else { 0.1 };
                }
            };
            assert_eq!(
                run(&mut costly, 14_400, steps),
                (vec![], 1.0),
                "cost steps, noise {noise}"
            );

            let mut others = plant();
            others.noise = noise;
            // An hour of others' work, then a rise beyond the setpoint for ten minutes.
            let day = |plant: &mut Plant, n: u64| {
                plant.background = if (10_000..10_600).contains(&n) {
                    1.3
                } else {
                    0.5 - 0.3 * (n as f64 / 2000.0).cos()
                };
            };
            assert_eq!(
                run(&mut others, 14_400, day),
                (vec![], 1.0),
                "others' load, noise {noise}"
            );

            let mut empty = plant();
            (empty.noise, empty.waiting) = (noise, Some(0.0));
            let demand = |plant: &mut Plant, n: u64| {
                plant.demand = if n % 3000 < 1500 { f64::INFINITY } else { 2.0 }
            };
            assert_eq!(
                run(&mut empty, 14_400, demand),
                (vec![], 1.0),
                "an empty queue now and then, noise {noise}"
            );
        }
    }
}

#[test]
fn a_blind_governor_a_person_and_a_start_from_next_to_nothing_find_nothing() {
    for plant in [Plant::quick as fn() -> Plant, Plant::usual] {
        let mut blind = plant();
        let dark = |plant: &mut Plant, n: u64| plant.sighted = n % 3600 < 2400;
        assert_eq!(run(&mut blind, 14_400, dark), (vec![], 1.0));

        let mut person = plant();
        let edits = |plant: &mut Plant, n: u64| {
            if n % 600 == 300 {
                plant.person = Some(if n % 1200 == 300 { 20.0 } else { 70.0 });
            }
        };
        assert_eq!(run(&mut person, 14_400, edits), (vec![], 1.0));

        let mut small = plant();
        small.cost = 0.0005;
        (small.knob, small.state) = (
            1.0,
            ControlState::new(&small.policy, small.bounds, RateLimit::PerSecond(1.0), 0.0),
        );
        assert_eq!(run(&mut small, 7200, |_, _| {}), (vec![], 1.0));
    }
}

#[test]
fn a_signal_that_repeats_itself_is_unresponsive_at_any_height() {
    // An exporter that hangs: the same low, then the same high value, whatever the work.
    for (stuck, expected) in [
        (0.3, "unresponsive: load does not react"),
        (1.5, "unresponsive: load does not react"),
    ] {
        let mut plant = Plant::usual();
        plant.run(1800);
        (plant.cost, plant.background, plant.bounds.max) = (0.0, stuck, 1e6);
        let mut reported = String::new();
        for _ in 0..5400 {
            plant.run(1);
            if plant.plan.reason.contains("unresponsive: ") {
                reported.clone_from(&plant.plan.reason);
            }
        }
        assert!(
            reported.contains(expected),
            "{stuck}: {reported:?}; {:?}",
            plant.state.watchdogs
        );
    }
}

#[test]
fn a_load_that_others_make_alone_and_a_max_that_is_far_too_low_are_out_of_reach() {
    let mut others = Plant::usual();
    others.run(1800);
    others.background = 1.5;
    let (found, _) = run(&mut others, 3600, |_, _| {});
    // Until the rate has reached its lowest, a load that does not react looks unresponsive.
    assert!(
        found.contains(&Finding::Unreachable)
            && found
                .iter()
                .all(|f| matches!(f, Finding::Unreachable | Finding::Unresponsive))
    );
    let stuck = others
        .state
        .watchdogs
        .found
        .iter()
        .find(|found| found.finding == Finding::Unreachable)
        .expect("it lasts");
    let sentence = &stuck.sentence;
    assert!(
        sentence.contains("at min, 1 rps,") && sentence.contains("load stays near 1.5"),
        "{sentence}"
    );

    let mut tripped = Plant::quick();
    tripped.run(1800);
    tripped.background = 5.0;
    run(&mut tripped, 3600, |_, _| {});
    let sentences: Vec<&str> = tripped
        .state
        .watchdogs
        .found
        .iter()
        .map(|f| f.sentence.as_str())
        .collect();
    assert!(
        sentences
            .iter()
            .any(|s| s.contains("the breaker has stopped all work for")),
        "{sentences:?}"
    );

    let mut low = Plant::quick();
    low.bounds.max = 10.0;
    let (found, _) = run(&mut low, 7200, |_, _| {});
    assert_eq!(found, [Finding::Unreachable]);
    assert!(
        low.state.watchdogs.found[0]
            .sentence
            .contains("at max, 10 rps,"),
        "{}",
        low.state.watchdogs.found[0].sentence
    );
}

#[test]
fn jobs_that_wait_for_workers_are_told_and_an_empty_queue_is_not() {
    for (waiting, expected) in [
        (Some(5000.0), vec![Finding::Idle]),
        (Some(3.0), vec![]),
        (None, vec![]),
    ] {
        let mut plant = Plant::quick();
        plant.run(600);
        (plant.demand, plant.waiting) = (10.0, waiting);
        let (found, _) = run(&mut plant, 1800, |_, _| {});
        assert_eq!(found, expected, "{waiting:?}");
    }
    let mut plant = Plant::quick();
    plant.run(600);
    (plant.demand, plant.waiting) = (10.0, Some(5000.0));
    plant.run(1200);
    let found = &plant.state.watchdogs.found[0];
    assert!(
        found.sentence.contains("5000 jobs wait") && found.sentence.contains("10 of"),
        "{}",
        found.sentence
    );
    assert!(
        found.since > 1400.0 && found.since < 1520.0,
        "{}",
        found.since
    );
    plant.demand = f64::INFINITY;
    plant.run(10);
    assert_eq!(plant.state.watchdogs.found, []);
}

#[test]
fn a_successor_goes_on_with_what_was_found_and_with_the_gain() {
    let mut plant = Plant::quick();
    plant.hidden_s = 30;
    run(&mut plant, 900, |_, _| {});
    assert_eq!(plant.state.watchdogs.found[0].finding, Finding::Oscillating);

    let stored = serde_json::to_value(&plant.state).unwrap();
    let resumed = crate::governor::stored::resume(stored, &plant.policy, plant.now).unwrap();

    assert_eq!(resumed.watchdogs, plant.state.watchdogs);
    assert_eq!(
        resumed.watchdogs.detuned(&plant.policy).law.gain,
        0.5 * plant.policy.law.gain
    );
}
