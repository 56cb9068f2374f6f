//! The full cycle of the breaker, on the tests' plant.

use super::*;
use crate::governor::explain::Cause;
use crate::governor::observation::Observation;
use crate::governor::plant_tests::Plant;
use crate::throttle::RateLimit;

/// Returns the phases from `t` on, without repetitions.
fn phases(plant: &Plant, t: f64) -> Vec<Phase> {
    let mut phases: Vec<Phase> = plant.since(t).map(|second| second.phase).collect();
    phases.dedup();
    phases
}

/// Returns the time of the first second from `t` on in this phase.
fn first(plant: &Plant, t: f64, phase: Phase) -> f64 {
    plant
        .since(t)
        .find(|second| second.phase == phase)
        .expect("this phase")
        .t
}

#[test]
fn it_goes_round_once_and_restarts_at_what_the_plant_now_bears() {
    let mut plant = Plant::quick();
    plant.run(600);
    let (before, at) = (plant.knob, plant.now);
    plant.cost *= 10.0;
    plant.run(120);

    assert_eq!(
        phases(&plant, at),
        [Phase::Closed, Phase::Open, Phase::HalfOpen, Phase::Closed]
    );
    assert!(
        plant
            .since(at)
            .all(|s| s.phase != Phase::Open || s.knob == 0.0),
        "nothing begins while it is open"
    );
    let restarted = first(&plant, at, Phase::HalfOpen);
    let rate = plant.since(restarted - 0.5).next().expect("a second").knob;
    assert!(
        rate < 0.5 * before && rate <= plant.room(),
        "{rate} of {before}, the plant bears {}",
        plant.room()
    );
}

#[test]
fn work_that_drains_slowly_keeps_it_open_until_the_load_is_gone() {
    let mut plant = Plant::quick();
    plant.run(600);
    let at = plant.now;
    plant.cost *= 10.0;
    plant.run(4);
    // Running jobs continue for half a minute after the last token.
    plant.background = 1.5;
    plant.run(30);
    assert_eq!(phases(&plant, at), [Phase::Closed, Phase::Open]);
    assert!(
        plant
            .plan
            .reason
            .contains("it restarts when the load is gone"),
        "{}",
        plant.plan.reason
    );

    plant.background = 0.2;
    let gone = plant.now;
    plant.run(60);
    assert!(first(&plant, gone, Phase::HalfOpen) - gone <= 30.0);
}

#[test]
fn a_trip_soon_after_a_restart_waits_twice_as_long_and_restarts_at_less_than_half() {
    for model in [false, true] {
        let mut plant = Plant::quick();
        plant.policy.law.model = model;
        plant.policy.law.open_min_s = 10.0;
        plant.bounds.min = 0.01;
        plant.run(600);
        let mut seen = Vec::new();
        for _ in 0..3 {
            let at = plant.now;
            // A load of others begins whenever the work has restarted.
            plant.background = 4.0;
            plant.run(5);
            let opened = first(&plant, at, Phase::Open);
            plant.background = 0.2;
            while plant.plan.breaker == Phase::Open {
                plant.run(1);
                assert!(plant.now < opened + 600.0, "it restarts");
            }
            seen.push((plant.now - opened, plant.knob, plant.state.breaker.trips));
        }
        assert_eq!(seen.iter().map(|s| s.2).collect::<Vec<_>>(), [0, 1, 2]);
        for pair in seen.windows(2) {
            assert!(
                pair[1].0 > 1.5 * pair[0].0 && pair[1].1 < 0.55 * pair[0].1,
                "{seen:?}"
            );
        }
    }
}

#[test]
fn a_trip_by_a_clock_that_was_wrong_for_a_moment_does_not_last_until_then() {
    let mut plant = Plant::quick();
    plant.run(600);
    for ahead in [f64::MAX, 1e9] {
        let looks = [SignalSample {
            signal: "load".to_owned(),
            value: Some(9.0),
            at: plant.now + ahead,
        }];
        plant.state.fast(
            &plant.policy,
            plant.bounds,
            plant.now + ahead,
            Some(80.0),
            &looks,
        );
        plant.run(120);
        assert_eq!(plant.plan.breaker, Phase::Closed, "{}", plant.plan.reason);
    }
}

#[test]
fn noise_alone_never_trips_the_fast_path_however_often_it_looks() {
    let mut plant = Plant::quick();
    plant.noise = 0.15;
    plant.run(600);
    let mut state = plant.state.clone();
    for n in 1..20_000 {
        let (now, noise) = (600.0 + 0.25 * f64::from(n), (f64::from(n) * 12.9898).sin());
        let looks = [SignalSample {
            signal: "load".to_owned(),
            value: Some(1.0 + 0.3 * noise),
            at: now,
        }];
        let plan = state.fast(&plant.policy, plant.bounds, now, Some(80.0), &looks);
        assert_eq!(plan, None, "look {n}");
    }
}

#[test]
fn a_trip_that_only_the_fast_path_saw_lasts_while_the_fast_path_sees_it() {
    let mut plant = Plant::quick();
    plant.sighted = false;
    plant.run(3);
    let at = plant.now;
    plant.background = 9.0;
    plant.run(25);
    assert_eq!(
        phases(&plant, at + 5.0),
        [Phase::Open],
        "no sample has come, and the page stands high"
    );

    plant.background = 0.2;
    let gone = plant.now;
    plant.run(25);
    assert!(
        first(&plant, gone, Phase::HalfOpen) - gone >= 5.0,
        "the average on the page has to fall below the setpoint"
    );
}

#[test]
fn a_stop_that_is_only_followed_for_a_while_ends_by_itself_afterwards() {
    let mut plant = Plant::quick();
    plant.run(600);
    plant.cost *= 10.0;
    plant.run(4);
    assert_eq!(plant.plan.breaker, Phase::Open);

    // A pause, a capacity of 0 or another mode: the knob keeps the breaker's zero.
    let seen = Observation {
        now: plant.now + 0.5,
        is_breakers_stop: true,
        ..Observation::default()
    };
    let followed = plant.state.follow(
        &plant.policy,
        plant.bounds,
        &seen,
        RateLimit::Stopped,
        Cause::followed("ann has paused it"),
    );
    assert_eq!((followed.rps, followed.breaker), (0.0, Phase::Open));

    plant.run(120);
    assert_eq!(plant.plan.breaker, Phase::Closed, "{}", plant.plan.reason);
    assert!(plant.knob > 0.0 && !plant.state.stopped);
}
