use super::answer::{MAX_KNOB_WAIT, MAX_PAUSE_WAIT};
use super::*;
use crate::throttle::{AcquireResponse, Grant, Limit, OverLimit};

pub(super) fn scheduler() -> LaneScheduler {
    LaneScheduler::new("test".into(), Duration::from_secs(30))
}

pub(super) fn add(
    scheduler: &mut LaneScheduler,
    id: i64,
    throttle: &str,
    weight: f32,
    now: Instant,
) {
    let named = ReadyLane {
        lane_id: id,
        throttle: throttle.into(),
        key: id.to_string(),
        weight,
    };
    scheduler.adopt(
        named,
        ReadyPriorities {
            lane_id: id,
            priorities: 0b10,
            head: i64::MAX,
        },
        now,
    );
}

pub(super) fn grant(granted: u32, limit: Option<Limit>) -> Grant {
    Grant {
        granted,
        wait: Duration::from_millis(100),
        limit,
        ..Grant::default()
    }
}

fn place(job_id: i64) -> LaneCursor {
    LaneCursor {
        priority: 1,
        job_id,
    }
}

/// Claims jobs of a lane that has more, and ends them.
fn take(scheduler: &mut LaneScheduler, lane_id: i64, jobs: u32, now: Instant) {
    let claim = scheduler.claim(lane_id, jobs, now, Duration::ZERO);
    let taken: Vec<LaneCursor> = (1..=i64::from(jobs)).map(place).collect();
    scheduler.claimed(&claim, &taken, false, now);
    for _ in &taken {
        scheduler.ended(lane_id);
    }
}

/// Serves `permits` from lanes that never run dry, with at most `tokens` of the throttle; counts
/// jobs per lane.
pub(super) fn serve(
    scheduler: &mut LaneScheduler,
    now: Instant,
    permits: usize,
    tokens: u32,
    counts: &mut HashMap<i64, u32>,
) {
    for requested in scheduler.plan(now, permits) {
        let mut left = tokens;
        let lanes = requested.ask.lanes.iter().map(|lane| {
            let granted = lane.want.min(left);
            left -= granted;
            grant(granted, (granted < lane.want).then_some(Limit::Throttle))
        });
        let answer = AcquireResponse {
            lanes: lanes.collect(),
            ..AcquireResponse::default()
        };
        scheduler.answered(&requested, &answer, now);
        for (id, grant) in requested
            .lanes
            .iter()
            .zip(&answer.lanes)
            .filter(|(_, grant)| grant.granted > 0)
        {
            take(scheduler, *id, grant.granted, now);
            *counts.entry(*id).or_default() += grant.granted;
        }
    }
}

#[test]
fn lanes_get_the_shares_of_their_weights_however_many_permits_and_tokens_there_are() {
    for (permits, tokens) in [(1, 1), (7, 3), (100, 5), (500, 500), (64, 1000)] {
        let (mut scheduler, mut now) = (scheduler(), Instant::now());
        let weights = [1.0, 2.0, 5.0, 0.5];
        for (id, weight) in (0..).zip(weights) {
            add(&mut scheduler, id, "t", weight, now);
        }
        let mut counts = HashMap::new();
        for _ in 0..1500 {
            serve(&mut scheduler, now, permits, tokens, &mut counts);
            now += MAX_KNOB_WAIT;
        }
        let all: u32 = counts.values().sum();
        for (id, weight) in (0..).zip(weights) {
            let share = f64::from(counts[&id]) / f64::from(all);
            let fair = f64::from(weight) / 8.5;
            assert!(
                (share / fair - 1.0).abs() < 0.02,
                "{permits} permits, {tokens} tokens: lane {id} got {share} instead of {fair}"
            );
        }
    }
}

#[test]
fn throttles_share_the_permits_by_their_weights() {
    let (mut scheduler, mut now) = (scheduler(), Instant::now());
    for (id, throttle) in [(0, "a"), (1, "a"), (2, "b"), (3, "b")] {
        add(&mut scheduler, id, throttle, 1.0, now);
    }
    let mut counts: HashMap<i64, u32> = HashMap::new();
    for _ in 0..3000 {
        for requested in scheduler.plan(now, 3) {
            let lanes = requested
                .ask
                .lanes
                .iter()
                .map(|lane| grant(lane.want, None))
                .collect();
            let weight = if requested.ask.throttle.as_str() == "a" {
                3.0
            } else {
                1.0
            };
            scheduler.answered(
                &requested,
                &AcquireResponse {
                    lanes,
                    weight,
                    ..AcquireResponse::default()
                },
                now,
            );
            for (id, demand) in requested.lanes.iter().zip(&requested.ask.lanes) {
                take(&mut scheduler, *id, demand.want, now);
                *counts.entry(*id).or_default() += demand.want;
            }
        }
        now += Duration::from_millis(1);
    }
    let all = f64::from(counts.values().sum::<u32>());
    for (id, fair) in [(0, 0.375), (1, 0.375), (2, 0.125), (3, 0.125)] {
        assert!(
            (f64::from(counts[&id]) / all - fair).abs() < 0.01,
            "{counts:?}"
        );
    }
}

#[test]
fn a_newcomer_is_served_within_one_round_and_has_saved_nothing_up() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    for id in 0..100 {
        add(&mut scheduler, id, "t", 1.0, now);
    }
    let mut counts = HashMap::new();
    for _ in 0..1000 {
        serve(&mut scheduler, now, 10, 10, &mut counts);
    }
    add(&mut scheduler, 1000, "t", 1.0, now);
    counts.clear();

    for _ in 0..10 {
        serve(&mut scheduler, now, 10, 10, &mut counts);
    }

    assert!(
        (1..=2).contains(&counts[&1000]),
        "within a round of 101 jobs it got one, and no more: {}",
        counts[&1000]
    );
}

#[test]
fn a_paused_lane_is_not_asked_for_and_holds_nobody_up() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    add(&mut scheduler, 1, "t", 1.0, now);
    add(&mut scheduler, 2, "t", 1.0, now);
    let requested = scheduler.plan(now, 2).remove(0);
    let paused = Some(Limit::Paused {
        until_ms: 0,
        why: "429".into(),
        name: None,
    });
    let lanes = requested
        .lanes
        .iter()
        .map(|id| {
            if *id == 1 {
                grant(0, paused.clone())
            } else {
                grant(1, None)
            }
        })
        .collect();

    scheduler.answered(
        &requested,
        &AcquireResponse {
            lanes,
            ..AcquireResponse::default()
        },
        now,
    );

    assert_eq!(scheduler.plan(now, 2).remove(0).lanes, [2]);
    let later: BTreeSet<i64> = scheduler
        .plan(now + MAX_PAUSE_WAIT, 4)
        .remove(0)
        .lanes
        .into_iter()
        .collect();
    assert_eq!(later, [1, 2].into());
}

#[test]
fn a_throttle_that_must_wait_is_not_asked_before_its_time() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    add(&mut scheduler, 1, "slow", 1.0, now);
    add(&mut scheduler, 2, "fast", 1.0, now);
    let requested = scheduler.plan(now, 8);
    for one in &requested {
        let limit = (one.ask.throttle.as_str() == "slow").then_some(Limit::Throttle);
        scheduler.answered(
            one,
            &AcquireResponse {
                lanes: vec![grant(0, limit)],
                ..AcquireResponse::default()
            },
            now,
        );
    }

    assert_eq!(
        scheduler
            .plan(now, 8)
            .iter()
            .map(|one| one.ask.throttle.as_str())
            .collect::<Vec<_>>(),
        ["fast"]
    );
    assert_eq!(scheduler.next_due(now), Some(now));
    assert_eq!(scheduler.plan(now + Duration::from_millis(100), 8).len(), 2);
}

#[test]
fn permits_are_never_exceeded_and_a_long_queue_soon_fills_them() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    for id in 0..200 {
        add(
            &mut scheduler,
            id,
            if id % 2 == 0 { "a" } else { "b" },
            1.0,
            now,
        );
    }
    for permits in 1..300 {
        let wanted: u32 = scheduler
            .plan(now, permits)
            .iter()
            .flat_map(|requested| &requested.ask.lanes)
            .map(|lane| lane.want)
            .sum();
        assert!(wanted as usize <= permits, "{wanted} of {permits}");
    }

    let (mut scheduler, mut counts) = (self::scheduler(), HashMap::new());
    add(&mut scheduler, 7, "t", 1.0, now);
    for _ in 0..10 {
        serve(&mut scheduler, now, 500, 500, &mut counts);
    }
    let wanted: u32 = scheduler
        .plan(now, 500)
        .iter()
        .flat_map(|requested| &requested.ask.lanes)
        .map(|lane| lane.want)
        .sum();
    assert_eq!(wanted, 500);
}

#[test]
fn an_empty_lane_rests_until_it_is_seen_again_and_keeps_what_was_learned_of_it() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    add(&mut scheduler, 1, "t", 1.0, now);
    scheduler.learn_cost(1, 11.0);
    let claim = scheduler.claim(1, 5, now, Duration::ZERO);
    scheduler.claimed(&claim, &[], false, now);
    assert_eq!(
        scheduler.plan(now, 1).len(),
        1,
        "what was noted when the claim was made is not in its answer"
    );
    scheduler.claimed(&claim, &[], false, now + Duration::from_millis(1));
    assert!(scheduler.plan(now, 1).is_empty());
    assert_eq!(scheduler.next_due(now), None);

    assert!(
        scheduler
            .seen(
                &[ReadyPriorities {
                    lane_id: 1,
                    priorities: 1,
                    head: 0
                }],
                now
            )
            .is_empty(),
        "it is still known by name"
    );

    assert!((scheduler.plan(now, 1)[0].ask.lanes[0].cost - 4.0).abs() < 1e-9);
    assert_eq!(
        scheduler
            .seen(
                &[ReadyPriorities {
                    lane_id: 2,
                    priorities: 1,
                    head: 0
                }],
                now
            )
            .len(),
        1,
        "an unknown lane is not"
    );
}

#[test]
fn lanes_of_other_workers_are_served_when_nothing_else_is_due() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    add(&mut scheduler, i64::MIN, "t", 1.0, now);
    add(&mut scheduler, i64::MAX, "t", 1.0, now);
    scheduler.own(1);

    assert_eq!(scheduler.plan(now, 1).remove(0).lanes, [i64::MIN]);
    assert_eq!(
        scheduler.plan(now, 64).remove(0).lanes,
        [i64::MIN, i64::MAX]
    );

    scheduler.own(1 << 63);
    assert_eq!(scheduler.plan(now, 1).remove(0).lanes, [i64::MAX]);
}

/// Asks for one lane of a throttle that drops, and answers with the given grant.
fn dropping(scheduler: &mut LaneScheduler, now: Instant, given: Grant) -> PlannedAcquire {
    let requested = scheduler.plan(now, 10).remove(0);
    let answer = AcquireResponse {
        lanes: vec![given],
        over_limit: OverLimit::Drop,
        at_us: 1,
        ..AcquireResponse::default()
    };
    scheduler.answered(&requested, &answer, now);
    requested
}

#[test]
fn a_throttle_is_known_to_drop_from_its_answer_on_and_a_lane_with_a_claim_under_way_is_left_alone()
{
    let (mut scheduler, now) = (scheduler(), Instant::now());
    add(&mut scheduler, 1, "t", 1.0, now);

    let first = dropping(&mut scheduler, now, grant(1, Some(Limit::Key)));
    assert!(!first.drops && scheduler.is_unclaimed(1));
    let claim = scheduler.claim(1, 1, now, Duration::ZERO);
    assert!(!scheduler.is_unclaimed(1));
    scheduler.claimed(
        &claim,
        &[LaneCursor {
            priority: 1,
            job_id: 7,
        }],
        false,
        now,
    );
    assert!(scheduler.is_unclaimed(1));

    let later = now + MAX_KNOB_WAIT;
    assert!(dropping(&mut scheduler, later, grant(0, Some(Limit::Throttle))).drops);
    scheduler.dropped(1, later);
    assert_eq!(
        (scheduler.due(), scheduler.next_due(later)),
        (0, None),
        "nothing is left to ask for"
    );
    scheduler.seen(
        &[ReadyPriorities {
            lane_id: 1,
            priorities: 0b10,
            head: 9,
        }],
        later,
    );
    assert_eq!(scheduler.due(), 1);
}

#[test]
fn what_came_after_the_ask_is_not_taken_for_dropped() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    add(&mut scheduler, 1, "t", 1.0, now);
    dropping(&mut scheduler, now, grant(0, Some(Limit::Key)));

    scheduler.seen(
        &[ReadyPriorities {
            lane_id: 1,
            priorities: 0b10,
            head: 9,
        }],
        now + Duration::from_millis(1),
    );
    scheduler.dropped(1, now);

    assert_eq!(scheduler.plan(now + MAX_KNOB_WAIT, 10).len(), 1);
}

#[test]
fn lanes_of_other_workers_are_not_asked_for_where_their_throttle_drops() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    add(&mut scheduler, 1, "t", 1.0, now);
    scheduler.own(0);
    dropping(&mut scheduler, now, grant(0, Some(Limit::Key)));
    let later = now + MAX_KNOB_WAIT;

    assert!(scheduler.plan(later, 10).is_empty());
    assert_eq!((scheduler.due(), scheduler.next_due(later)), (0, None));

    scheduler.own(u64::MAX);
    scheduler.seen(
        &[ReadyPriorities {
            lane_id: 1,
            priorities: 0b10,
            head: 9,
        }],
        later,
    );
    assert_eq!(
        scheduler.plan(later, 10).len(),
        1,
        "its own worker looks after it"
    );
}

/// Asks for one job of the only lane that is due, and begins its claim.
fn first_claim(scheduler: &mut LaneScheduler, now: Instant) -> LaneClaim {
    let requested = scheduler.plan(now, 10).remove(0);
    assert_eq!(requested.ask.lanes[0].want, 1, "the one that rang");
    let answer = AcquireResponse {
        lanes: vec![grant(1, None)],
        ..AcquireResponse::default()
    };
    scheduler.answered(&requested, &answer, now);
    scheduler.claim(1, 1, now, Duration::ZERO)
}

#[test]
fn a_lane_that_woke_up_is_asked_for_again_when_its_first_claim_saw_more() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    let later = now + Duration::from_millis(1);
    for is_dry in [true, false] {
        add(&mut scheduler, 1, "t", 1.0, now);
        let claim = first_claim(&mut scheduler, later);
        assert!(claim.look, "it looks for another job");
        assert!(scheduler.plan(later, 10).is_empty());
        assert_eq!(scheduler.next_due(later), None, "nobody spins meanwhile");

        scheduler.claimed(&claim, &[place(7)], is_dry, later);

        assert_eq!(scheduler.due(), usize::from(!is_dry));
        scheduler.seen(
            &[ReadyPriorities {
                lane_id: 1,
                priorities: 0b10,
                head: 9,
            }],
            now,
        );
    }
    // More of it is there, so claims overlap from now on.
    assert_eq!(scheduler.plan(later, 10)[0].ask.lanes[0].want, 2);
    scheduler.claim(1, 2, later, Duration::ZERO);
    assert_eq!(scheduler.plan(later, 10).len(), 1);
}

#[test]
fn a_lane_is_due_again_after_a_first_claim_that_failed_or_that_a_ring_overtook() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    add(&mut scheduler, 1, "t", 1.0, now);

    let failed = first_claim(&mut scheduler, now);
    scheduler.unclaimed(&failed);
    assert_eq!(scheduler.due(), 1);

    let requested = scheduler.plan(now, 1).remove(0);
    assert_eq!(requested.lanes, [1]);
    let claim = scheduler.claim(1, 1, now, Duration::ZERO);
    let ring = [ReadyPriorities {
        lane_id: 1,
        priorities: 0b10,
        head: i64::MAX,
    }];
    scheduler.seen(&ring, now + Duration::from_millis(1));
    scheduler.claimed(&claim, &[place(7)], true, now);
    assert_eq!(scheduler.due(), 1, "the new job is not in the answer");
}

#[test]
fn a_lane_is_due_again_after_a_claim_that_was_aborted() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    add(&mut scheduler, 1, "t", 1.0, now);
    first_claim(&mut scheduler, now);
    assert_eq!(scheduler.due(), 0);

    scheduler.retry_first_claims();

    assert_eq!(scheduler.due(), 1);
}
