//! Workers in this process, and records of the order in which jobs began.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flyball::jobs::{Context, Job, Kinds, NewJob, Outcome, Queue};
use flyball::runner::{Config, Worker, WorkerMetrics};
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::watch;

use crate::support::fixture::Fixture;
use crate::support::{eventually, patient_store};

pub const SOON: Duration = Duration::from_secs(60);

pub struct FairnessFixture {
    pub kinds: Kinds,
    fixture: Fixture,
}

impl Deref for FairnessFixture {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

impl FairnessFixture {
    pub async fn new() -> Self {
        Self {
            kinds: Kinds::default(),
            fixture: Fixture::new().await,
        }
    }

    /// Starts a worker with its own connections, like a separate process.
    pub async fn worker(&self, config: Config) -> Worker {
        let queue = Queue::connect(self.database.url(), 6, SOON).await.unwrap();
        let store = self
            .refusals
            .of(Arc::new(patient_store(&self.prefix).await));
        let metrics = WorkerMetrics::register(&mut Registry::default());
        Worker::start(config, queue, store, self.kinds.clone(), metrics)
            .await
            .unwrap()
    }

    pub async fn enqueue(&self, throttle: &str, key: &str, priority: i32, count: usize) {
        self.enqueue_as("note", throttle, key, priority, count)
            .await;
    }

    pub async fn enqueue_as(
        &self,
        kind: &str,
        throttle: &str,
        key: &str,
        priority: i32,
        count: usize,
    ) {
        self.register(kind).await;
        let job = NewJob {
            throttle: throttle.into(),
            key: key.into(),
            priority,
            ..NewJob::new(kind, json!({}))
        };
        self.enqueue_many(job, count).await;
    }

    /// Registers a kind whose jobs wait at the gate once begun, and counts the begun ones.
    pub fn gated(&mut self, kind: &str) -> (Arc<AtomicUsize>, watch::Sender<bool>) {
        let (runs, gate) = (Arc::new(AtomicUsize::new(0)), watch::Sender::new(false));
        let (counted, opened) = (runs.clone(), gate.clone());
        self.kinds.register_fn(kind, move |_: Job, _: Context| {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut opened = opened.subscribe();
            async move {
                let _ = opened.wait_for(|open| *open).await;
                Outcome::Done
            }
        });
        (runs, gate)
    }

    /// Registers a kind that records each job as it begins: its key and its priority.
    pub fn note(&mut self) -> Notes {
        let notes = Notes::default();
        let noted = notes.clone();
        self.kinds.register_fn("note", move |job: Job, _| {
            noted
                .0
                .lock()
                .unwrap()
                .push((Instant::now(), job.key, job.priority));
            std::future::ready(Outcome::Done)
        });
        notes
    }
}

#[derive(Clone, Default)]
pub struct Notes(pub Arc<Mutex<Vec<(Instant, String, i32)>>>);

impl Notes {
    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub fn keys(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap()
            .iter()
            .map(|(_, key, _)| key.clone())
            .collect()
    }

    pub async fn reach(&self, count: usize) {
        eventually(&format!("{count} jobs have begun"), SOON * 3, || async {
            (self.len() >= count).then_some(())
        })
        .await;
    }
}

pub async fn until_begun(runs: &AtomicUsize, count: usize) {
    eventually(&format!("{count} jobs have begun"), SOON, || async {
        (runs.load(Ordering::SeqCst) == count).then_some(())
    })
    .await;
}

pub fn config(concurrency: usize) -> Config {
    Config {
        concurrency,
        grace: Duration::from_secs(5),
        ..Config::default()
    }
}
