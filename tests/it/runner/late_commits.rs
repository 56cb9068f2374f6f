//! Jobs of transactions that commit late, and ends rejected by Postgres.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flyball::jobs::{Context, Job, Kinds, NewJob, Outcome, Queue, State};
use flyball::runner::{Config, Worker, WorkerMetrics};
use serde_json::json;

use super::conservation::{SOON, soak, unlimited};
use crate::support::ledger::Ledger;
use crate::support::pgbouncer::PgBouncer;
use crate::support::{database, eventually};

/// Workers in this process, on their own database.
struct Works {
    queue: Queue,
    worker: Worker,
    started: Arc<Mutex<BTreeMap<i64, Instant>>>,
    _database: crate::support::Database,
}

impl Works {
    /// A worker with brief jobs that report their start; behind a pooler, if there is one.
    async fn start(pooled: bool) -> (Self, Option<PgBouncer>) {
        let database = database().await;
        let pooler = if pooled {
            Some(PgBouncer::start(database.url()).await)
        } else {
            None
        };
        let queue = match &pooler {
            Some(pooler) => Queue::connect(pooler.access(), 6, SOON).await.unwrap(),
            None => Queue::connect(database.url(), 6, SOON).await.unwrap(),
        };
        sqlx::query("select flyball.register_kind('step')")
            .execute(&queue.pool)
            .await
            .unwrap();
        let store = unlimited("flow").await;
        let started: Arc<Mutex<BTreeMap<i64, Instant>>> = Arc::default();
        let mut kinds = Kinds::default();
        let seen = started.clone();
        kinds.register_fn("step", move |job: Job, _: Context| {
            seen.lock()
                .unwrap()
                .entry(job.id)
                .or_insert_with(Instant::now);
            async {
                // Real time: jobs that last a while keep all slots in use.
                tokio::time::sleep(Duration::from_millis(20)).await;
                Outcome::Done
            }
        });
        let metrics =
            WorkerMetrics::register(&mut prometheus_client::registry::Registry::default());
        let config = Config {
            concurrency: 16,
            ..Config::default()
        };
        let worker = Worker::start(config, queue.clone(), store, kinds, metrics)
            .await
            .unwrap();
        (
            Self {
                queue,
                worker,
                started,
                _database: database,
            },
            pooler,
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_transaction_stayed_open_is_claimed_within_three_seconds_of_its_commit() {
    let (works, _) = Works::start(false).await;
    late_commits(works, Duration::from_secs(4), 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_commit_is_found_by_polling_alone() {
    let (works, _pooler) = Works::start(true).await;
    late_commits(works, Duration::from_secs(2), 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes FLYBALL_SOAK_S; make soak runs it"]
async fn soak_a_job_whose_transaction_stayed_open_for_minutes_is_claimed_within_three_seconds_of_its_commit()
 {
    let (works, _) = Works::start(false).await;
    late_commits(works, soak() / 2, 2).await;
}

/// Keeps transactions open while thousands of younger jobs of the same and other lanes pass.
async fn late_commits(works: Works, open_for: Duration, rounds: usize) {
    let stop = Arc::new(AtomicBool::new(false));
    let flow = tokio::spawn({
        let (queue, stop) = (works.queue.clone(), stop.clone());
        async move {
            let (mut enqueued, mut slowest) = (0_usize, Duration::ZERO);
            while !stop.load(Ordering::Relaxed) {
                // The busy lane always holds some hundred jobs, so its claim position advances.
                let waiting: i64 = sqlx::query_scalar("select count(*) from flyball.ready")
                    .fetch_one(&queue.pool)
                    .await
                    .unwrap();
                if waiting < 500 {
                    let keys = ["busy", "busy", "busy", "a", "b", "c", "d"];
                    let jobs = (0..210).map(|n| NewJob {
                        throttle: "flow".into(),
                        key: keys[n % keys.len()].into(),
                        ..NewJob::new("step", json!({}))
                    });
                    let jobs: Vec<NewJob> = jobs.collect();
                    let asked_at = Instant::now();
                    queue.enqueue(&jobs).await.unwrap();
                    slowest = slowest.max(asked_at.elapsed());
                    enqueued += jobs.len();
                }
                // Real time: the pace of the producer.
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            (enqueued, slowest)
        }
    });
    let mut waits: Vec<Duration> = Vec::new();
    for round in 0..rounds {
        let mut open = works.queue.pool.begin().await.unwrap();
        sqlx::raw_sql("set local idle_in_transaction_session_timeout = 0")
            .execute(&mut *open)
            .await
            .unwrap();
        let mut late: Vec<i64> = Vec::new();
        // One in the busy lane, one in a new lane.
        for key in ["busy".to_owned(), format!("unseen-{round}")] {
            let sql =
                "select job_id from flyball.enqueue('step', '{}', throttle => 'flow', key => $1)";
            late.push(
                sqlx::query_scalar(sql)
                    .persistent(false)
                    .bind(key)
                    .fetch_one(&mut *open)
                    .await
                    .unwrap(),
            );
        }
        // Real time: looks for new jobs reach back two seconds; a longer transaction is the
        // subject.
        tokio::time::sleep(open_for).await;
        open.commit().await.unwrap();
        let committed = Instant::now();
        let started = eventually("the late jobs start", SOON, || async {
            let started = works.started.lock().unwrap();
            late.iter()
                .map(|id| started.get(id).copied())
                .collect::<Option<Vec<_>>>()
        })
        .await;
        waits.extend(
            started
                .iter()
                .map(|at| at.saturating_duration_since(committed)),
        );
    }
    stop.store(true, Ordering::Relaxed);
    let (flowed, slowest) = flow.await.unwrap();
    println!(
        "{flowed} jobs flowed by; the late ones started after {waits:?}; the slowest enqueue took {slowest:?}"
    );
    // If the machine itself stalls, so does everything that a claim waits for.
    let bound = Duration::from_secs(3) + 20 * slowest;
    assert!(
        waits.iter().all(|wait| *wait < bound),
        "{waits:?} while the slowest enqueue took {slowest:?}"
    );
    eventually("everything is done", SOON, || async {
        Ledger::look(&works.queue.pool)
            .await
            .filter(|ledger| ledger.waiting() == 0)
    })
    .await
    .assert_conserved();
    works.worker.stop().await;
}

#[tokio::test]
async fn a_job_whose_end_postgres_refuses_is_buried_alone() {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
    // No handler can produce such an end, so a trigger does: the end of these jobs violates a
    // constraint.
    sqlx::raw_sql(
        "select flyball.register_kind('step'), flyball.register_kind('poison');
         create function refuse() returns trigger language plpgsql as $$
         begin
             if (select kind from flyball.job where id = new.job_id) = 'poison' and new.outcome = 'completed' then
                 raise exception using errcode = '23514', message = 'this end is poison';
             end if;
             return new;
         end $$;
         create trigger refuse before insert on flyball.attempt for each row execute function refuse();",
    )
    .execute(database.pool())
    .await
    .unwrap();
    let store = unlimited("default").await;
    let mut kinds = Kinds::default();
    for kind in ["step", "poison"] {
        kinds.register_fn(kind, |_: Job, _: Context| async { Outcome::Done });
    }
    // A delay beyond the range of an interval is rejected as well.
    kinds.register_fn("never", |_: Job, _: Context| async {
        Outcome::Retry {
            after: Some(Duration::MAX),
            error: "for ever".into(),
        }
    });
    sqlx::query("select flyball.register_kind('never')")
        .execute(database.pool())
        .await
        .unwrap();
    let jobs: Vec<NewJob> = (0..200)
        .map(|n| match n {
            50 | 120 => NewJob::new("poison", json!({})),
            80 => NewJob::new("never", json!({})),
            _ => NewJob::new("step", json!({})),
        })
        .collect();
    let ids: Vec<i64> = queue
        .enqueue(&jobs)
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();
    let metrics = WorkerMetrics::register(&mut prometheus_client::registry::Registry::default());
    let worker = Worker::start(Config::default(), queue.clone(), store, kinds, metrics)
        .await
        .unwrap();

    let settled = eventually("all others are completed", SOON, || async {
        Ledger::look(&queue.pool)
            .await
            .filter(|ledger| ledger.completed == 197 && ledger.running + ledger.ready == 0)
    })
    .await;

    settled.assert_conserved();
    for poison in [ids[50], ids[120]] {
        let detail = queue.get(poison).await.unwrap().unwrap();
        assert_eq!(detail.summary.state, State::Dead);
        let why = detail.summary.last_error.unwrap_or_default();
        assert!(why.contains("this end is poison"), "{why}");
    }
    let never = queue.get(ids[80]).await.unwrap().unwrap().summary;
    println!(
        "a wait without end: {:?}, due {:?}, {:?}",
        never.state, never.due_at, never.last_error
    );
    assert!(matches!(never.state, State::Dead | State::Retryable));
    worker.stop().await;
}
