//! Workers with nothing to do: what they cost Postgres, and what they still find.

use std::time::Duration;

use flyball::jobs::{Context, Job, Kinds, NewJob, Outcome, Queue, State};
use flyball::runner::{Config, Worker, WorkerMetrics};
use serde_json::json;
use sqlx::PgPool;

use super::conservation::{SOON, unlimited};
use crate::support::process::ProcessFixture;
use crate::support::{database, eventually};

/// Time in which a started process finds that nothing happens.
const SETTLE: Duration = Duration::from_secs(15);

/// Time over which statements are counted.
const WINDOW: Duration = Duration::from_secs(20);

/// Most statements a second of an idle process. It sends less than five; maintenance and a loaded
/// machine may add some.
const MOST_PER_S: f64 = 8.0;

/// Windows of which one must be below that. On a machine that is loaded too much the looks for due
/// work come so late that nobody knows whether anything happens.
const WINDOWS: usize = 3;

const TRANSACTIONS: &str = "
select (xact_commit + xact_rollback)::int8 from pg_stat_database where datname = current_database()";

/// Checks the statements a second of a process with these arguments. Each statement outside of a
/// transaction is one transaction.
async fn sends_few_statements(arguments: &[&str]) {
    let fixture = ProcessFixture::new("rps = -1").await;
    let process = fixture.serve_with(arguments, &[]);
    process.worker_started().await;
    // Real time: the process must see for a while that nothing happens.
    tokio::time::sleep(SETTLE).await;
    let mut counted = Vec::new();
    for _ in 0..WINDOWS {
        let before = fixture.count(TRANSACTIONS).await;
        // Real time: statements are counted by the second.
        tokio::time::sleep(WINDOW).await;
        let sent = fixture.count(TRANSACTIONS).await - before;
        let per_s = sent as f64 / WINDOW.as_secs_f64();
        if per_s < MOST_PER_S {
            return;
        }
        counted.push(per_s);
    }
    panic!("{counted:?} statements a second, {MOST_PER_S} at most");
}

#[tokio::test]
async fn an_idle_runner_sends_postgres_few_statements() {
    sends_few_statements(&["--roles", "runner"]).await;
}

#[tokio::test]
async fn an_idle_process_with_all_roles_sends_postgres_few_statements() {
    sends_few_statements(&[]).await;
}

/// Starts a worker and waits until it has found that nothing happens.
async fn quiet_worker(queue: &Queue, kind: &str) -> Worker {
    let mut kinds = Kinds::default();
    kinds.register_fn(kind, |_: Job, _: Context| async { Outcome::Done });
    let metrics = WorkerMetrics::register(&mut prometheus_client::registry::Registry::default());
    let store = unlimited("idle").await;
    let worker = Worker::start(Config::default(), queue.clone(), store, kinds, metrics)
        .await
        .unwrap();
    is_quiet(queue, true).await;
    worker
}

async fn is_quiet(queue: &Queue, wanted: bool) {
    eventually("the worker sees whether anything happens", SOON, || async {
        let is_quiet = queue.activity().is_quiet(std::time::Instant::now());
        (is_quiet == wanted).then_some(())
    })
    .await;
}

/// Enqueues a job of which no notification tells.
async fn enqueue_unheard(pool: &PgPool) -> i64 {
    let mut transaction = pool.begin().await.unwrap();
    sqlx::query("update flyball.wakeup set asleep = false")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let id =
        sqlx::query_scalar("select job_id from flyball.enqueue('step', '{}', throttle => 'idle')")
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
    // The next producers would notify; this job has not.
    sqlx::query("update flyball.wakeup set asleep = true")
        .execute(&mut *transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    id
}

#[tokio::test]
async fn a_job_of_which_nobody_told_an_idle_worker_starts_before_its_next_sweep() {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
    let worker = quiet_worker(&queue, "step").await;
    for _ in 0..3 {
        is_quiet(&queue, true).await;
        let id = enqueue_unheard(&queue.pool.pool().clone()).await;

        // A sweep of an idle worker comes after twenty seconds only.
        eventually("the job ends", Duration::from_secs(10), || async {
            let job = queue.get(id).await.unwrap().unwrap();
            (job.summary.state == State::Completed).then_some(())
        })
        .await;
    }
    worker.stop().await;
}

#[tokio::test]
async fn producers_that_were_asked_not_to_notify_are_asked_to_again_by_an_idle_worker() {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
    let worker = quiet_worker(&queue, "step").await;

    queue.wake_up().await.unwrap();

    eventually("producers notify", Duration::from_secs(10), || async {
        let asleep: bool = sqlx::query_scalar("select asleep from flyball.wakeup")
            .fetch_one(&queue.pool)
            .await
            .unwrap();
        asleep.then_some(())
    })
    .await;
    worker.stop().await;
}

#[tokio::test]
async fn an_idle_worker_counts_anew_what_changed_without_its_knowledge() {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
    let worker = quiet_worker(&queue, "step").await;
    let depth = async || {
        let depths = queue.depths().await.unwrap();
        let found = depths
            .throttles
            .into_iter()
            .find(|one| one.throttle == "later");
        found.map_or(0, |depth| depth.scheduled)
    };
    eventually("the figures are whole", SOON, || async {
        queue.depths().await.unwrap().at.map(drop)
    })
    .await;

    #[expect(
        clippy::disallowed_methods,
        reason = "an hour from now, whichever clock says so"
    )]
    let later = NewJob {
        throttle: "later".to_owned(),
        run_at: Some(jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1)),
        ..NewJob::new("step", json!({}))
    };
    let jobs = queue.enqueue(&[later]).await.unwrap();
    eventually("the job is counted", SOON, || async {
        (depth().await == 1).then_some(())
    })
    .await;
    is_quiet(&queue, true).await;

    sqlx::query("delete from flyball.scheduled where job_id = $1")
        .bind(jobs[0].id)
        .execute(&queue.pool)
        .await
        .unwrap();

    eventually("the figure is right", SOON, || async {
        (depth().await == 0).then_some(())
    })
    .await;
    worker.stop().await;
}
