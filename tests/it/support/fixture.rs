//! The stores of one test, with jobs and workers in this process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flyball::jobs::{Kinds, NewJob, Queue, State};
use flyball::runner::{Config, Worker, WorkerMetrics};
use flyball::throttle::{Change, Name, Store};
use prometheus_client::registry::Registry;

use super::{Database, database, eventually, patient_store, redis_prefix};

const SOON: Duration = Duration::from_secs(60);

/// A database with a queue, and a store of throttles.
pub struct Fixture {
    pub database: Database,
    pub queue: Queue,
    pub store: Arc<dyn Store>,
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
        Self {
            database,
            queue,
            store,
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
    let name = Name::new(throttle).expect("a name");
    store.set(&name, &change).await.expect("the knobs");
}
