//! Claims: each job once, up to the grant, by priority and age.

use std::time::Duration;

use flyball::jobs::postgres::{Ending, LaneClaim};
use flyball::jobs::{NewJob, State};
use sqlx::{AssertSqlSafe, Executor, Row};

use super::fixture::{FENCE, claim_all, end, enqueue_one, http, queue, state, worker};

#[tokio::test]
async fn a_claim_takes_what_was_granted_of_each_lane_by_priority_and_age() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let late = enqueue_one(
        &queue,
        NewJob {
            priority: 3,
            key: "a".into(),
            ..http()
        },
    )
    .await;
    let first = enqueue_one(
        &queue,
        NewJob {
            key: "a".into(),
            ..http()
        },
    )
    .await;
    let second = enqueue_one(
        &queue,
        NewJob {
            key: "a".into(),
            ..http()
        },
    )
    .await;
    let other = enqueue_one(
        &queue,
        NewJob {
            key: "b".into(),
            ..http()
        },
    )
    .await;
    let lanes = queue.ready_lanes().await.unwrap();
    let lane_a = lanes.iter().find(|lane| lane.key == "a").unwrap().lane_id;

    let claimed = queue
        .claim(worker, FENCE, &[LaneClaim::first(lane_a, 2)])
        .await
        .unwrap();

    assert_eq!(
        claimed.iter().map(|one| one.job.id).collect::<Vec<_>>(),
        [first, second]
    );
    assert_eq!(claimed[0].job.attempt, 1);
    assert_eq!(
        (state(&queue, late).await, state(&queue, other).await),
        (State::Ready, State::Ready)
    );
    assert_eq!(state(&queue, first).await, State::Running);
}

/// Moves the jobs of the key `old` that wait to an earlier day, as if they had been enqueued then.
const AGE: &str = "
    select flyball.ensure_day(flyball.day_of(now()) - 2);
    insert into flyball.job (id, lane_id, priority, max_attempts, cost, kind, throttle, key, args)
    select id - (2::bigint << 38), lane_id, priority, max_attempts, cost, kind, throttle, key, args
    from flyball.job where key = 'old' and id in (select job_id from flyball.ready);
    update flyball.ready set job_id = job_id - (2::bigint << 38), attempt = 3
    where job_id in (select id from flyball.job where key = 'old')";

#[tokio::test]
async fn jobs_of_earlier_days_are_claimed_with_those_of_today() {
    let (database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let of = |key: &str| NewJob {
        key: key.into(),
        ..http()
    };
    // From here on claims read the jobs of today only, until one of another day turns up.
    let today = enqueue_one(&queue, of("new")).await;
    assert_eq!(claim_all(&queue, worker, FENCE, 5).await, [today]);
    for round in 0..2 {
        let old = enqueue_one(&queue, of("old")).await;
        let new = enqueue_one(&queue, of("new")).await;
        sqlx::raw_sql(AGE).execute(database.pool()).await.unwrap();
        let lanes = queue.ready_lanes().await.unwrap();
        let claims: Vec<LaneClaim> = lanes
            .iter()
            .map(|lane| LaneClaim::first(lane.lane_id, 5))
            .collect();

        let claimed = queue.claim(worker, FENCE, &claims).await.unwrap();

        let claimed: Vec<_> = claimed
            .iter()
            .map(|one| (one.job.id, one.job.key.as_str(), one.job.attempt))
            .collect();
        let expected = [(old - (2 << 38), "old", 4), (new, "new", 1)];
        assert_eq!(claimed, expected, "round {round}");
    }
}

#[tokio::test]
async fn eight_claimers_of_one_lane_never_get_the_same_job() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let jobs: Vec<NewJob> = (0..400).map(|_| http()).collect();
    let mut wanted: Vec<i64> = queue
        .enqueue(&jobs)
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();

    let claimers = (0..8).map(|fence| {
        let queue = queue.clone();
        tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let got = claim_all(&queue, worker, fence, 7).await;
                if got.is_empty() {
                    return mine;
                }
                mine.extend(got);
            }
        })
    });
    let mut got: Vec<i64> = futures_util::future::join_all(claimers)
        .await
        .into_iter()
        .flat_map(Result::unwrap)
        .collect();

    got.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(got, wanted);
}

#[tokio::test]
async fn what_is_due_is_promoted_and_what_is_not_stays() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let soon = enqueue_one(&queue, http()).await;
    let later = enqueue_one(
        &queue,
        NewJob {
            run_at: Some("2030-01-01T00:00:00Z".parse().unwrap()),
            ..http()
        },
    )
    .await;
    claim_all(&queue, worker, FENCE, 1).await;
    queue
        .finish(&[end(
            soon,
            FENCE,
            Ending::Failed {
                delay: Duration::from_millis(50),
                error: "x".into(),
            },
        )])
        .await
        .unwrap();

    crate::support::eventually("the retry is due", Duration::from_secs(5), || async {
        let promoted = queue.promote().await.unwrap();
        assert!(!promoted.more);
        (promoted.jobs == 1).then(|| assert_eq!(promoted.lanes.len(), 1))
    })
    .await;

    assert_eq!(
        (state(&queue, soon).await, state(&queue, later).await),
        (State::Ready, State::Scheduled)
    );
    assert_eq!(
        queue.get(soon).await.unwrap().unwrap().summary.attempt,
        1,
        "the failed attempt counts"
    );
}

#[tokio::test]
async fn a_claim_walks_the_index_of_its_lane_however_long_other_lanes_are() {
    let (database, queue) = queue().await;
    sqlx::raw_sql(
        "insert into flyball.ready (lane_id, priority, job_id, cost) select 1, 1, i, 1 from generate_series(1, 200000) i;
         insert into flyball.ready (lane_id, priority, job_id, cost) select i, 1, 200000 + i, 1 from generate_series(2, 5000) i;
         analyze flyball.ready",
    )
    .execute(database.pool())
    .await
    .unwrap();
    let mut connection = queue.pool.acquire().await.unwrap();
    let claim = flyball::jobs::postgres::STATEMENTS
        .iter()
        .find(|(name, _)| *name == "claim")
        .unwrap()
        .1;
    connection
        .execute(AssertSqlSafe(format!(
            "prepare c (bigint[], int[], bigint, int, smallint[], bigint[], bool[], bigint, bigint) as {claim}"
        )))
        .await
        .unwrap();

    let rows = connection
        .fetch_all("explain execute c ('{7,8}', '{2,2}', 1, 1, '{0,0}', '{0,0}', '{f,t}', 0, 0)")
        .await
        .unwrap();

    let plan: String = rows
        .iter()
        .map(|row| row.get::<String, _>(0) + "\n")
        .collect();
    assert!(plan.contains("Index Scan using ready_lane"), "{plan}");
    let picked = plan
        .split("CTE picked")
        .nth(1)
        .unwrap()
        .split("CTE removed")
        .next()
        .unwrap();
    assert!(
        !picked.contains("Sort"),
        "the lane's index gives the order: {plan}"
    );
    assert!(!plan.contains("Seq Scan"), "{plan}");
    let jit: String = sqlx::query_scalar("show jit")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    let plans: String = sqlx::query_scalar("show plan_cache_mode")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    assert_eq!(
        (jit.as_str(), plans.as_str()),
        ("off", "force_generic_plan")
    );
}
