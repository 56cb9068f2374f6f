//! A worker in this process, on stores of the test's own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flyball::jobs::{Context, Job, JobFilter, Kinds, NewJob, Outcome, Queue, State};
use flyball::runner::{Config, Worker, WorkerMetrics};
use flyball::throttle::{Change, Name, Store};
use serde_json::json;
use tokio::sync::Notify;

use crate::support::{Database, database, eventually, patient_store, redis_prefix};

pub const SOON: Duration = Duration::from_secs(20);

pub struct House {
    pub database: Database,
    pub queue: Queue,
    pub store: Arc<dyn Store>,
    pub kinds: Kinds,
}

impl House {
    pub async fn new() -> Self {
        let database = database().await;
        let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
        let store: Arc<dyn Store> = Arc::new(patient_store(&redis_prefix()).await);
        let house = Self {
            database: database,
            queue,
            store,
            kinds: Kinds::default(),
        };
        house.turn("fast", &[("rps", "-1")]).await;
        house
    }

    /// Registers the kind `patient`: the first to run goes on until it is told to stop, and says when it has; the next are done.
    pub fn patient_at_first(&mut self) -> Arc<Notify> {
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

    pub async fn turn(&self, throttle: &str, knobs: &[(&str, &str)]) {
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

    pub fn kind<F, R>(&mut self, name: &str, run: F)
    where
        F: Fn(Job, Context) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        self.kinds.register_fn(name, run);
    }

    pub async fn worker(&self, config: Config) -> Worker {
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

    pub async fn enqueue(&self, kind: &str, throttle: &str, key: &str, count: usize) -> Vec<i64> {
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

    pub async fn state(&self, id: i64) -> State {
        self.queue.get(id).await.unwrap().unwrap().summary.state
    }

    pub async fn until(&self, id: i64, state: State) {
        eventually(&format!("job {id} is {state:?}"), SOON, || async {
            (self.state(id).await == state).then_some(())
        })
        .await;
    }

    pub async fn until_done(&self, count: usize) {
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

pub fn quick() -> Config {
    Config {
        concurrency: 16,
        grace: Duration::from_secs(5),
        ..Config::default()
    }
}

/// Counts runs, and answers with `outcome`.
pub fn counter(
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
pub async fn patient(_: Job, context: Context) -> Outcome {
    context.cancelled.cancelled().await;
    Outcome::HandedBack
}
