use super::*;

/// Returns the record of a throttle that was granted `per_s` jobs a second for two seconds.
fn pace(per_s: usize, now: Instant) -> Visits {
    let mut visits = Visits::default();
    for tenth in 0..20 {
        let at = now + Duration::from_millis(100 * tenth);
        visits.granted(per_s / 10, per_s / 10, at);
    }
    visits
}

#[test]
fn a_visit_takes_as_many_jobs_as_keep_the_round_over_all_lanes_short() {
    let visits = pace(40_000, Instant::now());
    let by_lanes = [1_000, 10_000, 20_000, 39_000, 100_000, 199_000, 201_000];

    let jobs = by_lanes.map(|due| visits.jobs(due, 500));

    assert_eq!(jobs, [8, 4, 2, 2, 2, 2, 1]);
}

#[test]
fn a_visit_takes_one_job_where_a_plan_reaches_all_lanes_or_something_else_is_the_limit() {
    let now = Instant::now();
    let mut visits = pace(40_000, now);

    assert_eq!(visits.jobs(500, 500), 1);
    assert_eq!(visits.jobs(501, 500), 8);
    assert_eq!(pace(1_000, now).jobs(501, 500), 1, "slow jobs");
    visits.granted(3, 4, now + Duration::from_secs(2));
    assert_eq!(visits.jobs(501, 500), 1, "the throttle gives no more");
    visits.granted(4, 4, now + Duration::from_secs(60));
    assert_eq!(visits.jobs(501, 500), 1, "it stood still");
}

#[test]
fn a_first_visit_takes_two_jobs_if_most_lanes_have_as_many() {
    let mut visits = pace(40_000, Instant::now());
    assert_eq!(visits.first_jobs(10_000, 500), 1);

    for _ in 0..100 {
        visits.first_claim(true);
    }
    assert_eq!(visits.first_jobs(10_000, 500), 2);
    assert_eq!(visits.first_jobs(400, 500), 1);

    for _ in 0..100 {
        visits.first_claim(false);
    }
    assert_eq!(visits.first_jobs(10_000, 500), 1);
}
