use super::*;

fn lane() -> Lane {
    Lane::new(0, "a".into(), 1.0)
}

fn place(priority: i16, job_id: i64) -> LaneCursor {
    LaneCursor { priority, job_id }
}

#[test]
fn a_claim_begins_behind_the_last_job_and_at_the_head_now_and_then() {
    let (mut lane, now, every) = (lane(), Instant::now(), Duration::from_secs(1));
    lane.note(0b10, now);
    assert_eq!(lane.begin(now, every), LaneCursor::default());

    assert!(!lane.took(
        LaneCursor::default(),
        &[place(1, 7), place(1, 9)],
        false,
        now
    ));

    assert_eq!(lane.begin(now, every), place(1, 9));
    assert_eq!(lane.begin(now + every, every), LaneCursor::default());
}

#[test]
fn of_two_claims_under_way_at_once_one_begins_at_the_head_and_both_move_the_place_on() {
    let (mut lane, now, every) = (lane(), Instant::now(), Duration::from_secs(1));
    lane.note(0b10, now);
    let first = lane.begin(now, every);
    lane.took(first, &[place(1, 9)], false, now);
    let (one, other) = (lane.begin(now, every), lane.begin(now, every));

    lane.took(other, &[place(1, 12)], false, now);
    lane.took(one, &[place(1, 10)], false, now);

    assert_eq!(lane.begin(now, every), place(1, 12));
    assert_eq!(lane.begin(now + every, every), LaneCursor::default());
    assert_ne!(
        lane.begin(now + every, every),
        LaneCursor::default(),
        "the one before is on its way to the head"
    );
}

#[test]
fn a_lane_that_is_short_behind_its_last_job_and_was_heard_of_since_is_looked_at_from_the_head_before_it_counts_as_empty()
 {
    let (mut lane, now, every) = (lane(), Instant::now(), Duration::from_secs(1));
    lane.begin(now, every);
    lane.took(LaneCursor::default(), &[place(1, 9)], false, now);
    lane.note(0b10, now);

    assert!(!lane.took(place(1, 9), &[], true, now + every));
    assert_eq!(lane.begin(now + every, every), LaneCursor::default());
    assert!(lane.took(LaneCursor::default(), &[], true, now + every));
}

#[test]
fn a_lane_of_which_nothing_was_heard_since_its_head_was_claimed_is_empty_when_nothing_is_left_behind_its_last_job()
 {
    let (mut lane, now, every) = (lane(), Instant::now(), Duration::from_secs(1));
    lane.note(0b10, now);
    lane.begin(now + every, every);
    lane.took(LaneCursor::default(), &[place(1, 9)], false, now + every);

    assert!(lane.took(place(1, 9), &[], true, now + every));
}

#[test]
fn a_lane_is_looked_into_at_its_first_jobs_and_then_ever_more_rarely() {
    let mut lane = lane();

    let looks: Vec<u32> = (1..=20).filter(|_| lane.look(1)).collect();

    assert_eq!(looks, [1, 2, 4, 8, 16]);
    assert!(
        !std::iter::repeat_n(MAX_VISIT + 1, 12).any(|jobs| lane.look(jobs)),
        "a claim of many jobs is hardly ever the last one"
    );
}

#[test]
fn a_more_urgent_job_is_not_hidden_behind_the_place() {
    let (mut lane, now, every) = (lane(), Instant::now(), Duration::from_secs(1));
    lane.note(0b100, now);
    lane.took(LaneCursor::default(), &[place(2, 9)], false, now);

    lane.note(0b1, now);

    assert_eq!(lane.begin(now, every), LaneCursor::default());
}

#[test]
fn a_priority_that_was_passed_over_for_long_goes_first_once() {
    let (mut lane, mut now, every) = (lane(), Instant::now(), Duration::from_secs(1));
    lane.note(0b1001, now);
    assert_eq!(lane.begin(now, every), LaneCursor::default());
    now += AGEING;

    assert_eq!(lane.begin(now, every), place(3, 0));
    assert!(!lane.took(place(3, 0), &[place(3, 5)], false, now));

    assert_ne!(lane.begin(now, every), place(3, 0));
    assert_eq!(lane.begin(now + AGEING, every), place(3, 0));
    // No job is left at that priority: this does not make the lane empty, and the priority is
    // not tried again.
    assert!(!lane.took(place(3, 0), &[], true, now + AGEING));
    assert_eq!(lane.begin(now + 3 * AGEING, every), LaneCursor::default());
}

fn seen(priorities: u8, head: i64) -> ReadyPriorities {
    ReadyPriorities {
        lane_id: 1,
        priorities,
        head,
    }
}

fn walk(to: LaneCursor, passed: u32, is_end: bool) -> LaneWalk {
    LaneWalk {
        to,
        newest: to.job_id,
        passed,
        is_end,
    }
}

#[test]
fn a_walk_goes_on_behind_the_jobs_of_others_and_a_lane_with_only_those_is_left_until_there_is_news()
{
    let (mut lane, now) = (lane(), Instant::now());
    lane.note(0b10, now);
    let later = now + Duration::from_millis(1);
    assert_eq!(lane.begin_walk(later), LaneCursor::default());

    assert!(!lane.walked(
        LaneCursor::default(),
        &[],
        &walk(place(1, 500), 500, false),
        true,
        later
    ));
    assert_eq!(lane.begin_walk(later), place(1, 500));
    assert!(lane.walked(
        place(1, 500),
        &[],
        &walk(place(1, 900), 400, true),
        true,
        later
    ));

    assert!(
        !lane.is_news(&seen(0b10, 1), later),
        "a sweep finds the passed jobs"
    );
    assert!(lane.is_news(&seen(0b10, 901), later));
    assert_eq!(lane.begin_walk(later), place(1, 900));
    assert!(lane.is_news(&seen(0b1, 950), later), "a more urgent job");
    assert_eq!(lane.begin_walk(later), place(0, 949));
}

#[test]
fn a_walk_from_the_head_comes_again_later_the_more_jobs_of_others_it_passes() {
    for (passed, again) in [(10, 2), (10_000, 4), (1_000_000, 30)] {
        let (mut lane, now) = (lane(), Instant::now());
        lane.note(0b10, now);
        let begun = now + Duration::from_millis(1);
        let began = lane.begin_walk(begun);
        assert!(lane.walked(began, &[], &walk(place(1, 9), passed, true), true, begun));

        let again = Duration::from_secs(again);
        let just_before = begun + again - Duration::from_millis(1);
        assert!(!lane.is_news(&seen(0b10, 1), just_before), "{passed}");
        assert!(lane.is_news(&seen(0b10, 1), begun + again), "{passed}");
        assert_eq!(lane.begin_walk(begun + again), LaneCursor::default());
    }
}

#[test]
fn a_notification_begins_a_walk_past_few_jobs_and_not_past_many() {
    for (passed, hears) in [(1000, true), (1001, false)] {
        let (mut lane, now) = (lane(), Instant::now());
        let began = lane.begin_walk(now);
        lane.walked(began, &[], &walk(place(1, 9), passed, true), true, now);

        assert_eq!(lane.ignores_notifications(), !hears);
        assert_eq!(lane.is_news(&seen(0b1111, i64::MAX), now), hears);
    }
}

#[test]
fn jobs_that_came_while_a_walk_was_under_way_are_not_passed() {
    let (mut lane, now) = (lane(), Instant::now());
    lane.note(0b10, now);
    let later = now + Duration::from_millis(1);
    let began = lane.begin_walk(later);
    assert!(lane.is_news(&seen(0b10, 10), later));
    lane.note(0b10, later);

    assert!(!lane.walked(began, &[], &walk(place(1, 9), 9, true), true, later));

    assert_eq!(lane.begin_walk(later), place(1, 9));
}
