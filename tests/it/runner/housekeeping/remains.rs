//! Leftovers: leases without a job, dead letters, idle lanes, dead rows.

use std::time::Duration;

use flyball::admission::Batches;
use flyball::jobs::postgres::{Ending, Finish, LaneClaim, Retention};
use flyball::jobs::{Attribution, NewJob, Queue, State};
use flyball::stack::{SpawnOptions, spawn};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};

use super::fixture::{SOON, WEEK, number, queue, run, worker};
use crate::support::{PROGRAM, eventually};

#[tokio::test]
async fn a_claim_without_a_job_ends_at_once_where_people_see_it() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let worker = worker(&queue, SOON).await;
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
    let answer = queue.failures(None, 10).await.unwrap();
    assert_eq!(answer.len(), 1);
    assert_eq!(answer[0].job_id, ids[1]);
}

#[tokio::test]
async fn a_lease_whose_job_is_gone_is_reported_when_its_worker_is_dead() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let worker = worker(&queue, SOON).await;
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
    let answer = format!(
        "select count(*) from flyball.failure where job_id = {} and error like '%not in flyball.job any more'",
        ids[1]
    );
    assert_eq!(number(pool, &answer).await, 1);
}

#[tokio::test]
async fn a_remote_worker_that_has_left_is_not_dead_and_one_whose_lease_expired_is() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let worker = worker(&queue, SOON).await;
    let job = NewJob {
        throttle: "t".into(),
        ..NewJob::new("http", json!({"url": "http://127.0.0.1/"}))
    };
    let id = queue.enqueue(&[job]).await.unwrap()[0].id;
    let lane: i64 = number(pool, "select flyball.lane_of('t', '')").await;
    let claims = [LaneClaim::first(lane, 1)];
    assert_eq!(queue.claim(worker, 7, &claims).await.unwrap().len(), 1);
    let remote = "insert into flyball.worker (name, host, pid, ttl, role, serves)
        values ('pdf-1', '', 0, interval '20 seconds', 'remote', false) returning id::bigint";
    let remote = number(pool, remote).await;
    let expires = format!(
        "update flyball.lease
         set broker_id = worker_id, worker_id = {remote}, lease_s = 2, expires_at = now() - interval '1 second'"
    );
    run(pool, &expires).await;

    let expired = queue.rescue_expired().await.unwrap();
    assert_eq!((expired.workers, expired.ready), (1, vec![id]));

    let silent = "update flyball.worker set started_at = now() - interval '2 hours', heartbeat_at = now() - interval '1 hour'";
    run(pool, &format!("{silent} where id = {remote}")).await;
    assert_eq!(queue.rescue().await.unwrap().workers, 0, "it has left");
    let gone = format!("select count(*) from flyball.worker where id = {remote} and rescued");
    assert_eq!(number(pool, &gone).await, 1);
    // The brokers of a process die with it.
    let brokers = format!(
        "insert into flyball.worker (name, host, pid, ttl, role, serves)
         select 'broker', host, pid, ttl, 'broker', false from flyball.worker, generate_series(1, 2) where id = {worker}"
    );
    run(pool, &brokers).await;
    run(pool, silent).await;
    assert_eq!(queue.rescue().await.unwrap().workers, 1, "the other died");
    // A broker that a later round finds, and a process that started again with the same number.
    for (from_s, to_s, deaths) in [(-60, 5, 0), (10, 12, 1)] {
        let row = format!(
            "insert into flyball.worker (name, host, pid, ttl, role, serves, started_at, heartbeat_at)
             select 'later', host, pid, ttl, 'broker', false,
                 heartbeat_at + interval '{from_s} seconds', heartbeat_at + interval '{to_s} seconds'
             from flyball.worker where id = {worker}"
        );
        run(pool, &row).await;
        assert_eq!(queue.rescue().await.unwrap().workers, deaths, "{from_s}");
    }
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
async fn no_tenant_pushes_others_out_of_the_audit_log() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    run(
        pool,
        "insert into flyball.audit (actor, action, subject) select 'ann', 'pause', i::text from generate_series(1, 5) i;
         insert into flyball.audit (actor, action, subject, tenant) values ('joe', 'job.cancel', '1', 'bank');
         insert into flyball.audit (actor, action, subject, tenant) select 'eve', 'job.cancel', i::text, 'shop' from generate_series(1, 100100) i",
    )
    .await;

    queue.maintain(WEEK).await.unwrap();

    let left: Vec<(Option<String>, i64)> =
        sqlx::query_as("select tenant, count(*) from flyball.audit group by 1 order by 1")
            .fetch_all(pool)
            .await
            .unwrap();
    let of = |tenant: &str| Some(tenant.to_owned());
    assert_eq!(left, [(of("bank"), 1), (of("shop"), 10_000), (None, 5)]);
    let newest =
        "select count(*) from flyball.audit where tenant = 'shop' and subject::int > 90100";
    assert_eq!(number(pool, newest).await, 10_000);
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
async fn a_dead_letter_whose_day_is_gone_expires_without_history() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    run(
        pool,
        "insert into flyball.dead (job_id, lane_id, priority, attempt, cost, died_at)
         values ((flyball.day_of(now()) - 90) << 38, 1, 1, 3, 1, now() - interval '40 days')",
    )
    .await;

    let done = queue
        .maintain(Retention {
            dead_days: 30,
            ..WEEK
        })
        .await
        .unwrap();

    assert_eq!((done.forgotten, done.failed), (1, vec![]));
    assert_eq!(number(pool, "select count(*) from flyball.dead").await, 0);
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

/// The number of jobs per round.
const CHURNED: i64 = 10_000;

/// The most bytes that a job leaves in one hot table and its indexes while a reader prevents
/// cleanup.
const LEFT_BY_A_JOB: i64 = 300;

/// Enqueues and completes ten thousand jobs.
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
        // Some are snoozed, so that the table of scheduled jobs turns over as well.
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
    // A private server, because an empty index page is reusable only when no database of the server
    // has an older transaction.
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
    let worker = worker(&queue, Duration::from_secs(600)).await;
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
        // While this transaction reads, dead rows cannot be removed.
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
        // Meanwhile the tables grow by the leftovers of these jobs and no more.
        for ((table, held), before) in tables.iter().zip(measure().await).zip(&before) {
            assert!(
                held - before <= CHURNED * LEFT_BY_A_JOB,
                "flyball.{table} grew from {before} to {held} bytes for {CHURNED} jobs"
            );
        }
        sqlx::raw_sql("commit").execute(&mut reader).await.unwrap();
        reader.close().await.unwrap();
        // An autovacuum that analyses also has a snapshot, which keeps dead rows.
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
        // The first rounds allocate the space (an empty index page is reusable after two vacuums),
        // later ones reuse it. A table that kept its dead rows would grow by a first round's worth
        // each time.
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

#[tokio::test]
async fn a_batch_goes_with_the_last_record_of_its_messages_and_counts_them_until_then() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let accept = "select flyball.accept_batch('acme', 'web', null, 'x', false, 0, 'mail', 2, null,
        (select jsonb_agg(jsonb_build_object('args', jsonb_build_object('channel', 'email', 'to', n || '@b.c', 'body', 'x'),
            'key', '', 'unique_key', null)) from generate_series(1, 3) n), false)";
    for _ in 0..4 {
        run(pool, accept).await;
    }
    // Of the first no record is left, of the second a job, of the third a delivery; the last is young.
    run(
        pool,
        "update flyball.batch set created_at = now() - interval '8 days', updated_at = now() - interval '8 days' where id < 4;
         insert into flyball.delivery (job_id, channel, pool, tenant, state, recipient, category)
             select max(job_id), 'email', 'mail', 'acme', 'delivered', '', '' from flyball.batch_message where batch_id = 3;
         delete from flyball.ready;
         delete from flyball.job where id in (select job_id from flyball.batch_message where batch_id <> 2);
         delete from flyball.job where id in (select min(job_id) from flyball.batch_message where batch_id = 2)",
    )
    .await;

    queue.maintain(WEEK).await.unwrap();

    let left = async |sql: &str| -> Vec<i64> {
        let ids = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()));
        ids.fetch_all(pool).await.unwrap()
    };
    let batches = "select id from flyball.batch order by id";
    let of_messages = "select distinct batch_id from flyball.batch_message order by 1";
    assert_eq!(left(batches).await, [2, 3, 4]);
    assert_eq!(left(of_messages).await, [2, 3, 4]);
    let shown = Batches::new(queue.clone()).show(Some("acme"), 3).await;
    let shown = shown.unwrap().unwrap();
    assert_eq!(
        (shown.state.as_str(), json!(shown.counts)),
        ("done", json!({"delivered": 1, "forgotten": 2}))
    );

    run(
        pool,
        "delete from flyball.job where id in (select job_id from flyball.batch_message where batch_id = 2)",
    )
    .await;
    queue.maintain(WEEK).await.unwrap();
    assert_eq!(left(batches).await, [3, 4]);
    let cancelled = Batches::new(queue).cancel(3, &Attribution::default()).await;
    let cancelled = cancelled.unwrap().unwrap();
    assert_eq!(
        (cancelled.sent, json!(cancelled.ended)),
        (1, json!({"forgotten": 2}))
    );
}
