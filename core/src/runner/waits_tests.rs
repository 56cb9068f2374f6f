use super::*;

const MS: Duration = Duration::from_millis(1);

/// Returns waits of which ten are checked a second, with all of these to be checked at `now`.
fn waits(keys: i64, now: Instant) -> Waits<i64> {
    let mut waits = Waits::new(10);
    for key in 0..keys {
        waits.insert(key, &Wait::for_check(now));
    }
    waits
}

/// Checks waits every millisecond up to `until`; returns them in order.
fn check(waits: &mut Waits<i64>, from: Instant, until: Instant) -> Vec<i64> {
    let mut checked = Vec::new();
    let mut now = from;
    while now < until {
        while let Some(key) = waits.take_check(now, now + 100 * MS) {
            checked.push(key);
        }
        now += MS;
    }
    checked
}

#[test]
fn few_waits_are_checked_in_time_and_many_take_turns() {
    let start = Instant::now();
    let end = start + 3000 * MS;

    assert_eq!(
        check(&mut waits(1, start), start, end).len(),
        30,
        "every 100 ms"
    );

    let checked = check(&mut waits(25, start), start, end);
    // Two were saved up.
    assert!((31..=32).contains(&checked.len()), "{}", checked.len());
    assert_eq!(checked[..25], (0..25).collect::<Vec<i64>>());
    assert_eq!(checked[25..30], [0, 1, 2, 3, 4]);
}

#[test]
fn a_check_that_is_not_in_vain_pays_for_two_more() {
    let now = Instant::now();
    let mut waits = waits(100, now);
    let mut checked = 0;
    while let Some(key) = waits.take_check(now, now + MS) {
        waits.remove(key, &Wait::for_check(now + MS));
        waits.reward();
        checked += 1;
    }
    assert_eq!(checked, 100, "all of them end at once");
}

#[test]
fn the_next_time_is_that_of_an_end_or_of_a_check_that_can_be_made() {
    let now = Instant::now();
    let mut waits = waits(3, now);
    assert_eq!(waits.next(now), Some(now));
    assert_eq!(check(&mut waits, now, now + MS), [0, 1]);

    assert_eq!(waits.next(now), Some(now + 100 * MS));
    assert_eq!(waits.take_check(now + 99 * MS, now), None);
    assert_eq!(waits.next(now), Some(now + 100 * MS));
    assert_eq!(
        waits.take_check(now + 100 * MS, now + 200 * MS),
        Some(2),
        "nobody wakes up in vain"
    );

    let wait = Wait {
        end: Some(now + 50 * MS),
        check: Some(now + 10 * MS),
    };
    waits.insert(7, &wait);
    assert_eq!(waits.next(now), Some(now + 50 * MS));
    assert_eq!(waits.take_ended(now + 49 * MS), None);
    assert_eq!(waits.take_ended(now + 50 * MS), Some(7));
    waits.remove(7, &wait);
    assert_eq!(waits.next(now), Some(now + 200 * MS));
}
