//! A worker in this process, on its own stores.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flyball::jobs::{Context, Job, JobFilter, Kinds, NewJob, Outcome, State};
use flyball::runner::{Config, Worker};
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::Notify;

use crate::support::eventually;
use crate::support::fixture::Fixture;

pub const SOON: Duration = Duration::from_secs(60);

pub struct WorkerFixture {
    pub kinds: Kinds,
    pub fixture: Fixture,
}

impl Deref for WorkerFixture {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

impl WorkerFixture {
    pub async fn new() -> Self {
        let fixture = Self {
            kinds: Kinds::default(),
            fixture: Fixture::new().await,
        };
        fixture.turn("fast", &[("rps", "-1")]).await;
        fixture
    }

    /// Registers the kind `patient`: the first job runs until cancelled and reports that; later
    /// ones complete at once.
    pub fn patient_at_first(&mut self) -> Arc<Notify> {
        let (starts, stopped) = (AtomicUsize::new(0), Arc::new(Notify::new()));
        let answer = stopped.clone();
        self.kind("patient", move |job: Job, context: Context| {
            let (nth, answer) = (starts.fetch_add(1, Ordering::SeqCst), answer.clone());
            async move {
                if nth > 0 {
                    return Outcome::Done;
                }
                let outcome = patient(job, context).await;
                answer.notify_one();
                outcome
            }
        });
        stopped
    }

    /// Lets Postgres refuse what a trigger sees `when`, such as `before insert on flyball.lease`.
    pub async fn refuse(&self, when: &str, words: &str) {
        let trigger = format!(
            "create function public.refuse() returns trigger language plpgsql as
                $$ begin raise exception '{words}'; end $$;
            create trigger refuse {when} for each row execute function public.refuse()"
        );
        let trigger = sqlx::raw_sql(sqlx::AssertSqlSafe(trigger));
        trigger.execute(self.database.pool()).await.unwrap();
    }

    pub fn kind<F, R>(&mut self, name: &str, run: F)
    where
        F: Fn(Job, Context) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        self.kinds.register_fn(name, run);
    }

    pub async fn worker(&self, config: Config) -> Worker {
        self.start(config, self.kinds.clone(), &mut Registry::default())
            .await
    }

    pub async fn enqueue(&self, kind: &str, throttle: &str, key: &str, count: usize) -> Vec<i64> {
        self.register(kind).await;
        let job = NewJob {
            throttle: throttle.into(),
            key: key.into(),
            ..NewJob::new(kind, json!({}))
        };
        self.enqueue_many(job, count).await
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

/// Returns a handler that counts its runs and returns `outcome`.
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

/// Runs until cancelled, then hands the job back.
pub async fn patient(_: Job, context: Context) -> Outcome {
    context.cancelled.cancelled().await;
    Outcome::HandedBack
}
