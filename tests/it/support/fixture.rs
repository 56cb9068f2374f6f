//! The stores of one test, with jobs and workers in this process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flyball::jobs::{Kinds, NewJob, Queue, State};
use flyball::runner::{Config, Worker, WorkerMetrics};
use flyball::throttle::{Change, Name, Store};
use prometheus_client::registry::Registry;

use super::observed_store::Refusals;
use super::{Database, database, eventually, patient_store, redis_prefix};

const SOON: Duration = Duration::from_secs(60);

/// A database with a queue, and a store of throttles.
pub struct Fixture {
    pub database: Database,
    pub queue: Queue,
    pub store: Arc<dyn Store>,
    /// The asks of workers on `store` that were refused.
    pub refusals: Refusals,
    /// The key prefix in the Redis of this test run.
    pub prefix: String,
}

impl Fixture {
    /// Creates both on the servers of this test run.
    pub async fn new() -> Self {
        let prefix = redis_prefix();
        let store = Arc::new(patient_store(&prefix).await);
        Self {
            prefix,
            ..Self::on(store).await
        }
    }

    /// Creates a database for use with this store.
    pub async fn on(store: Arc<dyn Store>) -> Self {
        let database = database().await;
        let queue = Queue::connect(database.url(), 6, Duration::from_secs(20))
            .await
            .expect("the database");
        let refusals = Refusals::default();
        Self {
            database,
            queue,
            store: refusals.of(store),
            refusals,
            prefix: String::new(),
        }
    }

    /// Sets knobs, and creates the throttle if it does not exist.
    pub async fn turn(&self, throttle: &str, knobs: &[(&str, &str)]) {
        turn(&*self.store, throttle, knobs).await;
    }

    /// Starts a worker with metrics in `registry`.
    pub async fn start(&self, config: Config, kinds: Kinds, registry: &mut Registry) -> Worker {
        let metrics = WorkerMetrics::register(registry);
        let (queue, store) = (self.queue.clone(), self.store.clone());
        Worker::start(config, queue, store, kinds, metrics)
            .await
            .expect("a worker")
    }

    /// Registers a kind in the database, as a worker with that kind does.
    pub async fn register(&self, kind: &str) {
        sqlx::query("select flyball.register_kind($1)")
            .bind(kind)
            .execute(&self.queue.pool)
            .await
            .expect("the kind");
    }

    /// Enqueues a job `count` times and returns the ids.
    pub async fn enqueue_many(&self, job: NewJob, count: usize) -> Vec<i64> {
        let made = self.queue.enqueue(&vec![job; count]).await.expect("jobs");
        made.iter().map(|one| one.id).collect()
    }

    /// Waits until a worker has sent two more heartbeats. It had the answer to the first before it
    /// sent the second.
    pub async fn beats(&self, worker: &Worker) {
        for _ in 0..2 {
            let last = self.heartbeat_s(worker).await;
            eventually("a heartbeat", SOON, || async {
                (self.heartbeat_s(worker).await > last).then_some(())
            })
            .await;
        }
    }

    /// Returns the time of a worker's last heartbeat, in seconds since it registered.
    pub async fn heartbeat_s(&self, worker: &Worker) -> f64 {
        let sql = "select extract(epoch from heartbeat_at - started_at)::float8 from flyball.worker where id = $1";
        sqlx::query_scalar(sql)
            .bind(worker.id())
            .fetch_one(&self.queue.pool)
            .await
            .expect("the worker")
    }

    pub async fn state(&self, id: i64) -> State {
        let detail = self.queue.get(id).await.expect("the queue");
        detail.expect("the job").summary.state
    }

    /// Waits until a job is in this state.
    pub async fn until(&self, id: i64, state: State) {
        eventually(&format!("job {id} is {state:?}"), SOON, || async {
            (self.state(id).await == state).then_some(())
        })
        .await;
    }
}

/// Sets knobs, and creates the throttle if it does not exist.
pub async fn turn(store: &dyn Store, throttle: &str, knobs: &[(&str, &str)]) {
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
    let name = Name::or_pattern(throttle).expect("a name");
    store.set(&name, &change).await.expect("the knobs");
}
