//! Late heartbeats, and claims and leases unknown to their worker.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flyball::jobs::{Context, Job, Outcome, Queue, State};
use flyball::runner::Config;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::sync::Notify;

use super::fixture::{SOON, WorkerFixture, counter, quick};
use crate::support::eventually;

#[tokio::test]
async fn jobs_that_were_stopped_for_want_of_a_heartbeat_run_again_although_the_worker_lived_on() {
    let mut fixture = WorkerFixture::new().await;
    let stopped = fixture.patient_at_first();
    let id = fixture.enqueue("patient", "fast", "", 1).await[0];
    let worker = fixture
        .worker(Config {
            ttl: Duration::from_secs(4),
            ..quick()
        })
        .await;
    let identity = worker.id();
    fixture.until(id, State::Running).await;

    // Heartbeats wait for the lock until the worker gives itself up, and arrive just before its
    // time to live ends.
    let mut lock = fixture.queue.pool.begin().await.unwrap();
    sqlx::query("select from flyball.worker where id = $1 for update")
        .bind(identity)
        .execute(&mut *lock)
        .await
        .unwrap();
    stopped.notified().await;
    lock.rollback().await.unwrap();

    fixture.until(id, State::Completed).await;
    let detail = fixture.queue.get(id).await.unwrap().unwrap();
    assert_eq!(
        (worker.id(), detail.summary.attempt),
        (identity, 1),
        "it was never taken for dead"
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_worker_that_stopped_its_jobs_for_want_of_a_heartbeat_begins_none_until_one_gets_through()
{
    let mut fixture = WorkerFixture::new().await;
    let stopped = fixture.patient_at_first();
    let id = fixture.enqueue("patient", "fast", "", 1).await[0];
    let worker = fixture
        .worker(Config {
            ttl: Duration::from_secs(4),
            ..quick()
        })
        .await;
    let identity = worker.id();
    fixture.until(id, State::Running).await;
    let mut lock = fixture.queue.pool.begin().await.unwrap();
    sqlx::query("select from flyball.worker where id = $1 for update")
        .bind(identity)
        .execute(&mut *lock)
        .await
        .unwrap();

    // The job is released while Postgres would still accept claims of this identity.
    stopped.notified().await;
    eventually("the worker has a fresh identity", SOON, || async {
        (worker.id() != identity).then_some(())
    })
    .await;
    lock.rollback().await.unwrap();

    fixture.until(id, State::Completed).await;
    let sql = "select worker_id from flyball.attempt where job_id = $1 and outcome = 'completed'";
    let by: i32 = sqlx::query_scalar(sql)
        .bind(id)
        .fetch_one(&fixture.queue.pool)
        .await
        .unwrap();
    assert_ne!(by, identity);
    worker.stop().await;
}

#[tokio::test]
async fn a_worker_whose_connections_for_heartbeats_cannot_be_had_beats_on_the_others() {
    let mut fixture = WorkerFixture::new().await;
    let (starts, run) = counter(Outcome::Done);
    fixture.kind("noop", run);
    let good: PgConnectOptions = fixture.database.url().parse().unwrap();
    let pool = PgPoolOptions::new()
        .max_connections(6)
        .connect_lazy_with(good.clone().port(1));
    fixture.fixture.queue = Queue::new(pool.clone());
    pool.set_connect_options(good);
    let ttl = Duration::from_secs(3);
    let worker = fixture.worker(Config { ttl, ..quick() }).await;
    let identity = worker.id();

    eventually("heartbeats beyond two times to live", SOON, || async {
        let lived_s = fixture.heartbeat_s(&worker).await;
        (lived_s > 2.0 * ttl.as_secs_f64()).then_some(())
    })
    .await;

    let id = fixture.enqueue("noop", "fast", "", 1).await[0];
    fixture.until(id, State::Completed).await;
    assert_eq!((worker.id(), starts.load(Ordering::SeqCst)), (identity, 1));
    assert_eq!(fixture.queue.live_workers().await.unwrap(), 1);
    worker.stop().await;
}

#[tokio::test]
async fn what_is_leased_to_a_worker_that_knows_nothing_of_it_is_given_back() {
    let mut fixture = WorkerFixture::new().await;
    let (runs, run) = counter(Outcome::Done);
    fixture.kind("noop", run);
    let id = fixture.enqueue("noop", "fast", "", 1).await[0];
    // The result of a claim that waited behind a lock for longer than its worker remembers it.
    let sql = "with r as (delete from flyball.ready where job_id = $1 returning *)
        insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost, claimed_at)
        select job_id, 77, 1, lane_id, priority, 1, cost, now() - interval '2 minutes' from r";
    sqlx::query(sql)
        .bind(id)
        .execute(&fixture.queue.pool)
        .await
        .unwrap();

    let worker = fixture.worker(quick()).await;

    assert_eq!(worker.id(), 1, "the lease is this worker's");
    fixture.until(id, State::Completed).await;
    let detail = fixture.queue.get(id).await.unwrap().unwrap();
    assert_eq!(
        (
            runs.load(Ordering::SeqCst),
            detail.summary.attempt,
            detail.attempts.len()
        ),
        (1, 1, 1)
    );
    worker.stop().await;
}

#[tokio::test]
async fn what_a_claim_took_whose_answer_got_lost_is_given_back() {
    let mut fixture = WorkerFixture::new().await;
    let (runs, run) = counter(Outcome::Done);
    fixture.kind("noop", run);
    let mut lock = fixture.queue.pool.begin().await.unwrap();
    sqlx::query("lock table flyball.lease in exclusive mode")
        .execute(&mut *lock)
        .await
        .unwrap();
    let id = fixture.enqueue("noop", "fast", "", 1).await[0];
    let worker = fixture
        .worker(Config {
            ttl: Duration::from_secs(3),
            ..quick()
        })
        .await;

    // The claim waits for the lock, on a connection of the worker; the worker gives up and tries again, but Postgres carries it
    // out later anyway.
    eventually("a second claim waits", SOON, || async {
        let sql = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock' and query like '%insert into flyball.lease%'";
        let waiting: i64 = sqlx::query_scalar(sql).fetch_one(fixture.database.pool()).await.unwrap();
        (waiting >= 2).then_some(())
    })
    .await;
    lock.rollback().await.unwrap();

    fixture.until(id, State::Completed).await;
    let detail = fixture.queue.get(id).await.unwrap().unwrap();
    assert_eq!(
        (runs.load(Ordering::SeqCst), detail.summary.attempt),
        (1, 1)
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_job_that_somebody_cancelled_while_it_failed_is_not_tried_again() {
    let mut fixture = WorkerFixture::new().await;
    let gate = Arc::new(Notify::new());
    let opened = gate.clone();
    fixture.kind("bad", move |_: Job, _: Context| {
        let opened = opened.clone();
        async move {
            opened.notified().await;
            Outcome::Retry {
                after: Some(Duration::ZERO),
                error: "boom".into(),
            }
        }
    });
    let id = fixture.enqueue("bad", "fast", "", 1).await[0];
    // With a long time to live, the heartbeat reports the cancellation too late.
    let worker = fixture
        .worker(Config {
            ttl: Duration::from_secs(3600),
            ..quick()
        })
        .await;
    fixture.until(id, State::Running).await;

    fixture.queue.cancel(id).await.unwrap();
    gate.notify_one();

    fixture.until(id, State::Cancelled).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_job_never_runs_under_the_tokens_of_another_lane_that_has_its_number() {
    let mut fixture = WorkerFixture::new().await;
    fixture.turn("slow", &[("rps", "0")]).await;
    let (runs, run) = counter(Outcome::Done);
    fixture.kind("noop", run);
    fixture.enqueue("noop", "fast", "a", 1).await;
    let other = fixture.enqueue("noop", "slow", "b", 1).await[0];
    // Simulates two lanes with the same number.
    for table in ["job", "ready"] {
        let id = if table == "job" { "id" } else { "job_id" };
        let moved = format!(
            "update flyball.{table} set lane_id = flyball.lane_of('fast', 'a') where {id} = $1"
        );
        sqlx::query(sqlx::AssertSqlSafe(moved))
            .bind(other)
            .execute(&fixture.queue.pool)
            .await
            .unwrap();
    }
    let worker = fixture.worker(quick()).await;

    fixture.until(other, State::Dead).await;
    fixture.until_done(1).await;

    assert_eq!(runs.load(Ordering::SeqCst), 1);
    let error = fixture
        .queue
        .get(other)
        .await
        .unwrap()
        .unwrap()
        .summary
        .last_error
        .unwrap();
    assert!(
        error.contains("has the number of another lane, key \"a\" of throttle fast"),
        "{error}"
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_worker_that_is_declared_dead_while_it_stops_signs_off_under_its_new_number_too() {
    let mut fixture = WorkerFixture::new().await;
    fixture.kind("stubborn", |_: Job, _: Context| {
        std::future::pending::<Outcome>()
    });
    let id = fixture.enqueue("stubborn", "fast", "", 1).await[0];
    let worker = fixture
        .worker(Config {
            grace: Duration::from_secs(60),
            ..quick()
        })
        .await;
    let first = worker.id();
    fixture.until(id, State::Running).await;
    let stopping = tokio::spawn(worker.stop());

    sqlx::query("update flyball.worker set heartbeat_at = heartbeat_at - interval '1 hour'")
        .execute(&fixture.queue.pool)
        .await
        .unwrap();

    stopping.await.unwrap();
    let others = "select count(*), count(*) filter (where stopped_at is null) from flyball.worker where id <> $1";
    let others: (i64, i64) = sqlx::query_as(others)
        .bind(first)
        .fetch_one(&fixture.queue.pool)
        .await
        .unwrap();
    assert_eq!(others, (1, 0), "it registered anew and signed off");
}
