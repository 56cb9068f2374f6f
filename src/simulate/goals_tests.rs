//! Goals of the law in single scenarios: slots, quotas, durations that say nothing, and queues.

use super::disturbance::Disturbance;
use super::run::{SimulationRecord, run};
use super::scenario::Scenario;
use super::{Contender, library};

fn day(name: &str, seed: u64) -> (Scenario, SimulationRecord) {
    let scenario = library::scenarios()
        .unwrap()
        .into_iter()
        .find(|scenario| scenario.name == name)
        .unwrap();
    let record = run(
        &scenario,
        &Disturbance::draw(&scenario, seed),
        Contender::Flyball,
    );
    (scenario, record)
}

/// Returns the mean of `of` over the seconds from `from` to `to`.
fn mean(
    record: &SimulationRecord,
    from: usize,
    to: usize,
    of: impl Fn(&super::run::SimulatedSecond) -> f64,
) -> f64 {
    record.seconds[from..to].iter().map(of).sum::<f64>() / (to - from) as f64
}

#[test]
fn a_quota_that_halves_without_a_word_is_found_within_a_minute_and_then_used() {
    for seed in 0..10 {
        let (_, record) = day("S6", seed);
        let found = record.seconds[1200..]
            .iter()
            .position(|s| s.knob <= 40.0)
            .expect("the knob comes below the new quota");
        assert!(found <= 60, "day {seed}: found after {found} s");
        let used = mean(&record, 1260, 3000, |s| s.achieved) / 40.0;
        assert!(used >= 0.95, "day {seed}: {used} of the new quota");
        // Probing for more is refused now and then, but rarely.
        let refused = mean(&record, 1260, 3000, |s| s.refused);
        assert!(refused < 0.005, "day {seed}: {refused} refused");
        // A restored quota is used again.
        assert!(
            mean(&record, 3300, 3600, |s| s.achieved) > 0.9 * 80.0,
            "day {seed}"
        );
    }
}

#[test]
fn slots_hold_the_time_of_an_answer_and_give_way_within_a_minute() {
    for (name, seed) in ["C1", "C2"]
        .into_iter()
        .flat_map(|name| (0..5).map(move |seed| (name, seed)))
    {
        let (_, record) = day(name, seed);
        let over = mean(&record, 1260, 1320, |s| s.true_x);
        assert!(
            over < 1.2,
            "{name}, day {seed}: {over} setpoints in the second minute after the halving"
        );
        for (from, to) in [(600, 1200), (1500, 2700), (3000, 3600)] {
            let (x, used) = (
                mean(&record, from, to, |s| s.true_x),
                mean(&record, from, to, |s| s.achieved / s.oracle),
            );
            assert!(
                (0.8..1.15).contains(&x) && used > 0.9,
                "{name}, day {seed}, from {from}: {x} setpoints, {used} used"
            );
        }
        assert!(
            record
                .seconds
                .iter()
                .skip(60)
                .all(|s| s.knob.fract() == 0.0),
            "slots are whole"
        );
    }
}

#[test]
fn durations_that_say_nothing_cost_no_overload_once_they_are_found_out() {
    for (name, from, to) in [("N1", 1380, 2700), ("N2", 3900, 5400)] {
        for seed in 0..5 {
            let (_, record) = day(name, seed);
            let (x, used) = (
                mean(&record, from, to, |s| s.x),
                mean(&record, from, to, |s| s.achieved / s.oracle),
            );
            assert!(
                (0.85..1.05).contains(&x) && used > 0.85,
                "{name}, day {seed}: {x} setpoints, {used} used"
            );
        }
    }
}

#[test]
fn a_queue_is_held_at_its_depth_while_its_consumers_come_and_go() {
    for seed in 0..5 {
        let (_, record) = day("Q1", seed);
        let highest = record.seconds.iter().map(|s| s.x).fold(0.0, f64::max);
        assert!(highest < 1.8, "day {seed}: {highest} setpoints");
        for (from, to) in [(600, 1200), (1800, 2700), (3300, 4200)] {
            let (x, used) = (
                mean(&record, from, to, |s| s.x),
                mean(&record, from, to, |s| s.achieved / s.oracle),
            );
            assert!(
                (0.85..1.15).contains(&x) && used > 0.9,
                "day {seed}, from {from}: {x} setpoints, {used} used"
            );
        }
    }
}

/// Runs a scenario about complaints: five days.
fn mail_days(name: &str, contender: Contender) -> SimulationRecord {
    let scenarios = library::mail_scenarios().unwrap();
    let found = scenarios.into_iter().find(|scenario| scenario.name == name);
    let scenario = found.unwrap();
    run(&scenario, &Disturbance::draw(&scenario, 0), contender)
}

#[test]
fn a_good_list_is_not_braked_by_chance() {
    for name in ["M1", "M6"] {
        let record = mail_days(name, Contender::Flyball);
        let used = mean(&record, 0, record.seconds.len(), |s| s.achieved / s.oracle);
        assert!(used > 0.95, "{name}: {used} used");
    }
}

#[test]
fn a_bought_list_is_braked_once_a_day_has_more_than_a_thousandth() {
    let record = mail_days("M2", Contender::Flyball);
    let hour = 3600;
    let first = record.seconds.iter().position(|s| s.x >= 1.0).unwrap();
    assert!((12 * hour..20 * hour).contains(&first), "{first}");
    let before = mean(&record, 0, first, |s| s.knob);
    assert!(before > 49.9, "not before: {before}");
    let after = mean(&record, first + 12 * hour, 5 * 24 * hour, |s| s.achieved);
    assert!(after < 15.0, "{after} a second of 50");
    let lowest = record.seconds[first..].iter().map(|s| s.knob);
    assert_eq!(lowest.fold(f64::INFINITY, f64::min), 0.5, "down to min");
}
