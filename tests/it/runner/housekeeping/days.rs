//! Old days are emptied; their unfinished jobs stay.

use std::time::Duration;

use flyball::jobs::postgres::LaneClaim;
use flyball::jobs::{NewJob, Queue, State};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::fixture::{SOON, WEEK, jobs_of, number, old_day, queue, run, worker};
use crate::support::{Database, eventually, unique};

async fn run_on(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
        .unwrap_or_else(|error| panic!("{error}: {sql}"));
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

    // A day that could not be dropped is not emptied again in every round.
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
async fn old_days_are_found_where_the_planner_looks_at_all_relations_first() {
    let (database, _) = queue().await;
    let pool = database.pool();
    let day = old_day(pool, 20, 10, 100).await;
    // As it does by itself from some 45 days on.
    let plan = "do $$ begin
        execute format('alter database %I set enable_nestloop = off', current_database());
    end $$";
    run(pool, plan).await;
    let queue = Queue::connect(database.url(), 2, SOON).await.unwrap();

    let overdue = queue.overdue_housekeeping(7).await.unwrap();
    let done = queue.maintain(WEEK).await.unwrap();

    assert_eq!((overdue.unpruned_days, overdue.missing_days), (1, 0));
    assert_eq!(done.pruned_days, 1, "{done:?}");
    assert_eq!(jobs_of(pool, day).await, 0);
}

#[tokio::test]
async fn a_day_with_many_living_jobs_is_thinned_without_locking_it() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    // Half of the jobs live, more than one prune copies under its lock.
    let day = old_day(pool, 9, 60_000, 2).await;
    // The day is being read all the while; a lock on the whole table would have to wait.
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
    // Every job lives, so a walk takes many steps.
    for ago in [12, 11] {
        old_day(pool, ago, 30_000, 1).await;
    }
    let later = old_day(pool, 10, 100, 10).await;

    let round = tokio::spawn(async move { queue.maintain(WEEK).await });

    // The second day makes progress while the first is in progress.
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
    run(pool, &format!("insert into flyball.day (day, remaining, next) values ({day}, -1, ({day}::bigint << 38) + 6000)")).await;

    queue.maintain(WEEK).await.unwrap();

    assert_eq!(
        jobs_of(pool, day).await,
        6_000,
        "what lies before that place was looked at by the round before"
    );
    assert_eq!(
        number(
            pool,
            "select count(*) from flyball.day where next is null and remaining = -1"
        )
        .await,
        1,
        "it is through"
    );
    // It is retried a day later, from the beginning.
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
    // Two jobs of each day ran recently; in the second day too many jobs live, so it must be
    // thinned first.
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
    // It has copied the living jobs, and waits for the reader.
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

/// Empties a day of twenty living jobs while a transaction of that day enqueues two ready jobs and
/// a later one. Returns the ids of the three and the number of jobs kept in the day.
async fn late_jobs_of_an_old_day(database: &Database, queue: &Queue) -> (Vec<i64>, Option<i64>) {
    let pool = database.pool();
    let day = old_day(pool, 9, 200, 10).await;
    run(pool, "select setval('flyball.job_seq', 1000)").await;
    // A transaction of that day: the real function, with the clock set back nine days for this
    // connection alone.
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

    let kept = pruning.await.unwrap().unwrap();
    for id in &ids {
        assert!(queue.get(*id).await.unwrap().is_some());
    }
    (ids, kept)
}

#[tokio::test]
async fn what_an_old_transaction_enqueued_and_commits_while_its_day_is_emptied_is_kept() {
    let (database, queue) = queue().await;

    let (ids, kept) = late_jobs_of_an_old_day(&database, &queue).await;

    assert_eq!(ids.len(), 3);
    assert_eq!(
        kept,
        Some(23),
        "twenty that live, and the three that came late"
    );
}

#[tokio::test]
async fn what_came_late_to_an_old_day_is_claimed_like_any_other_job() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let (mut ids, _) = late_jobs_of_an_old_day(&database, &queue).await;
    let lane = number(pool, "select flyball.lane_of('late', '')").await;
    let worker = worker(&queue, SOON).await;
    let claimed = queue
        .claim(worker, 7, &[LaneClaim::first(lane, 9)])
        .await
        .unwrap();

    let mut claimed: Vec<i64> = claimed.iter().map(|one| one.job.id).collect();
    claimed.sort_unstable();
    ids.sort_unstable();
    assert_eq!(claimed, ids[..2], "the two that are ready");
}

#[tokio::test]
async fn a_prune_that_meets_a_reader_lets_claims_pass() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let day = old_day(pool, 9, 1_000, 10).await;
    let worker = worker(&queue, SOON).await;
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

    // Claims read every day. While the prune waits for the reader they continue, at worst delayed
    // by its short lock timeout.
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
        // Real time: the claims are spread over the attempts of the prune.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(claims >= 10, "only {claims} claims while the prune tried");

    sqlx::raw_sql("commit").execute(&mut reader).await.unwrap();
    // It either got the lock now, or gave up for this round.
    let first = pruning.await.unwrap().unwrap();
    if !first.failed.is_empty() {
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
    sqlx::raw_sql("begin; select from flyball.mutex where name = 'prune_day' for update")
        .execute(&mut other)
        .await
        .unwrap();

    let done = queue.maintain(WEEK).await.unwrap();
    assert_eq!((done.pruned_days, done.unpruned_days), (0, 1));
    assert_eq!(jobs_of(pool, day).await, 100);

    sqlx::raw_sql("commit").execute(&mut other).await.unwrap();
    assert_eq!(queue.maintain(WEEK).await.unwrap().pruned_days, 1);
}

#[tokio::test]
async fn a_role_that_may_only_connect_can_hold_nothing_up() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let day = old_day(pool, 9, 100, 10).await;
    // A day of the coming week has no partition yet.
    let ahead = number(pool, "select flyball.day_of(now())").await + 7;
    run(
        pool,
        &format!("drop table flyball.job_{ahead}, flyball.attempt_{ahead}"),
    )
    .await;
    let role = format!("stranger_{}", &unique()[..8]);
    let superuser = database.superuser();
    run(
        &superuser,
        &format!("create role {role}; grant usage on schema flyball to {role}"),
    )
    .await;
    let mut stranger = PgConnection::connect(&database.superuser_url())
        .await
        .unwrap();
    run_on(&mut stranger, &format!("set role {role}")).await;
    run_on(
        &mut stranger,
        "select pg_advisory_lock(hashtext('flyball.' || name))
         from unnest(array['prune_day', 'ensure_day', 'promote']) as name",
    )
    .await;

    let done = queue.maintain(WEEK).await.unwrap();

    assert_eq!((done.pruned_days, done.failed), (1, vec![]));
    assert_eq!(jobs_of(pool, day).await, 10);
    let is_there = format!("select count(*) from pg_class where relname = 'job_{ahead}'");
    assert_eq!(number(pool, &is_there).await, 1);
    for lock in ["for update", "for share"] {
        let refused = sqlx::raw_sql(AssertSqlSafe(format!("select from flyball.mutex {lock}")))
            .execute(&mut stranger)
            .await;
        let error = refused.unwrap_err();
        let code = error.as_database_error().and_then(|error| error.code());
        assert_eq!(code.as_deref(), Some("42501"), "{lock}");
    }
}

#[tokio::test]
async fn a_step_that_waits_for_a_lock_fails_and_stops_no_other() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let day = old_day(pool, 9, 100, 10).await;
    run(
        pool,
        "insert into flyball.unique_holder (digest, job_id, expires_at) values ('a', 1, now() - interval '1 day');
         insert into flyball.result (job_id, result, kept_until) values (1, '1', now() - interval '1 day')",
    )
    .await;
    let mut producer = PgConnection::connect(database.url()).await.unwrap();
    run_on(
        &mut producer,
        "begin; select from flyball.unique_holder for update; select from flyball.result for update",
    )
    .await;

    let done = queue.maintain(WEEK).await.unwrap();

    let failed: Vec<&str> = done.failed.iter().map(|one| one.step).collect();
    // A key is left to the producer that has it, without a wait.
    assert_eq!(failed, ["forget results"]);
    assert!(
        done.failed[0].error.contains("lock timeout"),
        "{:?}",
        done.failed
    );
    assert_eq!((done.pruned_days, jobs_of(pool, day).await), (1, 10));
    let left = "select (select count(*) from flyball.result) + 10 * (select count(*) from flyball.unique_holder)";
    assert_eq!(number(pool, left).await, 11);

    run_on(&mut producer, "commit").await;
    assert!(queue.maintain(WEEK).await.unwrap().failed.is_empty());
    assert_eq!(number(pool, left).await, 0);
}
