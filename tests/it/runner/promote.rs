//! Due jobs move to their lanes, and a crowd of them does not delay other lanes.

use std::time::Duration;

use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker, PromotionCursor};
use flyball::jobs::{NewJob, Queue, State};
use jiff::Timestamp;
use serde_json::json;
use sqlx::{AssertSqlSafe, PgPool};

use crate::support::{Database, database, eventually};

const FENCE: i64 = 4242;

async fn queue() -> (Database, Queue) {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, Duration::from_secs(20))
        .await
        .unwrap();
    (database, queue)
}

async fn run(pool: &PgPool, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(pool)
        .await
        .unwrap_or_else(|error| panic!("{error}: {sql}"));
}

async fn number(pool: &PgPool, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(pool)
        .await
        .unwrap()
}

fn http(throttle: &str) -> NewJob {
    NewJob {
        throttle: throttle.into(),
        ..NewJob::new("http", json!({"url": "http://127.0.0.1/"}))
    }
}

/// Enqueues jobs of the throttle `campaign` that are due in the same second, spread over lanes.
async fn campaign(pool: &PgPool, jobs: i64, lanes: i64, priority: i64) {
    run(
        pool,
        &format!(
            "insert into flyball.job (id, lane_id, priority, max_attempts, cost, kind, throttle, key, args)
             select flyball.next_id(), flyball.lane_of('campaign', (n % {lanes})::text), {priority}, 10, 1, 'http', 'campaign',
                 (n % {lanes})::text, '{{}}'
             from generate_series(1, {jobs}) n;
             insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique)
             select id, now() - make_interval(secs => 20 + random()), lane_id, priority, 1, false, false from flyball.job where key <> ''"
        ),
    )
    .await;
}

async fn enqueue(queue: &Queue, job: NewJob) -> i64 {
    queue.enqueue(&[job]).await.unwrap()[0].id
}

async fn state(queue: &Queue, id: i64) -> State {
    queue.get(id).await.unwrap().unwrap().summary.state
}

/// Runs one promotion and one step through the crowd, like a worker.
async fn first_rounds(queue: &Queue) {
    assert!(queue.promote().await.unwrap().more);
    let mut crowd = PromotionCursor::default();
    assert!(queue.promote_crowd(&mut crowd).await.unwrap().more);
}

#[tokio::test]
async fn a_due_job_stands_behind_no_campaign_of_another_throttle_or_priority_and_a_retry_behind_none()
 {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let kinds = vec!["http".to_owned()];
    let ttl = Duration::from_secs(60);
    let worker = queue
        .register(&NewWorker {
            name: "w".into(),
            host: "h".into(),
            pid: 1,
            ttl,
            kinds,
        })
        .await
        .unwrap();
    let failed = enqueue(&queue, http("campaign")).await;
    let lane = number(pool, "select flyball.lane_of('campaign', '')").await;
    assert_eq!(
        queue
            .claim(worker, FENCE, &[LaneClaim::first(lane, 1)])
            .await
            .unwrap()
            .len(),
        1
    );
    campaign(pool, 60_000, 50, 1).await;
    #[expect(
        clippy::disallowed_methods,
        reason = "a job is scheduled from the clock of who enqueues it"
    )]
    let soon: Timestamp = Timestamp::now()
        .checked_add(Duration::from_millis(300))
        .unwrap();
    let later = |job: NewJob| NewJob {
        run_at: Some(soon),
        ..job
    };
    let critical = enqueue(
        &queue,
        later(NewJob {
            priority: 0,
            ..http("codes")
        }),
    )
    .await;
    let equal = enqueue(&queue, later(http("invoices"))).await;
    let lowest = enqueue(
        &queue,
        later(NewJob {
            priority: 3,
            ..http("reports")
        }),
    )
    .await;
    let urgent_of_its_own = enqueue(
        &queue,
        later(NewJob {
            priority: 0,
            ..http("campaign")
        }),
    )
    .await;
    let ending = Ending::Failed {
        delay: Duration::from_millis(300),
        error: "500".into(),
    };
    queue
        .finish(&[Finish {
            job_id: failed,
            fence: FENCE,
            ending,
        }])
        .await
        .unwrap();
    let later = [critical, equal, lowest, urgent_of_its_own, failed];
    eventually("all five are due", Duration::from_secs(60), || async {
        let due =
            "select count(*) from flyball.scheduled where job_id = any($1) and run_at <= now()";
        let due: i64 = sqlx::query_scalar(due)
            .bind(&later[..])
            .fetch_one(pool)
            .await
            .unwrap();
        (due == 5).then_some(())
    })
    .await;

    first_rounds(&queue).await;

    assert!(
        number(pool, "select count(*) from flyball.scheduled").await > 50_000,
        "most of the campaign waits"
    );
    for (id, whose) in [
        (critical, "critical"),
        (equal, "equal"),
        (lowest, "lowest"),
        (urgent_of_its_own, "its own"),
        (failed, "retry"),
    ] {
        assert_eq!(state(&queue, id).await, State::Ready, "{whose}");
    }
    assert!(
        number(
            pool,
            "select count(*) from flyball.ready where lane_id = flyball.lane_of('campaign', '7')"
        )
        .await
            > 10
    );
}

#[tokio::test]
async fn several_promoters_of_a_crowd_lose_nothing_and_move_nothing_twice() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    campaign(pool, 20_000, 3_000, 2).await;
    run(
        pool,
        "update flyball.scheduled set turn = turn + 8 * (job_id % 300)::int",
    )
    .await;

    let promoters: Vec<_> = (0..4)
        .map(|n| {
            let queue = queue.clone();
            tokio::spawn(async move {
                let (mut crowd, mut moved) = (PromotionCursor::default(), 0);
                // A concurrent promoter learns that nothing is left, and tries again.
                for _ in 0..400 {
                    let promoted = match n {
                        0 => queue.promote().await.unwrap(),
                        _ => queue.promote_crowd(&mut crowd).await.unwrap(),
                    };
                    moved += promoted.jobs;
                    if !promoted.more {
                        // Real time: the other promoter that has the rest moves it meanwhile.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    if number(queue.pool.pool(), "select count(*) from flyball.scheduled").await
                        == 0
                    {
                        break;
                    }
                }
                moved
            })
        })
        .collect();
    let mut moved = 0;
    for promoter in promoters {
        moved += promoter.await.unwrap();
    }

    assert_eq!(
        (
            moved,
            number(pool, "select count(*) from flyball.ready").await
        ),
        (20_000, 20_000)
    );
}

#[tokio::test]
async fn whatever_waits_for_its_time_has_a_turn_by_throttle_retry_and_priority() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    #[expect(
        clippy::disallowed_methods,
        reason = "a job is scheduled from the clock of who enqueues it"
    )]
    let tomorrow = Some(
        Timestamp::now()
            .checked_add(Duration::from_secs(86_400))
            .unwrap(),
    );
    let one = enqueue(
        &queue,
        NewJob {
            run_at: tomorrow,
            priority: 3,
            ..http("a")
        },
    )
    .await;
    let many = vec![
        NewJob {
            run_at: tomorrow,
            ..http("b")
        };
        3
    ];
    queue.enqueue(&many).await.unwrap();
    let turns = async |sql: &str| {
        number(
            pool,
            &format!("select count(*) from flyball.scheduled where {sql}"),
        )
        .await
    };

    assert_eq!(
        turns(&format!(
            "job_id = {one} and turn = flyball.turn_of('a', 3::smallint, false)"
        ))
        .await,
        1
    );
    assert_eq!(
        turns("turn = flyball.turn_of('b', 1::smallint, false)").await,
        3
    );
    run(
        pool,
        &format!("update flyball.scheduled set retry = true where job_id = {one}"),
    )
    .await;
    assert_eq!(
        turns(&format!(
            "job_id = {one} and turn = flyball.turn_of('a', 3::smallint, true)"
        ))
        .await,
        1
    );
    assert!(
        number(
            pool,
            "select flyball.turn_of('a', 0::smallint, true)::bigint"
        )
        .await
            >= 8
    );
}

#[tokio::test]
async fn a_crowd_moves_by_turns_whatever_advisory_locks_strangers_keep() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    campaign(pool, 5_000, 10, 1).await;
    let mut stranger = pool.acquire().await.unwrap();
    sqlx::raw_sql("select pg_advisory_lock(hashtext('flyball.promote'))")
        .execute(&mut *stranger)
        .await
        .unwrap();

    let promoted = queue
        .promote_crowd(&mut PromotionCursor::default())
        .await
        .unwrap();

    assert!(promoted.jobs > 0, "{promoted:?}");
    assert!(promoted.more, "{promoted:?}");
}
