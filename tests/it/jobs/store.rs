//! The store of jobs: statements, migrations, and its own functions.

use std::sync::Arc;
use std::time::Duration;

use flyball::api::why_job_waits;
use flyball::jobs::postgres::{Ending, LaneClaim, READ_ONLY, Retention, Schema};
use flyball::jobs::{Attribution, Error, JobFilter, Kinds, NewJob, Queue, QueueStatus, State};
use flyball::throttle::MemoryStore;
use sqlx::migrate::MigrateError;
use sqlx::{AssertSqlSafe, Executor, SqlSafeStr};

use super::fixture::{FENCE, claim_all, end, enqueue_one, http, queue, state, worker};
use crate::support::{database, eventually};

const SOON: Duration = Duration::from_secs(60);

/// A schema in which no migration was applied.
const EMPTY_SCHEMA: &str = "drop schema flyball cascade;
    create schema flyball;
    create table flyball.migration (version bigint primary key, description text not null,
        installed_on timestamptz not null default now(), success boolean not null, checksum bytea not null,
        execution_time bigint not null)";

#[tokio::test]
async fn every_statement_can_be_prepared_on_the_migrated_schema() {
    let (_database, queue) = queue().await;
    let mut connection = queue.pool.acquire().await.unwrap();

    for (name, sql) in flyball::jobs::postgres::STATEMENTS
        .iter()
        .chain(flyball::service::STATEMENTS)
        .chain(flyball::admission::STATEMENTS)
        .chain(flyball::admission::BATCH_STATEMENTS)
        .chain(flyball::admission::TENANT_STATEMENTS)
        .chain(flyball::recipient::postgres::PROFILE_STATEMENTS)
        .chain(flyball::recipient::postgres::GATE_STATEMENTS)
        .chain(flyball::gateway::postgres::GATEWAY_STATEMENTS)
        .chain(flyball::inbox::INBOX_STATEMENTS)
        .chain(&flyball::postgres::STATEMENTS)
    {
        let prepared = connection.prepare(AssertSqlSafe(*sql).into_sql_str()).await;
        assert!(prepared.is_ok(), "{name}: {:?}", prepared.err());
    }
}

#[tokio::test]
async fn migrating_twice_and_beside_open_work_changes_nothing() {
    let (_database, queue) = queue().await;
    let id = enqueue_one(&queue, http()).await;

    assert_eq!(queue.migrate().await.unwrap(), 0);
    let (one, two) = tokio::join!(queue.migrate(), queue.migrate());

    assert_eq!((one.unwrap(), two.unwrap()), (0, 0));
    assert_eq!(state(&queue, id).await, State::Ready);
}

#[tokio::test]
async fn a_start_with_nothing_to_migrate_waits_for_no_lock() {
    let (_database, queue) = queue().await;
    let mut stranger = queue.pool.acquire().await.unwrap();
    sqlx::raw_sql("select pg_advisory_lock(hashtext('flyball.migration'))")
        .execute(&mut *stranger)
        .await
        .unwrap();

    let migrating = tokio::time::timeout(Duration::from_secs(20), queue.migrate());

    assert_eq!(migrating.await.expect("it waits").unwrap(), 0);
}

#[tokio::test]
async fn a_database_that_is_read_only_is_named_as_that() {
    let (database, queue) = queue().await;
    assert_eq!(queue.status().await.unwrap(), QueueStatus::default());
    queue.pause_all(&Attribution::default()).await.unwrap();
    let job = NewJob {
        run_at: Some("2030-01-01T00:00:00Z".parse().unwrap()),
        ..http()
    };
    let overdue = enqueue_one(&queue, job).await;
    sqlx::raw_sql("update flyball.scheduled set run_at = now() - interval '1 minute'")
        .execute(&database.superuser())
        .await
        .unwrap();
    let url = url::Url::parse(database.url()).unwrap();
    let name = url.path().trim_start_matches('/');
    sqlx::raw_sql(AssertSqlSafe(format!(
        "alter database {name} set default_transaction_read_only = on"
    )))
    .execute(&database.superuser())
    .await
    .unwrap();

    let late = Queue::connect(database.url(), 2, Duration::from_secs(20))
        .await
        .unwrap();

    let expected = QueueStatus {
        is_paused: true,
        is_read_only: true,
    };
    assert_eq!(late.status().await.unwrap(), expected);
    let overdue = late.get(overdue).await.unwrap().unwrap();
    let throttles = MemoryStore::new(Arc::new(|| 0));
    let why = why_job_waits((&late, &throttles, &Kinds::default()), &overdue, true).await;
    let why = why.expect("a reason").reason;
    assert!(why.starts_with(READ_ONLY), "{why}");
    let refused = late.enqueue(&[http()]).await;
    assert!(
        matches!(&refused, Err(Error::Lost(reason)) if reason.starts_with(READ_ONLY)),
        "{refused:?}"
    );
}

#[tokio::test]
async fn depth_is_reported_by_throttle_and_state() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let later = Some("2030-01-01T00:00:00Z".parse().unwrap());
    let on = |throttle: &str, key: &str| NewJob {
        throttle: throttle.into(),
        key: key.into(),
        ..http()
    };
    let ids = queue
        .enqueue(&[
            on("a", "1"),
            on("a", "2"),
            on("a", "2"),
            NewJob {
                run_at: later,
                ..on("b", "")
            },
        ])
        .await
        .unwrap();
    let lanes = queue.ready_lanes().await.unwrap();
    let lane = lanes.iter().find(|lane| lane.key == "1").unwrap().lane_id;
    queue
        .claim(worker, FENCE, &[LaneClaim::first(lane, 1)])
        .await
        .unwrap();

    let depths = queue.count_now().await.unwrap().throttles;

    let answer: Vec<_> = depths
        .iter()
        .map(|d| (d.throttle.as_str(), d.ready, d.scheduled, d.running, d.dead))
        .collect();
    assert_eq!(answer, [("a", 2, 0, 1, 0), ("b", 0, 1, 0, 0)]);
    assert_eq!(ids.len(), 4);
}

#[tokio::test]
async fn an_old_day_is_emptied_and_what_still_lives_stays() {
    let (database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let ids: Vec<i64> = queue
        .enqueue(&vec![http(); 3])
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();
    claim_all(&queue, worker, FENCE, 2).await;
    queue
        .finish(&[
            end(ids[0], FENCE, Ending::Completed),
            end(ids[1], FENCE, Ending::Dead { error: "x".into() }),
        ])
        .await
        .unwrap();

    let kept: i64 = sqlx::query_scalar("select flyball.prune_day(flyball.day_of(now()))")
        .fetch_one(database.pool())
        .await
        .unwrap();

    assert_eq!(kept, 2);
    assert!(queue.get(ids[0]).await.unwrap().is_none());
    assert_eq!(
        (state(&queue, ids[1]).await, state(&queue, ids[2]).await),
        (State::Dead, State::Ready)
    );
    assert_eq!(queue.get(ids[1]).await.unwrap().unwrap().attempts.len(), 1);
    assert_eq!(
        queue
            .maintain(Retention::days(7))
            .await
            .unwrap()
            .pruned_days,
        0
    );
}

#[tokio::test]
async fn days_are_made_ahead_and_even_a_missing_today_is_made_by_enqueue() {
    let (database, queue) = queue().await;
    let days: i64 = sqlx::query_scalar(
        "select count(*) from pg_inherits where inhparent = 'flyball.job'::regclass",
    )
    .fetch_one(database.pool())
    .await
    .unwrap();
    assert!(days >= 8, "{days}");
    sqlx::raw_sql(
        "do $$ begin execute format('drop table flyball.job_%1$s, flyball.attempt_%1$s', flyball.day_of(now())); end $$",
    )
    .execute(database.pool())
    .await
    .unwrap();

    let id = enqueue_one(&queue, http()).await;

    assert_eq!(state(&queue, id).await, State::Ready);
}

#[tokio::test]
async fn producers_ring_only_while_a_dispatcher_sleeps() {
    let (database, queue) = queue().await;
    let mut listener = sqlx::postgres::PgListener::connect(database.url())
        .await
        .unwrap();
    listener.listen("flyball").await.unwrap();
    queue.wake_up().await.unwrap();
    enqueue_one(&queue, http()).await;
    queue.fall_asleep().await.unwrap();
    enqueue_one(&queue, http()).await;
    sqlx::query("select pg_notify('flyball', 'marker')")
        .execute(&queue.pool)
        .await
        .unwrap();

    let rung = listener.recv().await.unwrap();

    assert_ne!(rung.payload(), "marker");
    let next = listener.recv().await.unwrap();
    assert_eq!(
        next.payload(),
        "marker",
        "only the enqueue during the sleep rang"
    );
}

#[tokio::test]
async fn a_connection_is_used_again_unless_its_transaction_was_dropped() {
    let database = database().await;
    let queue = Queue::connect(database.url(), 1, Duration::from_secs(20))
        .await
        .unwrap();
    let backend = async || -> i32 {
        sqlx::query_scalar("select pg_backend_pid()")
            .fetch_one(&queue.pool)
            .await
            .unwrap()
    };
    let first = backend().await;
    assert_eq!(backend().await, first, "a healthy connection is kept");

    let transaction = queue.pool.begin().await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(backend().await, first, "its transaction has ended");

    drop(queue.pool.begin().await.unwrap());

    assert_ne!(backend().await, first, "its transaction may be open");
}

#[tokio::test]
async fn leadership_passes_on_with_a_later_term() {
    let (_database, queue) = queue().await;
    let lease = |holder: &str, ttl: u64| {
        flyball::service::Leader::new(
            queue.pool.clone(),
            "governor",
            holder,
            Duration::from_millis(ttl),
        )
    };
    let (one, two) = (lease("one", 60_000), lease("two", 60_000));

    assert_eq!(one.hold().await.unwrap(), Some(1));
    assert_eq!(two.hold().await.unwrap(), None);
    assert_eq!(
        one.hold().await.unwrap(),
        Some(1),
        "renewing keeps the term"
    );
    one.release().await.unwrap();
    assert_eq!(two.hold().await.unwrap(), Some(2));
    assert_eq!(one.hold().await.unwrap(), None);
}

#[tokio::test]
async fn an_endless_wait_ends_where_a_schedule_would() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let ids: Vec<i64> = queue
        .enqueue(&vec![http(); 2])
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();
    claim_all(&queue, worker, FENCE, 9).await;
    let failed = Ending::Failed {
        delay: Duration::MAX,
        error: "boom".into(),
    };
    let snoozed = Ending::Snoozed {
        delay: Duration::MAX,
        why: String::new(),
    };

    queue
        .finish(&[end(ids[0], FENCE, failed), end(ids[1], FENCE, snoozed)])
        .await
        .unwrap();

    let day = jiff::SignedDuration::from_hours(24);
    for (id, expected) in [(ids[0], State::Retryable), (ids[1], State::Scheduled)] {
        let job = queue.get(id).await.unwrap().unwrap().summary;
        assert_eq!(job.state, expected);
        let wait = job.due_at.unwrap().duration_since(job.created_at);
        assert!(wait >= day * 3660 && wait < day * 3661, "{wait:?}");
    }
}

#[tokio::test]
async fn a_time_that_only_postgres_knows_hides_no_job() {
    let (database, queue) = queue().await;
    let later = Some("2030-01-01T00:00:00Z".parse().unwrap());
    let id = enqueue_one(
        &queue,
        NewJob {
            run_at: later,
            ..http()
        },
    )
    .await;
    let other = enqueue_one(&queue, http()).await;
    database
        .pool()
        .execute("update flyball.scheduled set run_at = 'infinity'")
        .await
        .unwrap();

    let listed = queue
        .list(&JobFilter {
            limit: 10,
            ..JobFilter::default()
        })
        .await
        .unwrap();

    assert_eq!(
        listed.iter().map(|job| job.id).collect::<Vec<_>>(),
        [other, id]
    );
    let job = queue.get(id).await.unwrap().unwrap().summary;
    assert_eq!((job.state, job.due_at), (State::Scheduled, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_gives_way_to_a_long_reader_and_comes_again() {
    let (database, queue) = queue().await;
    sqlx::raw_sql(EMPTY_SCHEMA)
        .execute(database.pool())
        .await
        .unwrap();
    let mut reader = database.pool().begin().await.unwrap();
    sqlx::raw_sql("lock table flyball.migration in access exclusive mode")
        .execute(&mut *reader)
        .await
        .unwrap();

    let migrating = tokio::spawn(async move { queue.migrate().await });
    let waiting = async || -> i64 {
        let sql = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock' and query like '%flyball.migration%'";
        sqlx::query_scalar(sql)
            .fetch_one(database.pool())
            .await
            .unwrap()
    };
    for (what, count) in [
        ("it waits", 1),
        ("it has given way", 0),
        ("it came again", 1),
    ] {
        eventually(what, SOON, || async {
            (waiting().await == count).then_some(())
        })
        .await;
    }

    reader.rollback().await.unwrap();
    assert!(migrating.await.unwrap().unwrap() > 0);
}

#[tokio::test]
async fn a_schema_that_no_released_program_made_is_refused_and_left_as_it_is() {
    let (database, queue) = queue().await;
    // Other texts under the same numbers, and one that this program would apply now.
    sqlx::raw_sql(
        "update flyball.migration set checksum = '\\x00' where version = 1;
        delete from flyball.migration where version = (select max(version) from flyball.migration)",
    )
    .execute(database.pool())
    .await
    .unwrap();
    let applied = async || -> i64 {
        sqlx::query_scalar("select count(*) from flyball.migration")
            .fetch_one(database.pool())
            .await
            .unwrap()
    };
    let before = applied().await;

    let refused = queue.migrate().await;

    assert!(
        matches!(refused, Err(MigrateError::VersionMismatch(1))),
        "{refused:?}"
    );
    assert_eq!(queue.schema().await.unwrap(), Some(Schema::Unreleased(1)));
    assert_eq!(applied().await, before);
}
