use super::reports::{REPORT_RETRY_DELAY, UNCOUNTED_REPORT_INTERVAL};
use super::tests::{add, grant, scheduler};
use super::*;
use crate::throttle::AcquireResponse;

#[test]
fn what_is_held_is_reported_where_it_is_counted_and_at_once_after_a_release() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    add(&mut scheduler, 1, "t", 1.0, now);
    let requested = scheduler.plan(now, 2).remove(0);
    let answer = AcquireResponse {
        lanes: vec![grant(2, None)],
        limits_concurrency: true,
        ..AcquireResponse::default()
    };
    scheduler.answered(&requested, &answer, now);
    let claim = scheduler.claim(1, 2, now, Duration::ZERO);
    scheduler.claimed(
        &claim,
        &[
            LaneCursor {
                priority: 1,
                job_id: 1,
            },
            LaneCursor {
                priority: 1,
                job_id: 2,
            },
        ],
        false,
        now,
    );
    let throttle = Name::new("t").unwrap();
    let word = |held| HoldReport {
        throttle: throttle.clone(),
        held,
        lanes: vec![("1".into(), held)],
        ids: vec![1],
        ring: 0,
    };

    assert_eq!(scheduler.due_reports(now), [word(2)]);
    assert_eq!(scheduler.due_reports(now), []);
    scheduler.ended(1);
    assert_eq!(scheduler.due_reports(now), [word(1)]);
    assert_eq!(scheduler.due_reports(now + HOLD_REPORT_INTERVAL), [word(1)]);
    scheduler.ended(1);
    assert_eq!(scheduler.due_reports(now + HOLD_REPORT_INTERVAL), [word(0)]);
    assert_eq!(scheduler.due_reports(now + 9 * HOLD_REPORT_INTERVAL), []);
    assert_eq!(scheduler.plan(now, 5).remove(0).ask.holder.unwrap().held, 0);
}

#[test]
fn what_is_held_is_reported_now_and_then_although_nobody_counts_it_yet() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    add(&mut scheduler, 1, "t", 1.0, now);
    let requested = scheduler.plan(now, 2).remove(0);
    scheduler.answered(
        &requested,
        &AcquireResponse {
            lanes: vec![grant(2, None)],
            ..AcquireResponse::default()
        },
        now,
    );

    assert_eq!(scheduler.due_reports(now), []);
    assert_eq!(
        scheduler.due_reports(now + UNCOUNTED_REPORT_INTERVAL)[0].held,
        2,
        "a knob may have been set meanwhile"
    );
}

/// Returns a scheduler whose throttle `t` counts running jobs, with `held` jobs granted of lane 1
/// and none claimed yet.
fn counting(held: u32, now: Instant) -> (LaneScheduler, LaneClaim) {
    let mut scheduler = scheduler();
    add(&mut scheduler, 1, "t", 1.0, now);
    let requested = scheduler.plan(now, held as usize).remove(0);
    scheduler.answered(
        &requested,
        &AcquireResponse {
            lanes: vec![grant(held, None)],
            limits_concurrency: true,
            ..AcquireResponse::default()
        },
        now,
    );
    let claim = scheduler.claim(1, held, now, Duration::ZERO);
    (scheduler, claim)
}

fn numbers(words: &[HoldReport]) -> Vec<(u32, Vec<u32>)> {
    words
        .iter()
        .map(|word| {
            (
                word.held,
                word.lanes.iter().map(|(_, held)| *held).collect(),
            )
        })
        .collect()
}

#[test]
fn a_release_that_was_not_heard_is_said_again_although_nothing_runs_any_more() {
    let now = Instant::now();
    let (mut scheduler, claim) = counting(1, now);
    scheduler.claimed(
        &claim,
        &[LaneCursor {
            priority: 1,
            job_id: 1,
        }],
        false,
        now,
    );
    scheduler.ended(1);
    let word = scheduler.due_reports(now).remove(0);

    scheduler.retry_report(&word, now);

    assert_eq!(
        scheduler.due_reports(now),
        [],
        "a store that is away is not asked at every turn"
    );
    assert_eq!(
        scheduler.next_due(now + REPORT_RETRY_DELAY),
        Some(now + REPORT_RETRY_DELAY)
    );
    (0..9).for_each(|_| scheduler.swept());
    assert_eq!(
        scheduler.due_reports(now + REPORT_RETRY_DELAY),
        [word],
        "the lane is not forgotten before it was heard"
    );
    assert_eq!(scheduler.due_reports(now + 9 * HOLD_REPORT_INTERVAL), []);
}

#[test]
fn what_was_granted_and_not_found_is_reported_as_a_release() {
    let now = Instant::now();
    let (mut scheduler, claim) = counting(2, now);
    assert_eq!(numbers(&scheduler.due_reports(now)), [(2, vec![2])]);

    scheduler.claimed(&claim, &[], false, now + Duration::from_millis(1));

    assert_eq!(
        numbers(&scheduler.due_reports(now + Duration::from_millis(1))),
        [(0, vec![0])]
    );
    let (mut scheduler, claim) = counting(2, now);
    scheduler.due_reports(now);
    scheduler.unclaimed(&claim);
    assert_eq!(
        numbers(&scheduler.due_reports(now)),
        [(0, vec![0])],
        "nor what a claim would have taken that failed"
    );
}

#[test]
fn the_last_word_says_that_nothing_is_held_whatever_runs() {
    let now = Instant::now();
    let (mut scheduler, claim) = counting(2, now);
    scheduler.claimed(
        &claim,
        &[
            LaneCursor {
                priority: 1,
                job_id: 1,
            },
            LaneCursor {
                priority: 1,
                job_id: 2,
            },
        ],
        false,
        now,
    );
    scheduler.due_reports(now);

    assert_eq!(numbers(&scheduler.final_reports()), [(0, vec![0])]);
}
