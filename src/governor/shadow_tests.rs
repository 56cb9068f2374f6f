use super::*;
use crate::governor::plant_tests::Plant;
use crate::throttle::RateLimit;

/// Runs a plant at a manual rate of `rps`, with the governor in shadow mode.
fn shadowed(plant: &mut Plant, rps: f64, seconds: u64) {
    for _ in 0..seconds {
        plant.shadow_second(rps);
    }
}

fn shadow(plant: &Plant) -> &Shadow {
    plant.state.shadow.as_ref().unwrap()
}

#[test]
fn beside_a_rate_that_is_too_low_it_finds_the_room_and_does_not_wind_up() {
    let mut plant = Plant::usual();
    let room = plant.room();
    shadowed(&mut plant, 30.0, 600);
    plant.background = 0.21;
    shadowed(&mut plant, 50.0, 3600);

    let own = shadow(&plant).own.knob;
    println!("{own} of {room}: {}", shadow(&plant).score.sentence());
    assert!(
        (0.7 * room..=1.15 * room).contains(&own),
        "{own} where {room} is the room"
    );
    let score = &shadow(&plant).score;
    assert!(
        score.own.peak < 1.3 && score.own.jobs > score.real.jobs && score.higher_s > 3000.0,
        "{score:?}"
    );
    assert_eq!(
        (score.real.overload_s, score.stopped_s),
        (0.0, 0.0),
        "{score:?}"
    );
    assert_eq!(
        plant.state.knob, 50.0,
        "the governor itself follows the real rate"
    );
}

#[test]
fn beside_a_rate_that_is_too_high_it_brakes_and_does_not_wind_down() {
    let mut plant = Plant::usual();
    let room = plant.room();
    shadowed(&mut plant, 60.0, 600);
    shadowed(&mut plant, 110.0, 3600);

    let own = shadow(&plant).own.knob;
    println!("{own} of {room}: {}", shadow(&plant).score.sentence());
    assert!(
        (0.7 * room..=1.15 * room).contains(&own),
        "{own} where {room} is the room"
    );
    let score = &shadow(&plant).score;
    assert!(
        score.real.overload_s > 500.0 && score.own.overload_s < 0.3 * score.real.overload_s,
        "{score:?}"
    );
    assert!(score.braked_share().unwrap() > 0.8, "{score:?}");
}

#[test]
fn a_trip_on_paper_stops_its_own_world_only_and_restarts_there() {
    for model in [false, true] {
        let mut plant = Plant::quick();
        plant.policy.law.model = model;
        shadowed(&mut plant, 60.0, 600);
        plant.cost *= 10.0;
        let mut waited = 0;
        while shadow(&plant).own.breaker.phase != Phase::Open {
            shadowed(&mut plant, 60.0, 1);
            waited += 1;
            assert!(waited <= 5, "{:?}", plant.state.plan);
        }
        assert_eq!(
            (
                plant.state.plan.as_ref().unwrap().rps,
                plant.state.breaker.phase,
                plant.state.knob
            ),
            (0.0, Phase::Closed, 60.0)
        );

        shadowed(&mut plant, 60.0, 200);
        let score = &shadow(&plant).score;
        println!("{} {}", shadow(&plant).own.knob, score.sentence());
        assert!(
            score.stopped_s > 0.0 && score.own.overload_s < 0.5 * score.real.overload_s,
            "{score:?}"
        );
        let own = shadow(&plant).own.knob;
        assert!(
            own > 0.0 && own < 2.0 * plant.room(),
            "{own} where {} is the room",
            plant.room()
        );
    }
}

#[test]
fn no_job_is_invented_where_few_come() {
    let mut plant = Plant::usual();
    plant.demand = 7.0;
    shadowed(&mut plant, 30.0, 1200);
    let score = &shadow(&plant).score;
    assert!(
        (score.own.jobs / score.real.jobs - 1.0).abs() < 0.01,
        "{score:?}"
    );
    assert!(score.lower_s + score.higher_s < 10.0, "{score:?}");
}

#[test]
fn a_quota_that_was_found_refuses_what_is_beyond_it() {
    assert_eq!(
        (
            refused(0.0, 50.0, 80.0),
            refused(0.5, 80.0, 40.0),
            refused(0.5, 80.0, 20.0)
        ),
        (0.0, 0.0, 0.0)
    );
    assert!(
        (refused(0.5, 80.0, 80.0) - 0.5).abs() < 1e-12
            && (refused(0.5, 80.0, 160.0) - 0.75).abs() < 1e-12
    );
    assert_eq!(refused(1.0, 80.0, 1.0), 1.0);
}

#[test]
fn it_survives_being_stored_and_a_successor_goes_on_with_the_same_score() {
    let mut plant = Plant::usual();
    shadowed(&mut plant, 50.0, 600);
    let stored = serde_json::to_value(&plant.state).unwrap();
    let resumed = crate::governor::stored::resume(stored, &plant.policy, plant.now).unwrap();
    assert_eq!(resumed.shadow.unwrap().score, shadow(&plant).score);

    let mut old = serde_json::to_value(&plant.state).unwrap();
    for field in ["shadow", "watch", "tripped"] {
        old.as_object_mut().unwrap().remove(field);
    }
    assert!(
        crate::governor::stored::read(old, &plant.policy).is_some(),
        "a state of the release before is read"
    );
}

#[test]
fn whatever_is_seen_what_it_says_can_be_computed_with() {
    let mut plant = Plant::usual();
    for (n, value) in [f64::NAN, f64::INFINITY, -1.0, 1e300, 0.0, 1e-300]
        .into_iter()
        .cycle()
        .take(300)
        .enumerate()
    {
        let now = 5.0 * n as f64;
        let seen = Observation {
            now,
            readings: vec![SignalSample {
                signal: "load".to_owned(),
                value: Some(value),
                at: now,
            }],
            achieved_rps: Some(if n % 3 == 0 {
                f64::NAN
            } else {
                1e9 * (n % 2) as f64
            }),
            limiting_share: Some((n % 2) as f64),
            ..Observation::default()
        };
        let plan = tick(
            &mut plant.state,
            &plant.policy,
            plant.bounds,
            &seen,
            if n % 5 == 0 {
                RateLimit::Unlimited
            } else {
                RateLimit::PerSecond(30.0)
            },
        );
        assert!((0.0..=plant.bounds.max).contains(&plan.rps), "{}", plan.rps);
        assert!(shadow(&plant).score.is_sound());
        serde_json::to_string(&plant.state).unwrap();
    }
}
