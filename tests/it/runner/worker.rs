//! The runner on a real Postgres and a real Redis.

use std::collections::BTreeMap;
use std::future::Ready;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flyball::jobs::postgres::{LaneClaim, NewWorker};
use flyball::jobs::retry::Policy;
use flyball::jobs::{
    Attribution, Context, Handler, Issue, Job, JobFilter, Kinds, NewJob, OnAmbiguous, Outcome,
    PreparedJob, Queue, Scope, State,
};
use flyball::runner::{Config, Worker, WorkerMetrics};
use flyball::throttle::{
    AcquireRequest, AcquireResponse, Change, Error, Holder, KeyOutcomes, KeyState, Name, Refund,
    RefusalEffect, Status, Store, UpstreamRefusal,
};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::sync::Notify;

use crate::support::{Database, database, eventually, patient_store, redis_prefix};

const SOON: Duration = Duration::from_secs(20);

struct House {
    _database: Database,
    queue: Queue,
    store: Arc<dyn Store>,
    kinds: Kinds,
}

impl House {
    async fn new() -> Self {
        let database = database().await;
        let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
        let store: Arc<dyn Store> = Arc::new(patient_store(&redis_prefix()).await);
        let house = Self {
            _database: database,
            queue,
            store,
            kinds: Kinds::default(),
        };
        house.turn("fast", &[("rps", "-1")]).await;
        house
    }

    /// Registers the kind `patient`: the first to run goes on until it is told to stop, and says when it has; the next are done.
    fn patient_at_first(&mut self) -> Arc<Notify> {
        let (starts, stopped) = (AtomicUsize::new(0), Arc::new(Notify::new()));
        let told = stopped.clone();
        self.kind("patient", move |job: Job, context: Context| {
            let (nth, told) = (starts.fetch_add(1, Ordering::SeqCst), told.clone());
            async move {
                if nth > 0 {
                    return Outcome::Done;
                }
                let outcome = patient(job, context).await;
                told.notify_one();
                outcome
            }
        });
        stopped
    }

    async fn turn(&self, throttle: &str, knobs: &[(&str, &str)]) {
        let fields: BTreeMap<_, _> = knobs
            .iter()
            .map(|(knob, value)| ((*knob).to_owned(), Some((*value).to_owned())))
            .collect();
        let change = Change {
            fields,
            by: "test".into(),
            create: true,
            ..Change::default()
        };
        self.store
            .set(&Name::new(throttle).unwrap(), &change)
            .await
            .unwrap();
    }

    fn kind<F, R>(&mut self, name: &str, run: F)
    where
        F: Fn(Job, Context) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        self.kinds.register_fn(name, run);
    }

    async fn worker(&self, config: Config) -> Worker {
        let metrics =
            WorkerMetrics::register(&mut prometheus_client::registry::Registry::default());
        Worker::start(
            config,
            self.queue.clone(),
            self.store.clone(),
            self.kinds.clone(),
            metrics,
        )
        .await
        .unwrap()
    }

    async fn enqueue(&self, kind: &str, throttle: &str, key: &str, count: usize) -> Vec<i64> {
        sqlx::query("select flyball.register_kind($1)")
            .bind(kind)
            .execute(&self.queue.pool)
            .await
            .unwrap();
        let job = NewJob {
            throttle: throttle.into(),
            key: key.into(),
            ..NewJob::new(kind, json!({}))
        };
        self.queue
            .enqueue(&vec![job; count])
            .await
            .unwrap()
            .iter()
            .map(|one| one.id)
            .collect()
    }

    async fn state(&self, id: i64) -> State {
        self.queue.get(id).await.unwrap().unwrap().summary.state
    }

    async fn until(&self, id: i64, state: State) {
        eventually(&format!("job {id} is {state:?}"), SOON, || async {
            (self.state(id).await == state).then_some(())
        })
        .await;
    }

    async fn until_done(&self, count: usize) {
        eventually(&format!("{count} jobs are completed"), SOON, || async {
            let done = self
                .queue
                .list(&JobFilter {
                    state: Some(State::Completed),
                    limit: 1000,
                    ..JobFilter::default()
                })
                .await
                .unwrap();
            (done.len() == count).then_some(())
        })
        .await;
    }
}

fn quick() -> Config {
    Config {
        concurrency: 16,
        grace: Duration::from_secs(5),
        ..Config::default()
    }
}

/// Counts runs, and answers with `outcome`.
fn counter(
    outcome: Outcome,
) -> (
    Arc<AtomicUsize>,
    impl Fn(Job, Context) -> std::future::Ready<Outcome> + Send + Sync,
) {
    let runs = Arc::new(AtomicUsize::new(0));
    let inner = runs.clone();
    let run = move |_: Job, _: Context| {
        inner.fetch_add(1, Ordering::SeqCst);
        std::future::ready(outcome.clone())
    };
    (runs, run)
}

/// A job that runs until it is told to stop.
async fn patient(_: Job, context: Context) -> Outcome {
    context.cancelled.cancelled().await;
    Outcome::HandedBack
}

#[tokio::test]
async fn every_job_runs_once_and_is_completed() {
    let mut house = House::new().await;
    let (runs, run) = counter(Outcome::Done);
    house.kind("noop", run);
    house.enqueue("noop", "fast", "", 300).await;
    let worker = house.worker(quick()).await;

    house.until_done(300).await;

    assert_eq!(runs.load(Ordering::SeqCst), 300);
    assert_eq!(worker.stop().await, 0);
}

#[tokio::test]
async fn a_throttle_never_lets_more_through_than_its_rate_and_its_bucket() {
    let mut house = House::new().await;
    let (runs, run) = counter(Outcome::Done);
    house.kind("noop", run);
    house
        .turn("slow", &[("rps", "40"), ("burst", "1"), ("window", "0.25")])
        .await;
    house.enqueue("noop", "slow", "a", 60).await;
    house.enqueue("noop", "slow", "b", 60).await;
    let begun = Instant::now();
    let worker = house.worker(quick()).await;

    house.until_done(120).await;

    let elapsed = begun.elapsed().as_secs_f64();
    assert_eq!(runs.load(Ordering::SeqCst), 120);
    assert!(
        120.0 <= 40.0 * (elapsed + 0.25) + 1.0,
        "120 jobs in {elapsed} s is more than 40 a second"
    );
    // A busy machine loses some of the rate, but not three quarters of it.
    assert!(
        120.0 >= 10.0 * elapsed,
        "120 jobs in {elapsed} s is less than a quarter of 40 a second"
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_dear_job_pays_its_whole_cost() {
    let mut house = House::new().await;
    let (_, run) = counter(Outcome::Done);
    house.kind("noop", run);
    house
        .turn("dear", &[("rps", "50"), ("burst", "1"), ("window", "0.2")])
        .await;
    house.enqueue("noop", "dear", "", 0).await;
    let job = NewJob {
        throttle: "dear".into(),
        cost: 10.0,
        ..NewJob::new("noop", json!({}))
    };
    house.queue.enqueue(&vec![job; 12]).await.unwrap();
    let begun = Instant::now();
    let worker = house.worker(quick()).await;

    house.until_done(12).await;

    let elapsed = begun.elapsed().as_secs_f64();
    // The last job may leave its whole cost as a debt.
    assert!(
        110.0 <= 50.0 * (elapsed + 0.2) + 1.0,
        "12 jobs of cost 10 in {elapsed} s is more than 50 tokens a second"
    );
    worker.stop().await;
}

#[tokio::test]
async fn jobs_of_an_unknown_throttle_are_parked_until_it_exists() {
    let mut house = House::new().await;
    let (_, run) = counter(Outcome::Done);
    house.kind("noop", run);
    let parked = house.enqueue("noop", "nobody-made-me", "", 1).await[0];
    let other = house.enqueue("noop", "fast", "", 1).await[0];
    let worker = house.worker(quick()).await;

    house.until(other, State::Completed).await;
    let detail = house.queue.get(parked).await.unwrap().unwrap();
    assert_eq!(
        (detail.summary.state, detail.summary.attempt),
        (State::Ready, 0)
    );

    house.turn("nobody-made-me", &[("rps", "10")]).await;
    house.until(parked, State::Completed).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_stopped_throttle_holds_its_jobs_and_an_edit_lets_them_go() {
    let mut house = House::new().await;
    let (runs, run) = counter(Outcome::Done);
    house.kind("noop", run);
    house.turn("gate", &[("rps", "0")]).await;
    let held = house.enqueue("noop", "gate", "", 1).await[0];
    let other = house.enqueue("noop", "fast", "", 1).await[0];
    let worker = house.worker(quick()).await;
    house.until(other, State::Completed).await;
    assert_eq!(house.state(held).await, State::Ready);
    assert_eq!(runs.load(Ordering::SeqCst), 1);

    house.turn("gate", &[("rps", "20")]).await;

    house.until(held, State::Completed).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_throttled_answer_pauses_the_key_alone_and_uses_no_attempt() {
    const REST: Duration = Duration::from_secs(6);
    let mut house = House::new().await;
    let runs = Arc::new(Mutex::new(Vec::new()));
    let seen = runs.clone();
    house.kind("picky", move |job: Job, _| {
        let first = {
            let mut seen = seen.lock().unwrap();
            seen.push((job.key.clone(), Instant::now()));
            seen.iter().filter(|(key, _)| key == "hot").count() == 1
        };
        std::future::ready(if job.key == "hot" && first {
            Outcome::Throttled {
                scope: Scope::Key,
                delay: Some(REST),
                error: "429".into(),
            }
        } else {
            Outcome::Done
        })
    });
    let hot = house.enqueue("picky", "fast", "hot", 1).await[0];
    let worker = house.worker(quick()).await;
    eventually("the key was told to rest", SOON, || async {
        let detail = house.queue.get(hot).await.unwrap().unwrap();
        (detail.summary.state == State::Ready && !detail.attempts.is_empty()).then_some(())
    })
    .await;
    let cold = house.enqueue("picky", "fast", "cold", 1).await[0];
    house.until(cold, State::Completed).await;
    assert_eq!(
        house.state(hot).await,
        State::Ready,
        "the cold key did not wait for the hot one"
    );
    house.until(hot, State::Completed).await;

    let runs = runs.lock().unwrap().clone();
    let hot_runs: Vec<Instant> = runs
        .iter()
        .filter(|(key, _)| key == "hot")
        .map(|(_, at)| *at)
        .collect();
    assert_eq!(hot_runs.len(), 2);
    assert!(
        hot_runs[1] - hot_runs[0] >= REST,
        "the key rested as long as it was told to"
    );
    let detail = house.queue.get(hot).await.unwrap().unwrap();
    assert_eq!(detail.summary.attempt, 1, "being throttled used no attempt");
    worker.stop().await;
}

#[tokio::test]
async fn failures_are_tried_again_and_then_buried_with_their_error() {
    let mut house = House::new().await;
    let (runs, run) = counter(Outcome::Retry {
        after: Some(Duration::from_millis(10)),
        error: "boom".into(),
    });
    house.kind("bad", run);
    house.kind("panics", |_: Job, _: Context| async { panic!("oh no") });
    house.enqueue("bad", "fast", "", 0).await;
    house.enqueue("panics", "fast", "", 0).await;
    let job = |kind: &str, max_attempts| NewJob {
        throttle: "fast".into(),
        max_attempts,
        ..NewJob::new(kind, json!({}))
    };
    let ids = house
        .queue
        .enqueue(&[job("bad", 3), job("panics", 1)])
        .await
        .unwrap();
    let worker = house.worker(quick()).await;

    house.until(ids[0].id, State::Dead).await;
    house.until(ids[1].id, State::Dead).await;

    assert_eq!(runs.load(Ordering::SeqCst), 3);
    let bad = house.queue.get(ids[0].id).await.unwrap().unwrap();
    let outcomes: Vec<&str> = bad
        .attempts
        .iter()
        .map(|one| one.outcome.as_str())
        .collect();
    assert_eq!(outcomes, ["failed", "failed", "dead"]);
    let panicked = house.queue.get(ids[1].id).await.unwrap().unwrap();
    assert_eq!(
        panicked.summary.last_error.as_deref(),
        Some("the handler panicked")
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_running_job_stops_when_it_is_cancelled() {
    let mut house = House::new().await;
    house.kind("patient", patient);
    let id = house.enqueue("patient", "fast", "", 1).await[0];
    let worker = house.worker(quick()).await;
    house.until(id, State::Running).await;

    house.queue.cancel(id).await.unwrap();

    house.until(id, State::Cancelled).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_stopping_worker_gives_back_what_it_cannot_finish() {
    let mut house = House::new().await;
    house.kind("patient", patient);
    let id = house.enqueue("patient", "fast", "", 1).await[0];
    let worker = house
        .worker(Config {
            grace: Duration::from_millis(200),
            ..quick()
        })
        .await;
    house.until(id, State::Running).await;

    worker.stop().await;

    let detail = house.queue.get(id).await.unwrap().unwrap();
    assert_eq!(
        (detail.summary.state, detail.summary.attempt),
        (State::Ready, 0)
    );
    assert_eq!(house.queue.live_workers().await.unwrap(), 0);
}

#[tokio::test]
async fn a_worker_that_was_taken_for_dead_stops_its_jobs_and_starts_afresh() {
    let mut house = House::new().await;
    house.patient_at_first();
    let id = house.enqueue("patient", "fast", "", 1).await[0];
    let worker = house
        .worker(Config {
            ttl: Duration::from_secs(3),
            ..quick()
        })
        .await;
    let first_identity = worker.id();
    house.until(id, State::Running).await;

    sqlx::query("update flyball.worker set heartbeat_at = now() - interval '1 hour' where id = $1")
        .bind(first_identity)
        .execute(&house.queue.pool)
        .await
        .unwrap();

    house.until(id, State::Completed).await;
    assert_ne!(worker.id(), first_identity);
    let detail = house.queue.get(id).await.unwrap().unwrap();
    let outcomes: Vec<&str> = detail
        .attempts
        .iter()
        .map(|one| one.outcome.as_str())
        .collect();
    // Given back by itself, or by the rescuer if that was faster.
    assert!(
        matches!(outcomes[..], ["completed"] | ["lost", "completed"]),
        "{outcomes:?}"
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_kind_that_no_worker_here_runs_waits_without_using_attempts() {
    let house = House::new().await;
    let id = house.enqueue("elsewhere", "fast", "", 1).await[0];
    let worker = house.worker(quick()).await;

    house.until(id, State::Scheduled).await;

    let detail = house.queue.get(id).await.unwrap().unwrap();
    assert_eq!(detail.summary.attempt, 0);
    assert!(
        detail
            .summary
            .last_error
            .unwrap()
            .contains("does not serve the kind elsewhere")
    );
    worker.stop().await;
}

#[tokio::test]
async fn two_workers_share_the_work_and_no_job_runs_twice() {
    let mut house = House::new().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let inner = seen.clone();
    house.kind("noop", move |job: Job, _| {
        inner.lock().unwrap().push(job.id);
        std::future::ready(Outcome::Done)
    });
    let mut wanted = house.enqueue("noop", "fast", "a", 400).await;
    let (one, two) = tokio::join!(house.worker(quick()), house.worker(quick()));

    house.until_done(400).await;

    let mut seen = seen.lock().unwrap().clone();
    seen.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(seen, wanted);
    tokio::join!(one.stop(), two.stop());
}

// === Defects that must stay away ===

struct Careless;

impl Handler for Careless {
    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        assert!(args.get("check").is_none(), "the check panics");
        Ok(PreparedJob::new(|_, _| -> Ready<Outcome> {
            panic!("before there is a future")
        }))
    }
}

#[tokio::test]
async fn a_handler_that_panics_outside_its_future_keeps_neither_permit_nor_lease() {
    let mut house = House::new().await;
    let (_, run) = counter(Outcome::Done);
    house.kind("noop", run);
    house.kinds.register("careless", Careless);
    house.enqueue("careless", "fast", "", 0).await;
    let job = |args| NewJob {
        throttle: "fast".into(),
        max_attempts: 1,
        ..NewJob::new("careless", args)
    };
    let bad = house
        .queue
        .enqueue(&[job(json!({})), job(json!({"check": 1}))])
        .await
        .unwrap();
    let worker = house
        .worker(Config {
            concurrency: 1,
            ..quick()
        })
        .await;

    for one in &bad {
        house.until(one.id, State::Dead).await;
    }
    let good = house.enqueue("noop", "fast", "", 1).await[0];
    house.until(good, State::Completed).await;
    worker.stop().await;
}

#[tokio::test]
async fn jobs_that_were_stopped_for_want_of_a_heartbeat_run_again_although_the_worker_lived_on() {
    let mut house = House::new().await;
    let stopped = house.patient_at_first();
    let id = house.enqueue("patient", "fast", "", 1).await[0];
    let worker = house
        .worker(Config {
            ttl: Duration::from_secs(4),
            ..quick()
        })
        .await;
    let identity = worker.id();
    house.until(id, State::Running).await;

    // Heartbeats wait for the lock until the worker gives up on itself, and get through just before its time is over.
    let mut lock = house.queue.pool.begin().await.unwrap();
    sqlx::query("select from flyball.worker where id = $1 for update")
        .bind(identity)
        .execute(&mut *lock)
        .await
        .unwrap();
    stopped.notified().await;
    lock.rollback().await.unwrap();

    house.until(id, State::Completed).await;
    let detail = house.queue.get(id).await.unwrap().unwrap();
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
    let mut house = House::new().await;
    let stopped = house.patient_at_first();
    let id = house.enqueue("patient", "fast", "", 1).await[0];
    let worker = house
        .worker(Config {
            ttl: Duration::from_secs(4),
            ..quick()
        })
        .await;
    let identity = worker.id();
    house.until(id, State::Running).await;
    let mut lock = house.queue.pool.begin().await.unwrap();
    sqlx::query("select from flyball.worker where id = $1 for update")
        .bind(identity)
        .execute(&mut *lock)
        .await
        .unwrap();

    // The job is given back while Postgres would still let this identity claim it.
    stopped.notified().await;
    eventually("the worker has a fresh identity", SOON, || async {
        (worker.id() != identity).then_some(())
    })
    .await;
    lock.rollback().await.unwrap();

    house.until(id, State::Completed).await;
    let sql = "select worker_id from flyball.attempt where job_id = $1 and outcome = 'completed'";
    let by: i32 = sqlx::query_scalar(sql)
        .bind(id)
        .fetch_one(&house.queue.pool)
        .await
        .unwrap();
    assert_ne!(by, identity);
    worker.stop().await;
}

#[tokio::test]
async fn a_worker_whose_connections_for_heartbeats_cannot_be_had_beats_on_the_others() {
    let mut house = House::new().await;
    let (starts, run) = counter(Outcome::Done);
    house.kind("noop", run);
    let good: PgConnectOptions = house._database.url().parse().unwrap();
    let pool = PgPoolOptions::new()
        .max_connections(6)
        .connect_lazy_with(good.clone().port(1));
    house.queue = Queue::new(pool.clone());
    pool.set_connect_options(good);
    let ttl = Duration::from_secs(6);
    let worker = house.worker(Config { ttl, ..quick() }).await;
    let identity = worker.id();

    tokio::time::sleep(ttl * 2).await;

    let id = house.enqueue("noop", "fast", "", 1).await[0];
    house.until(id, State::Completed).await;
    assert_eq!((worker.id(), starts.load(Ordering::SeqCst)), (identity, 1));
    assert_eq!(house.queue.live_workers().await.unwrap(), 1);
    worker.stop().await;
}

#[tokio::test]
async fn what_is_leased_to_a_worker_that_knows_nothing_of_it_is_given_back() {
    let mut house = House::new().await;
    let (runs, run) = counter(Outcome::Done);
    house.kind("noop", run);
    let id = house.enqueue("noop", "fast", "", 1).await[0];
    // As a claim leaves it that waited behind a lock for longer than anybody remembers it.
    let sql = "with r as (delete from flyball.ready where job_id = $1 returning *)
        insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost, claimed_at)
        select job_id, 77, 1, lane_id, priority, 1, cost, now() - interval '2 minutes' from r";
    sqlx::query(sql)
        .bind(id)
        .execute(&house.queue.pool)
        .await
        .unwrap();

    let worker = house.worker(quick()).await;

    assert_eq!(worker.id(), 1, "the lease is this worker's");
    house.until(id, State::Completed).await;
    let detail = house.queue.get(id).await.unwrap().unwrap();
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
    let mut house = House::new().await;
    let (runs, run) = counter(Outcome::Done);
    house.kind("noop", run);
    let mut lock = house.queue.pool.begin().await.unwrap();
    sqlx::query("lock table flyball.lease in exclusive mode")
        .execute(&mut *lock)
        .await
        .unwrap();
    let id = house.enqueue("noop", "fast", "", 1).await[0];
    let worker = house
        .worker(Config {
            ttl: Duration::from_secs(3),
            ..quick()
        })
        .await;

    // The claim waits for the lock; the worker gives it up and tries again, but Postgres carries it out later all the same.
    eventually("a second claim waits", SOON, || async {
        let sql = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock' and query like '%insert into flyball.lease%'";
        let waiting: i64 = sqlx::query_scalar(sql).fetch_one(&house.queue.pool).await.unwrap();
        (waiting >= 2).then_some(())
    })
    .await;
    lock.rollback().await.unwrap();

    house.until(id, State::Completed).await;
    let detail = house.queue.get(id).await.unwrap().unwrap();
    assert_eq!(
        (runs.load(Ordering::SeqCst), detail.summary.attempt),
        (1, 1)
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_job_that_somebody_cancelled_while_it_failed_is_not_tried_again() {
    let mut house = House::new().await;
    let gate = Arc::new(Notify::new());
    let opened = gate.clone();
    house.kind("bad", move |_: Job, _: Context| {
        let opened = opened.clone();
        async move {
            opened.notified().await;
            Outcome::Retry {
                after: Some(Duration::ZERO),
                error: "boom".into(),
            }
        }
    });
    let id = house.enqueue("bad", "fast", "", 1).await[0];
    // A long time to live: the heartbeat brings the word too late.
    let worker = house
        .worker(Config {
            ttl: Duration::from_secs(3600),
            ..quick()
        })
        .await;
    house.until(id, State::Running).await;

    house.queue.cancel(id).await.unwrap();
    gate.notify_one();

    house.until(id, State::Cancelled).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_job_that_cannot_be_read_is_buried_and_its_neighbours_run() {
    let mut house = House::new().await;
    let (runs, run) = counter(Outcome::Done);
    house.kind("noop", run);
    house.enqueue("noop", "fast", "", 1).await;
    let poison = format!(r#"{{"secret": {}1{}}}"#, "[".repeat(200), "]".repeat(200));
    let mut dead = Vec::new();
    for args in [r#"{"secret": 1e400}"#, &poison] {
        let sql = "select job_id from flyball.enqueue('noop', $1::text::jsonb, throttle => 'fast')";
        dead.push(
            sqlx::query_scalar::<_, i64>(sql)
                .bind(args)
                .fetch_one(&house.queue.pool)
                .await
                .unwrap(),
        );
    }
    house.enqueue("noop", "fast", "", 1).await;
    let worker = house.worker(quick()).await;

    house.until_done(2).await;
    for id in &dead {
        house.until(*id, State::Dead).await;
    }

    assert_eq!(runs.load(Ordering::SeqCst), 2);
    for id in dead {
        let job = house.queue.get(id).await.unwrap().unwrap();
        let error = job.summary.last_error.unwrap();
        assert!(
            error.starts_with("args cannot be read: ") && !error.contains("secret"),
            "{error}"
        );
        assert!(
            job.args.as_str().unwrap().starts_with(r#"{"secret": "#),
            "{}",
            job.args
        );
    }
    worker.stop().await;
}

/// Allows one attempt.
struct Once(Arc<AtomicUsize>);

impl Handler for Once {
    fn prepare(&self, _: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        Ok(PreparedJob::new(|_, context: Context| {
            self.0.fetch_add(1, Ordering::SeqCst);
            async move {
                context.cancelled.cancelled().await;
                Outcome::HandedBack
            }
        }))
    }

    fn retry(&self) -> Policy {
        Policy {
            max_attempts: Some(1),
            ..Policy::default()
        }
    }
}

#[tokio::test]
async fn a_lost_attempt_that_was_the_last_of_its_kind_is_not_followed_by_another_unless_a_person_says_so()
 {
    let mut house = House::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    house.kinds.register("once", Once(runs.clone()));
    let id = house.enqueue("once", "fast", "", 1).await[0];
    let doomed = NewWorker {
        name: "w".into(),
        host: "h".into(),
        pid: 1,
        ttl: SOON,
        kinds: vec!["once".into()],
    };
    let doomed = house.queue.register(&doomed).await.unwrap();
    let lane = house.queue.ready_lanes().await.unwrap()[0].lane_id;
    house
        .queue
        .claim(doomed, 1, &[LaneClaim::first(lane, 1)])
        .await
        .unwrap();
    let sql = "update flyball.worker set heartbeat_at = now() - interval '1 hour'";
    sqlx::query(sql).execute(&house.queue.pool).await.unwrap();
    assert_eq!(house.queue.rescue().await.unwrap().ready, [id]);
    let worker = house.worker(quick()).await;

    house.until(id, State::Dead).await;

    assert_eq!(runs.load(Ordering::SeqCst), 0);
    let job = house.queue.get(id).await.unwrap().unwrap();
    assert_eq!(
        job.summary.last_error.as_deref(),
        Some("the worker died during the last attempt")
    );
    house
        .queue
        .retry_signed(id, true, &Attribution::default())
        .await
        .unwrap();
    house.until(id, State::Running).await;
    worker.stop().await;
}

/// Its policy cannot be asked for.
struct Reckless;

impl Handler for Reckless {
    fn prepare(&self, _: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        Ok(PreparedJob::new(|job: Job, _| async move {
            match job.args.as_str() {
                Some("throttled") => Outcome::Throttled {
                    scope: Scope::Key,
                    delay: Some(Duration::MAX),
                    error: "429".into(),
                },
                _ => Outcome::Retry {
                    after: None,
                    error: "boom".into(),
                },
            }
        }))
    }

    fn retry(&self) -> Policy {
        panic!("no policy")
    }
}

#[tokio::test]
async fn a_panic_after_the_handler_has_ended_keeps_neither_permit_nor_lease() {
    let mut house = House::new().await;
    let (_, run) = counter(Outcome::Done);
    house.kind("noop", run);
    house.kinds.register("reckless", Reckless);
    house.enqueue("reckless", "fast", "", 0).await;
    let job = |how: &str, key: &str| NewJob {
        throttle: "fast".into(),
        key: key.into(),
        ..NewJob::new("reckless", json!(how))
    };
    let ids = house
        .queue
        .enqueue(&[job("throttled", "a"), job("fails", "b")])
        .await
        .unwrap();
    let worker = house
        .worker(Config {
            concurrency: 1,
            ..quick()
        })
        .await;

    house.until(ids[1].id, State::Retryable).await;
    eventually("the throttled one has come back", SOON, || async {
        let job = house.queue.get(ids[0].id).await.unwrap().unwrap();
        (job.summary.state == State::Ready && !job.attempts.is_empty()).then_some(())
    })
    .await;

    let failed = house.queue.get(ids[1].id).await.unwrap().unwrap();
    assert!(
        failed
            .summary
            .last_error
            .unwrap()
            .contains("panicked while returning its retry policy")
    );
    // The one permit is free, and so are all those whose ends are not written.
    let good = house.enqueue("noop", "fast", "", 9).await;
    for id in good {
        house.until(id, State::Completed).await;
    }
    worker.stop().await;
}

#[tokio::test]
async fn what_a_handler_has_set_going_hears_that_its_time_is_over() {
    let mut house = House::new().await;
    let told = Arc::new(Notify::new());
    let tell = told.clone();
    house.kind("forks", move |_: Job, context: Context| {
        let tell = tell.clone();
        tokio::spawn(async move {
            context.cancelled.cancelled().await;
            tell.notify_one();
        });
        std::future::pending()
    });
    house.enqueue("forks", "fast", "", 0).await;
    let job = NewJob {
        throttle: "fast".into(),
        timeout_s: Some(0.05),
        ..NewJob::new("forks", json!({}))
    };
    house.queue.enqueue(&[job]).await.unwrap();
    let worker = house.worker(quick()).await;

    let heard = tokio::time::timeout(SOON, told.notified()).await;

    assert!(heard.is_ok());
    worker.stop().await;
}

/// A store that breaks whoever asks it.
struct Broken;

impl Store for Broken {
    fn set_workers(&self, _: u32) {}

    fn acquire<'a>(&'a self, _: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        panic!("a defect")
    }

    fn peek<'a>(&'a self, _: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        unimplemented!()
    }

    fn hold<'a>(
        &'a self,
        _: &'a Name,
        _: &'a Holder,
        _: &'a [(String, u32)],
    ) -> BoxFuture<'a, Result<(), Error>> {
        unimplemented!()
    }

    fn takes_writes(&self) -> BoxFuture<'_, Result<(), Error>> {
        unimplemented!()
    }

    fn search(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        unimplemented!()
    }

    fn persist<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<(), Error>> {
        unimplemented!()
    }

    fn was_taken_away<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        unimplemented!()
    }

    fn refused<'a>(
        &'a self,
        _: &'a Name,
        _: &'a UpstreamRefusal<'a>,
    ) -> BoxFuture<'a, Result<RefusalEffect, Error>> {
        unimplemented!()
    }

    fn ended<'a>(
        &'a self,
        _: &'a Name,
        _: &'a [KeyOutcomes<'a>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        unimplemented!()
    }

    fn refund_many<'a>(
        &'a self,
        _: &'a Name,
        _: &'a [Refund<'a>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        unimplemented!()
    }

    fn settle_many<'a>(
        &'a self,
        _: &'a Name,
        _: &'a [(&'a str, f64)],
    ) -> BoxFuture<'a, Result<(), Error>> {
        unimplemented!()
    }

    fn pause_key<'a>(
        &'a self,
        _: &'a Name,
        _: &'a str,
        _: Duration,
        _: &'a str,
    ) -> BoxFuture<'a, Result<i64, Error>> {
        unimplemented!()
    }

    fn resume_key<'a>(&'a self, _: &'a Name, _: &'a str) -> BoxFuture<'a, Result<bool, Error>> {
        unimplemented!()
    }

    fn status<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<Option<Status>, Error>> {
        unimplemented!()
    }

    fn delete<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        unreachable!("no test deletes a throttle here")
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Error>> {
        unimplemented!()
    }

    fn set_capacity<'a>(
        &'a self,
        _: &'a Name,
        _: Option<f64>,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>> {
        unimplemented!()
    }

    fn look<'a>(
        &'a self,
        _: &'a Name,
        _: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<KeyState>, Error>> {
        unimplemented!()
    }

    fn set<'a>(
        &'a self,
        _: &'a Name,
        _: &'a Change,
    ) -> BoxFuture<'a, Result<(Option<Status>, Status), Error>> {
        unimplemented!()
    }
}

#[tokio::test]
async fn a_worker_whose_loop_dies_of_a_defect_says_so_and_can_be_stopped() {
    let house = House::new().await;
    house.enqueue("noop", "fast", "", 1).await;
    let metrics = WorkerMetrics::register(&mut prometheus_client::registry::Registry::default());
    let worker = Worker::start(
        quick(),
        house.queue.clone(),
        Arc::new(Broken),
        house.kinds.clone(),
        metrics,
    )
    .await
    .unwrap();

    let lost = tokio::time::timeout(SOON, worker.lost()).await.unwrap();

    assert_eq!(lost, "dispatch");
    worker.stop().await;
    assert_eq!(house.queue.live_workers().await.unwrap(), 0);
}

#[tokio::test]
async fn a_job_never_runs_under_the_tokens_of_another_lane_that_has_its_number() {
    let mut house = House::new().await;
    house.turn("slow", &[("rps", "0")]).await;
    let (runs, run) = counter(Outcome::Done);
    house.kind("noop", run);
    house.enqueue("noop", "fast", "a", 1).await;
    let stranger = house.enqueue("noop", "slow", "b", 1).await[0];
    // As if somebody had looked until two lanes had one number.
    for table in ["job", "ready"] {
        let id = if table == "job" { "id" } else { "job_id" };
        let moved = format!(
            "update flyball.{table} set lane_id = flyball.lane_of('fast', 'a') where {id} = $1"
        );
        sqlx::query(sqlx::AssertSqlSafe(moved))
            .bind(stranger)
            .execute(&house.queue.pool)
            .await
            .unwrap();
    }
    let worker = house.worker(quick()).await;

    house.until(stranger, State::Dead).await;
    house.until_done(1).await;

    assert_eq!(runs.load(Ordering::SeqCst), 1);
    let error = house
        .queue
        .get(stranger)
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
async fn work_that_was_handed_over_and_cut_off_goes_the_way_of_its_policy() {
    let mut house = House::new().await;
    let over = |policy: OnAmbiguous| {
        move |job: Job, context: Context| async move {
            context.hand_over(policy);
            match job.key.as_str() {
                "panics" => panic!("as it was told"),
                // Whatever it is told, it goes on.
                _ => std::future::pending().await,
            }
        }
    };
    house.kind("once", over(OnAmbiguous::Dead));
    house.kind("twice", over(OnAmbiguous::Retry));
    let config = Config {
        grace: Duration::from_millis(100),
        ..Config::default()
    };
    let worker = house.worker(config).await;
    let late = |kind: &str| {
        NewJob::new(kind, json!({}))
            .throttle("fast")
            .timeout(Duration::from_millis(200))
    };
    sqlx::query("select flyball.register_kind(k) from unnest(array['once', 'twice']) k")
        .execute(&house.queue.pool)
        .await
        .unwrap();
    let timed_out = house
        .queue
        .enqueue(&[late("once"), late("twice")])
        .await
        .unwrap();
    let panicked = house.enqueue("once", "fast", "panics", 1).await;
    let stopped = [
        house.enqueue("once", "fast", "hangs", 1).await[0],
        house.enqueue("twice", "fast", "hangs", 1).await[0],
    ];
    let state = async |id: i64| house.queue.get(id).await.unwrap().unwrap().summary.state;
    for id in [timed_out[0].id, panicked[0]] {
        eventually("a dead letter", SOON, || async {
            (state(id).await == State::Dead).then_some(())
        })
        .await;
    }
    eventually("another attempt", SOON, || async {
        (state(timed_out[1].id).await != State::Running).then_some(())
    })
    .await;
    assert_ne!(state(timed_out[1].id).await, State::Dead);
    for id in stopped {
        eventually("it runs", SOON, || async {
            (state(id).await == State::Running).then_some(())
        })
        .await;
    }

    worker.stop().await;

    // The one that may be done twice is given back.
    assert_eq!(state(stopped[0]).await, State::Dead);
    assert_eq!(state(stopped[1]).await, State::Ready);
}
