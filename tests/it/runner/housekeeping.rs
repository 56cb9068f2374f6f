//! Housekeeping stays flat: days come and go, hot tables do not grow, and nobody who claims waits for it.

use std::time::Duration;

use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker, Retention};
use flyball::jobs::{NewJob, Queue, State};
use flyball::stack::{SpawnOptions, spawn};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};

use crate::support::{Database, PROGRAM, database, eventually};

const SOON: Duration = Duration::from_secs(30);
const WEEK: Retention = Retention {
    days: 7,
    dead_days: 0,
};

/// A day of long ago with `jobs` jobs, of which every `each`-th still lives: ready, leased, scheduled and dead in turn.
const OLD_DAY: &str = "
select flyball.ensure_day($day);
insert into flyball.job (id, lane_id, priority, max_attempts, cost, kind, throttle, key, args, created_at)
    select ($day::bigint << 38) + i, flyball.lane_of('t', (i % 10)::text), 1, 10, 1, 'http', 't', (i % 10)::text, '{}', now() - interval '30 days'
    from generate_series(1, $jobs) i;
insert into flyball.attempt (job_id, attempt, outcome, finished_at) select ($day::bigint << 38) + i, 1, 'completed', now() - interval '30 days' from generate_series(1, $jobs) i;
insert into flyball.ready (lane_id, priority, job_id, cost) select lane_id, priority, id, 1 from flyball.job where id >> 38 = $day and id % (4 * $each) = 0;
insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost)
    select id, 1, 1, lane_id, 1, 1, 1 from flyball.job where id >> 38 = $day and id % (4 * $each) = $each;
insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry)
    select id, now() + interval '1 day', lane_id, 1, 1, true from flyball.job where id >> 38 = $day and id % (4 * $each) = 2 * $each;
insert into flyball.dead (job_id, lane_id, priority, attempt, cost)
    select id, lane_id, 1, 1, 1 from flyball.job where id >> 38 = $day and id % (4 * $each) = 3 * $each";

async fn queue() -> (Database, Queue) {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
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
        .unwrap_or_else(|error| panic!("{error}: {sql}"))
}

/// Makes a day `ago` days before today; its number.
async fn old_day(pool: &PgPool, ago: i64, jobs: i64, each: i64) -> i64 {
    let day = number(pool, "select flyball.day_of(now())").await - ago;
    let sql = OLD_DAY
        .replace("$day", &day.to_string())
        .replace("$jobs", &jobs.to_string())
        .replace("$each", &each.to_string());
    run(pool, &sql).await;
    day
}

async fn jobs_of(pool: &PgPool, day: i64) -> i64 {
    number(
        pool,
        &format!("select count(*) from flyball.job where id >> 38 = {day}"),
    )
    .await
}

#[tokio::test]
async fn an_old_day_goes_and_its_living_jobs_stay_with_their_attempts() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let empty = old_day(pool, 20, 100, 1_000).await;
    let living = old_day(pool, 10, 1_000, 25).await;
    let young = old_day(pool, 7, 100, 50).await;
    let worker = number(pool, "select count(*) from flyball.lease").await;
    assert!(worker > 0);

    let done = queue.maintain(WEEK).await.unwrap();

    assert_eq!(done.pruned_days, 2);
    assert_eq!(
        (
            jobs_of(pool, empty).await,
            jobs_of(pool, living).await,
            jobs_of(pool, young).await
        ),
        (0, 40, 100)
    );
    let dropped = format!(
        "select count(*) from pg_class where relname in ('job_{empty}', 'attempt_{empty}')"
    );
    assert_eq!(
        number(pool, &dropped).await,
        0,
        "a day in which nothing lives is gone altogether"
    );
    let orphans = "select count(*) from (select job_id from flyball.ready union all select job_id from flyball.lease
         union all select job_id from flyball.scheduled union all select job_id from flyball.dead) l
         where not exists (select 1 from flyball.job j where j.id = l.job_id) or not exists (select 1 from flyball.attempt a where a.job_id = l.job_id)";
    assert_eq!(
        number(pool, orphans).await,
        0,
        "nothing that lives has lost its job or its history"
    );

    // A day that could not be dropped is not emptied again with every round.
    assert_eq!(queue.maintain(WEEK).await.unwrap().pruned_days, 0);
    run(
        pool,
        "update flyball.day set pruned_at = now() - interval '25 hours'",
    )
    .await;
    run(pool, &format!("delete from flyball.ready; delete from flyball.lease; delete from flyball.scheduled; delete from flyball.dead where job_id >> 38 = {living}")).await;
    assert_eq!(queue.maintain(WEEK).await.unwrap().pruned_days, 1);
    assert_eq!(number(pool, "select count(*) from flyball.day").await, 0);
}

#[tokio::test]
async fn a_day_with_many_living_jobs_is_thinned_without_locking_it() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    // One in two lives: more than one prune copies under its lock.
    let day = old_day(pool, 9, 60_000, 2).await;
    // Somebody reads the day all the while; a lock of the whole table would have to wait for that.
    let mut reader = PgConnection::connect(database.url()).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!(
        "begin; select count(*) from flyball.job_{day}"
    )))
    .execute(&mut reader)
    .await
    .unwrap();

    let mut left = jobs_of(pool, day).await;
    while left > 30_000 {
        queue.maintain(WEEK).await.unwrap();
        let now = jobs_of(pool, day).await;
        assert!(now < left, "{now} of {left}");
        left = now;
    }

    assert_eq!(left, 30_000);
    assert_eq!(
        number(
            pool,
            &format!("select count(*) from flyball.attempt where job_id >> 38 = {day}")
        )
        .await,
        30_000
    );
}

#[tokio::test]
async fn days_that_must_be_thinned_take_turns_and_do_not_keep_others_from_being_pruned() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    // Every job lives, so that a walk through them has many steps.
    for ago in [12, 11] {
        old_day(pool, ago, 30_000, 1).await;
    }
    let later = old_day(pool, 10, 100, 10).await;

    let round = tokio::spawn(async move { queue.maintain(WEEK).await });

    // The second moves while the first is under way.
    let moved = "select count(*) from flyball.day where next > day << 38";
    eventually("both days are under way", SOON, async || {
        (number(pool, moved).await == 2).then_some(())
    })
    .await;
    assert_eq!(jobs_of(pool, later).await, 10);
    round.abort();
}

#[tokio::test]
async fn thinning_goes_on_where_the_round_before_ended() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let day = old_day(pool, 9, 20_000, 1_000_000).await;
    run(pool, &format!("insert into flyball.day (day, kept, next) values ({day}, -1, ({day}::bigint << 38) + 6000)")).await;

    queue.maintain(WEEK).await.unwrap();

    assert_eq!(
        jobs_of(pool, day).await,
        6_000,
        "what lies before that place was looked at by the round before"
    );
    assert_eq!(
        number(
            pool,
            "select count(*) from flyball.day where next is null and kept = -1"
        )
        .await,
        1,
        "it is through"
    );
    // It is tried again a day later, from the beginning.
    assert_eq!(queue.maintain(WEEK).await.unwrap().pruned_days, 0);
    run(
        pool,
        "update flyball.day set pruned_at = now() - interval '25 hours'",
    )
    .await;
    assert_eq!(queue.maintain(WEEK).await.unwrap().pruned_days, 1);
    assert_eq!(number(pool, "select count(*) from flyball.day").await, 0);
}

#[tokio::test]
async fn a_job_that_waited_long_keeps_its_result_for_the_retention_after_its_end() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let pruned = old_day(pool, 20, 100, 1_000_000).await;
    let thinned = old_day(pool, 19, 20_010, 1_000_000).await;
    // Two jobs of each day ran lately; in the second so many more live that it must be thinned.
    for day in [pruned, thinned] {
        run(pool, &format!("update flyball.attempt set finished_at = now() - interval '6 days' where job_id - ({day}::bigint << 38) in (7, 8)")).await;
    }
    run(pool, &format!("insert into flyball.dead (job_id, lane_id, priority, attempt, cost) select id, lane_id, 1, 1, 1 from flyball.job where id >> 38 = {thinned} and id & 1048575 > 9")).await;

    queue.maintain(WEEK).await.unwrap();

    let left = async |day: i64| {
        number(
            pool,
            &format!(
                "select count(*) from flyball.job where id >> 38 = {day} and id & 1048575 < 10"
            ),
        )
        .await
    };
    assert_eq!((left(pruned).await, left(thinned).await), (2, 2));
    let detail = queue.get((pruned << 38) + 7).await.unwrap().unwrap();
    assert_eq!(
        (detail.summary.state, detail.attempts.len()),
        (State::Completed, 1)
    );
    run(pool, "update flyball.attempt set finished_at = now() - interval '8 days' where finished_at > now() - interval '7 days'")
        .await;
    run(
        pool,
        "update flyball.day set pruned_at = now() - interval '25 hours'",
    )
    .await;
    queue.maintain(WEEK).await.unwrap();
    assert_eq!((left(pruned).await, left(thinned).await), (0, 0));
}

#[tokio::test]
async fn a_job_that_is_replaced_while_its_day_is_emptied_stays_replaced() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let day = old_day(pool, 9, 100, 10).await;
    let later = |key: &str| {
        let job = NewJob {
            throttle: "t".into(),
            key: key.into(),
            ..NewJob::new("http", json!({"url": "http://127.0.0.1/", "key": key}))
        };
        NewJob {
            unique_key: Some("one".into()),
            replace: true,
            run_at: Some("2030-01-01T00:00:00Z".parse().unwrap()),
            ..job
        }
    };
    let young = queue.enqueue(&[later("old")]).await.unwrap()[0].id;
    let old = (day << 38) + 101;
    run(pool, &format!("update flyball.job set id = {old} where id = {young}; update flyball.unique_holder set job_id = {old}; update flyball.scheduled set job_id = {old} where job_id = {young}")).await;
    let mut reader = PgConnection::connect(database.url()).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!(
        "begin; select count(*) from flyball.job_{day}"
    )))
    .execute(&mut reader)
    .await
    .unwrap();
    let pruning = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.maintain(WEEK).await })
    };
    // It has copied what lives, and waits for the reader.
    let waits = format!(
        "select count(*) from pg_locks where relation = 'flyball.job_{day}'::regclass and not granted and mode = 'AccessExclusiveLock'"
    );
    eventually("the prune waits", SOON, async || {
        (number(pool, &waits).await > 0).then_some(())
    })
    .await;

    let replaced = queue.enqueue(&[later("new")]).await.unwrap();
    sqlx::raw_sql("commit").execute(&mut reader).await.unwrap();
    pruning.await.unwrap().unwrap();

    assert_eq!((replaced[0].id, replaced[0].replaced), (old, true));
    assert_eq!(jobs_of(pool, day).await, 11);
    let detail = queue.get(old).await.unwrap().unwrap();
    assert_eq!(
        (detail.summary.key.as_str(), &detail.args["key"]),
        ("new", &json!("new"))
    );
}

#[tokio::test]
async fn what_an_old_transaction_enqueued_and_commits_while_its_day_is_emptied_is_kept() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let day = old_day(pool, 9, 200, 10).await;
    run(pool, "select setval('flyball.job_seq', 1000)").await;
    // A transaction of that day: the front door as it is, at a clock that stands nine days back for this connection alone.
    let clock = |back: i64| {
        format!(
            "create or replace function flyball.day_of(at timestamptz) returns bigint language sql immutable parallel safe return floor(extract(epoch from at) / 86400)::bigint - 18262 - {back}"
        )
    };
    let mut old = PgConnection::connect(database.url()).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("begin; {}", clock(9))))
        .execute(&mut old)
        .await
        .unwrap();
    let mut ids: Vec<i64> = Vec::new();
    for run_at in ["null", "null", "now() + interval '1 hour'"] {
        let sql = format!(
            "select job_id from flyball.enqueue('http', '{{}}', 'late', run_at => {run_at})"
        );
        ids.push(
            sqlx::query_scalar(AssertSqlSafe(sql))
                .fetch_one(&mut old)
                .await
                .unwrap(),
        );
    }
    assert!(
        ids.iter().all(|id| id >> 38 == day),
        "their ids are of the day of their begin"
    );
    sqlx::raw_sql(AssertSqlSafe(clock(0)))
        .execute(&mut old)
        .await
        .unwrap();

    let pruning = {
        let pool = pool.clone();
        tokio::spawn(async move {
            sqlx::query_scalar::<_, Option<i64>>("select flyball.prune_day($1)")
                .bind(day)
                .fetch_one(&pool)
                .await
        })
    };
    eventually("the prune waits for the old transaction", Duration::from_secs(20), || async {
        let waits = format!("select count(*) from pg_locks where not granted and relation = 'flyball.job_{day}'::regclass");
        (number(pool, &waits).await > 0).then_some(())
    })
    .await;
    sqlx::raw_sql("commit").execute(&mut old).await.unwrap();

    assert_eq!(
        pruning.await.unwrap().unwrap(),
        Some(23),
        "twenty that live, and the three that came late"
    );
    for id in ids {
        assert!(queue.get(id).await.unwrap().is_some());
    }
    let lane = number(pool, "select flyball.lane_of('late', '')").await;
    let kinds = vec!["http".to_owned()];
    let worker = queue
        .register(&NewWorker {
            name: "w".into(),
            host: "h".into(),
            pid: 1,
            ttl: SOON,
            kinds,
        })
        .await
        .unwrap();
    assert_eq!(
        queue
            .claim(worker, 7, &[LaneClaim::first(lane, 9)])
            .await
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test]
async fn a_claim_without_a_job_ends_at_once_where_people_see_it() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let kinds = vec!["http".to_owned()];
    let worker = queue
        .register(&NewWorker {
            name: "w".into(),
            host: "h".into(),
            pid: 1,
            ttl: SOON,
            kinds,
        })
        .await
        .unwrap();
    let job = NewJob {
        throttle: "t".into(),
        ..NewJob::new("http", json!({"url": "http://127.0.0.1/"}))
    };
    let unique = NewJob {
        unique_key: Some("one".into()),
        ..job.clone()
    };
    let ids: Vec<i64> = queue
        .enqueue(&[job, unique])
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();
    run(
        pool,
        &format!("delete from flyball.job where id = {}", ids[1]),
    )
    .await;
    let lane: i64 = number(pool, "select flyball.lane_of('t', '')").await;

    let batch = queue
        .claim_and_look(worker, 7, &[LaneClaim::first(lane, 5)])
        .await
        .unwrap();

    assert_eq!((batch.jobs.len(), batch.missing), (1, vec![ids[1]]));
    assert_eq!(
        number(pool, "select count(*) from flyball.lease").await,
        1,
        "the other one runs"
    );
    assert_eq!(
        number(pool, "select count(*) from flyball.ready").await,
        0,
        "it does not come back"
    );
    assert_eq!(
        number(pool, "select count(*) from flyball.unique_holder").await,
        0,
        "its unique key is free again"
    );
    let told = queue.failures(10).await.unwrap();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].job_id, ids[1]);
}

#[tokio::test]
async fn a_lease_whose_job_is_gone_is_told_of_when_its_worker_is_dead() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let kinds = vec!["http".to_owned()];
    let worker = queue
        .register(&NewWorker {
            name: "w".into(),
            host: "h".into(),
            pid: 1,
            ttl: SOON,
            kinds,
        })
        .await
        .unwrap();
    let job = NewJob {
        throttle: "t".into(),
        ..NewJob::new("http", json!({"url": "http://127.0.0.1/"}))
    };
    let unique = NewJob {
        unique_key: Some("one".into()),
        ..job.clone()
    };
    let ids: Vec<i64> = queue
        .enqueue(&[job, unique])
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();
    let lane: i64 = number(pool, "select flyball.lane_of('t', '')").await;
    assert_eq!(
        queue
            .claim(worker, 7, &[LaneClaim::first(lane, 2)])
            .await
            .unwrap()
            .len(),
        2
    );
    run(
        pool,
        &format!("delete from flyball.job where id = {}", ids[1]),
    )
    .await;
    run(
        pool,
        "update flyball.worker set heartbeat_at = now() - interval '1 hour'",
    )
    .await;

    let rescued = queue.rescue().await.unwrap();

    assert_eq!(
        (rescued.ready, rescued.dead, rescued.missing),
        (vec![ids[0]], vec![], vec![ids[1]])
    );
    assert_eq!(number(pool, "select count(*) from flyball.lease").await, 0);
    assert_eq!(
        number(pool, "select count(*) from flyball.unique_holder").await,
        0,
        "its unique key is free again"
    );
    let told = format!(
        "select count(*) from flyball.failure where job_id = {} and error like '%not in flyball.job any more'",
        ids[1]
    );
    assert_eq!(number(pool, &told).await, 1);
}

#[tokio::test]
async fn a_lease_whose_job_is_gone_does_not_stand_for_as_long_as_its_worker_lives() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let id = queue
        .enqueue(&[NewJob::new("http", json!({"url": "http://127.0.0.1/"}))])
        .await
        .unwrap()[0]
        .id;
    let leases = [(id, 2), (id + 1, 2), (id + 2, 0)];
    for (job_id, minutes) in leases {
        run(pool, &format!("insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost, claimed_at) values ({job_id}, 1, 1, 1, 1, 1, 1, now() - interval '{minutes} minutes')")).await;
    }

    queue.maintain(WEEK).await.unwrap();

    let left: Vec<i64> = sqlx::query_scalar("select job_id from flyball.lease order by 1")
        .fetch_all(pool)
        .await
        .unwrap();
    assert_eq!(
        left,
        [id, id + 2],
        "one whose job is there, and one of a moment ago"
    );
}

#[tokio::test]
async fn a_prune_that_meets_a_reader_lets_claims_pass() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let day = old_day(pool, 9, 1_000, 10).await;
    let kinds = vec!["http".to_owned()];
    let worker = queue
        .register(&NewWorker {
            name: "w".into(),
            host: "h".into(),
            pid: 1,
            ttl: SOON,
            kinds,
        })
        .await
        .unwrap();
    queue
        .enqueue(&vec![
            NewJob {
                throttle: "t".into(),
                ..NewJob::new("http", json!({"url": "http://127.0.0.1/"}))
            };
            50
        ])
        .await
        .unwrap();
    let lane: i64 = number(pool, "select flyball.lane_of('t', '')").await;
    let mut reader = PgConnection::connect(database.url()).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!(
        "begin; select count(*) from flyball.job_{day}"
    )))
    .execute(&mut reader)
    .await
    .unwrap();
    let pruning = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.maintain(WEEK).await })
    };

    // Claims read every day; while the prune waits for the reader, they go on, at worst behind its short patience.
    let mut claims = 0;
    while !pruning.is_finished() && claims < 40 {
        let one = [LaneClaim::first(lane, 1)];
        let claim = queue.claim(worker, 7, &one);
        let claimed = tokio::time::timeout(Duration::from_secs(5), claim)
            .await
            .expect("a claim waited for the prune")
            .unwrap();
        assert_eq!(claimed.len(), 1);
        claims += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(claims >= 10, "only {claims} claims while the prune tried");

    sqlx::raw_sql("commit").execute(&mut reader).await.unwrap();
    // It either got its turn now, or gave up for this round.
    let first = pruning.await.unwrap();
    if first.is_err() {
        queue.maintain(WEEK).await.unwrap();
    }
    assert_eq!(jobs_of(pool, day).await, 100);
}

#[tokio::test]
async fn one_process_prunes_at_a_time() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let day = old_day(pool, 9, 100, 10).await;
    let mut other = PgConnection::connect(database.url()).await.unwrap();
    sqlx::raw_sql("begin; select pg_advisory_xact_lock(hashtext('flyball.prune_day'))")
        .execute(&mut other)
        .await
        .unwrap();

    assert_eq!(queue.maintain(WEEK).await.unwrap().pruned_days, 0);
    assert_eq!(jobs_of(pool, day).await, 100);

    sqlx::raw_sql("commit").execute(&mut other).await.unwrap();
    assert_eq!(queue.maintain(WEEK).await.unwrap().pruned_days, 1);
}

#[tokio::test]
async fn small_tables_stay_small() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    run(pool, "
        insert into flyball.unique_holder (digest, job_id, expires_at) select int4send(i), i, now() - interval '1 s' from generate_series(1, 12000) i;
        insert into flyball.unique_holder (digest, job_id, expires_at) select int4send(-i), i, case when i > 5 then now() + interval '1 h' end from generate_series(1, 10) i;
        insert into flyball.cancel (job_id, requested_at) values (1, now() - interval '2 minutes'), (2, now() - interval '2 minutes'), (3, now());
        insert into flyball.worker (name, host, pid, ttl, stopped_at) select 'w', 'h', 1, '30 s', now() - interval '2 days' from generate_series(1, 7000);
        insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost) values (2, 1, 7, 1, 1, 1, 1);
        insert into flyball.failure (job_id, attempt, outcome) select i, 1, 'failed' from generate_series(1, 23000) i;
        insert into flyball.depth (throttle, ready, counted_at) values ('gone', 0, now() - interval '2 days'), ('full', 3, now() - interval '2 days'), ('new', 0, now());
    ").await;

    queue.maintain(WEEK).await.unwrap();

    assert_eq!(
        number(pool, "select count(*) from flyball.unique_holder").await,
        10
    );
    let left: Vec<i64> = sqlx::query_scalar("select job_id from flyball.cancel order by 1")
        .fetch_all(pool)
        .await
        .unwrap();
    assert_eq!(
        left,
        [2, 3],
        "one that runs, and one that was asked for just now"
    );
    assert_eq!(
        number(pool, "select count(*) from flyball.worker").await,
        1,
        "a worker that a lease names stays"
    );
    assert!(number(pool, "select count(*) from flyball.failure").await <= 10_001);
    let left: Vec<String> = sqlx::query_scalar("select throttle from flyball.depth order by 1")
        .fetch_all(pool)
        .await
        .unwrap();
    assert_eq!(left, ["full", "new"]);
}

#[tokio::test]
async fn dead_letters_are_kept_for_ever_unless_somebody_says_how_long() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let ids: Vec<i64> = queue
        .enqueue(&vec![
            NewJob::new(
                "http",
                json!({"url": "http://127.0.0.1/"})
            );
            2
        ])
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();
    run(pool, "delete from flyball.ready").await;
    run(
        pool,
        &format!(
            "insert into flyball.dead (job_id, lane_id, priority, attempt, cost, died_at) values
        ({}, 1, 1, 3, 1, now() - interval '40 days'), ({}, 1, 1, 3, 1, now() - interval '20 days')",
            ids[0], ids[1]
        ),
    )
    .await;

    queue.maintain(WEEK).await.unwrap();
    assert_eq!(number(pool, "select count(*) from flyball.dead").await, 2);

    queue
        .maintain(Retention {
            dead_days: 30,
            ..WEEK
        })
        .await
        .unwrap();
    let states = [
        queue.get(ids[0]).await.unwrap().unwrap(),
        queue.get(ids[1]).await.unwrap().unwrap(),
    ];
    assert_eq!(
        states.map(|job| job.summary.state),
        [State::Cancelled, State::Dead]
    );
}

#[tokio::test]
async fn a_lane_is_forgotten_when_no_walk_has_seen_it_for_the_retention() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let later = Some("2030-01-01T00:00:00Z".parse().unwrap());
    let job = |key: &str| NewJob {
        throttle: "t".into(),
        key: key.into(),
        ..NewJob::new("http", json!({"url": "http://127.0.0.1/"}))
    };
    queue
        .enqueue(&[
            job("ready"),
            NewJob {
                run_at: later,
                ..job("scheduled")
            },
        ])
        .await
        .unwrap();
    queue.count_now().await.unwrap();
    for key in ["unseen", "weighed"] {
        run(pool, &format!("insert into flyball.lane (lane_id, throttle, key, weight) values (flyball.lane_of('t', '{key}'), 't', '{key}', {})", if key == "unseen" { 1 } else { 2 })).await;
    }
    let keys = async || -> Vec<String> {
        let keys = sqlx::query_scalar("select key from flyball.lane order by key");
        keys.fetch_all(pool).await.unwrap()
    };
    queue.maintain(WEEK).await.unwrap();
    assert_eq!(keys().await.len(), 4, "all of them are young");
    run(pool, "update flyball.lane set first_seen = now() - interval '30 days', depth_at = now() - interval '30 days'").await;
    run(
        pool,
        "update flyball.sweep set walked_at = now() - interval '40 days'",
    )
    .await;
    queue.maintain(WEEK).await.unwrap();
    assert_eq!(
        keys().await.len(),
        4,
        "no walk came by for so long that nobody can know"
    );

    queue.count_now().await.unwrap();
    queue.maintain(WEEK).await.unwrap();

    assert_eq!(keys().await, ["ready", "scheduled", "weighed"]);
}

/// Jobs of one round of coming and going.
const CHURNED: i64 = 10_000;

/// Bytes that a job leaves in one hot table and its indexes at most, while a reader keeps anything from being cleared away.
const LEFT_BY_A_JOB: i64 = 300;

/// Ten thousand jobs come and go.
async fn churn(queue: &Queue, pool: &PgPool, worker: i32) {
    run(
        pool,
        "
        with n as materialized (select i, flyball.next_id() as id from generate_series(1, 10000) i)
        , j as (insert into flyball.job (id, lane_id, priority, max_attempts, cost, kind, throttle, key, args)
            select id, flyball.lane_of('t', (i % 5)::text), 1, 10, 1, 'http', 't', (i % 5)::text, '{}' from n)
        insert into flyball.ready (lane_id, priority, job_id, cost) select flyball.lane_of('t', (i % 5)::text), 1, id, 1 from n",
    )
    .await;
    let lanes: Vec<i64> =
        sqlx::query_scalar("select flyball.lane_of('t', i::text) from generate_series(0, 4) i")
            .fetch_all(pool)
            .await
            .unwrap();
    let claims: Vec<LaneClaim> = lanes
        .into_iter()
        .map(|lane_id| LaneClaim::first(lane_id, 400))
        .collect();
    loop {
        let claimed = queue.claim(worker, 1, &claims).await.unwrap();
        if claimed.is_empty() {
            return;
        }
        // Some of them come back later, so that the table of scheduled jobs turns over as well.
        let ends: Vec<Finish> = claimed
            .iter()
            .map(|one| Finish {
                job_id: one.job.id,
                fence: 1,
                ending: match one.job.id % 10 {
                    0 if one.job.attempt == 1 => Ending::Failed {
                        delay: Duration::ZERO,
                        error: "x".into(),
                    },
                    _ => Ending::Completed,
                },
            })
            .collect();
        queue.finish(&ends).await.unwrap();
        while queue.promote().await.unwrap().more {}
    }
}

#[tokio::test]
async fn hot_tables_do_not_grow_from_round_to_round_after_a_long_reader_has_gone() {
    // On a server of its own: an empty page of an index is free for use only when nobody of the whole server, in any database, has a
    // transaction that is older.
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = |url: &str| Some(format!("{url}://127.0.0.1:9"));
    let options = SpawnOptions {
        program: Some(PROGRAM.clone()),
        ephemeral: true,
        redis_url: elsewhere("redis"),
        prometheus_url: elsewhere("http"),
        ..SpawnOptions::default()
    };
    let path = dir.path().to_owned();
    let servers = tokio::task::spawn_blocking(move || spawn(&path, &options).unwrap())
        .await
        .unwrap();
    let url = &servers.urls.database_url;
    let queue = Queue::connect(url, 6, SOON).await.unwrap();
    queue.migrate().await.unwrap();
    let pool = &PgPool::connect(url).await.unwrap();
    let kinds = vec!["http".to_owned()];
    let worker = queue
        .register(&NewWorker {
            name: "w".into(),
            host: "h".into(),
            pid: 1,
            ttl: Duration::from_secs(600),
            kinds,
        })
        .await
        .unwrap();
    let tables = ["ready", "lease", "scheduled"];
    let measure = async || {
        let mut sizes = Vec::new();
        for table in tables {
            sizes.push(
                number(
                    pool,
                    &format!("select pg_total_relation_size('flyball.{table}')"),
                )
                .await,
            );
        }
        sizes
    };
    let (mut sizes, mut before) = (Vec::new(), measure().await);
    for _ in 0..5 {
        // Nothing that dies while this reads can be cleared away.
        let mut reader = PgConnection::connect(url).await.unwrap();
        sqlx::raw_sql("begin isolation level repeatable read; select count(*) from flyball.ready")
            .execute(&mut reader)
            .await
            .unwrap();
        churn(&queue, pool, worker).await;
        sqlx::raw_sql("vacuum flyball.ready, flyball.lease, flyball.scheduled")
            .execute(pool)
            .await
            .unwrap();
        // Meanwhile the tables grow, by what the jobs of this time leave behind and no more.
        for ((table, held), before) in tables.iter().zip(measure().await).zip(&before) {
            assert!(
                held - before <= CHURNED * LEFT_BY_A_JOB,
                "flyball.{table} grew from {before} to {held} bytes for {CHURNED} jobs"
            );
        }
        sqlx::raw_sql("commit").execute(&mut reader).await.unwrap();
        reader.close().await.unwrap();
        // An autovacuum that analyses something has a snapshot as well; while it lasts, what died stays.
        let dead = "select sum(pg_stat_get_dead_tuples(oid))::bigint from pg_class where relnamespace = 'flyball'::regnamespace and relname in ('ready', 'lease', 'scheduled')";
        eventually("a vacuum that leaves nothing dead", SOON, async || {
            sqlx::raw_sql("vacuum flyball.ready, flyball.lease, flyball.scheduled")
                .execute(pool)
                .await
                .unwrap();
            (number(pool, dead).await == 0).then_some(())
        })
        .await;
        before = measure().await;
        sizes.push(before.clone());
    }

    for (place, table) in tables.iter().enumerate() {
        // The first rounds find the space (a page of an index is free for use two vacuums after it became empty), the others live in it.
        // A table that kept what died would grow by a first round's worth in each.
        let (first, third, fifth) = (sizes[0][place], sizes[2][place], sizes[4][place]);
        assert!(
            fifth <= third + first / 2,
            "flyball.{table} grows: {sizes:?}"
        );
    }
    let settings: Vec<String> = sqlx::query_scalar(
        "select relname from pg_class where relnamespace = 'flyball'::regnamespace and reloptions @> '{autovacuum_vacuum_scale_factor=0}' order by 1",
    )
    .fetch_all(pool)
    .await
    .unwrap();
    assert!(
        tables
            .iter()
            .all(|table| settings.iter().any(|set| set == table)),
        "{settings:?}"
    );
}
