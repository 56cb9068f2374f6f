use super::answer::MAX_KNOB_WAIT;
use super::tests::{add, scheduler, serve};
use super::*;
use crate::runner::visits::MAX_VISIT;

/// Serves 2000 lanes that never run dry for a second, 500 jobs in ten milliseconds each.
fn crowd(tokens: u32) -> (LaneScheduler, Instant, HashMap<i64, u32>) {
    let (mut scheduler, mut now) = (scheduler(), Instant::now());
    for id in 0..2000 {
        add(&mut scheduler, id, "t", 1.0, now);
    }
    let mut counts = HashMap::new();
    for _ in 0..100 {
        serve(&mut scheduler, now, 500, tokens, &mut counts);
        now += Duration::from_millis(10);
    }
    (scheduler, now, counts)
}

#[test]
fn where_many_lanes_wait_for_a_fast_worker_a_visit_takes_several_jobs_and_shares_stay_equal() {
    let (mut scheduler, now, counts) = crowd(500);

    let wants: Vec<u32> = scheduler.plan(now, 500)[0]
        .ask
        .lanes
        .iter()
        .map(|lane| lane.want)
        .collect();

    assert_eq!(wants.iter().sum::<u32>(), 500);
    assert_eq!(wants.iter().filter(|want| **want == MAX_VISIT).count(), 62);
    // The first plans ask for less, until the throttle has shown what it gives.
    let all = counts.values().sum::<u32>();
    assert!(all > 48_000, "{all}");
    let few = counts.values().min().unwrap();
    let many = counts.values().max().unwrap();
    assert!(many - few <= MAX_VISIT, "{few} to {many}");
}

#[test]
fn a_newcomer_beside_many_lanes_waits_for_a_short_round() {
    let (mut scheduler, mut now, _) = crowd(500);
    add(&mut scheduler, 5000, "t", 1.0, now);
    let (begun, mut counts) = (now, HashMap::new());
    while !counts.contains_key(&5000) {
        serve(&mut scheduler, now, 500, 500, &mut counts);
        now += Duration::from_millis(10);
    }

    let waited = now - begun;
    assert!(waited <= Duration::from_secs(1), "{waited:?}");
    assert_eq!(counts[&5000], 2, "as many as most lanes had");
}

#[test]
fn a_throttle_that_gives_less_than_is_asked_gives_each_lane_one_job_a_visit() {
    let (mut scheduler, now, _) = crowd(100);

    let later = now + MAX_KNOB_WAIT;
    assert!(
        scheduler.plan(later, 500)[0]
            .ask
            .lanes
            .iter()
            .all(|lane| lane.want == 1)
    );
}

#[test]
fn the_first_claim_of_a_lane_takes_two_jobs_where_most_lanes_have_as_many_and_looks_behind_them() {
    let (mut scheduler, mut now, _) = crowd(500);
    for id in 3000..4000 {
        add(&mut scheduler, id, "t", 1.0, now);
    }

    // A round later the newcomers are next.
    let (id, want) = loop {
        let requested = scheduler.plan(now, 500).remove(0);
        let mut lanes = requested.lanes.iter().zip(&requested.ask.lanes);
        if let Some((id, demand)) = lanes.find(|(id, _)| **id >= 3000) {
            break (*id, demand.want);
        }
        serve(&mut scheduler, now, 500, 500, &mut HashMap::new());
        now += Duration::from_millis(10);
    };
    let claim = scheduler.claim(id, want, now, Duration::ZERO);

    assert_eq!((want, claim.look), (2, true));
}
