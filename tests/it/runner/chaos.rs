//! Stores that fail under load. Each test stops its own servers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flyball::jobs::{Context, Job, Kinds, NewJob, Outcome, Queue};
use flyball::runner::{Config, Worker, WorkerMetrics};
use flyball::stack::{ServerKind, SpawnOptions, spawn};
use flyball::throttle::redis::RedisStore;
use flyball::throttle::{Change, Name, Store};
use serde_json::json;

use crate::support::{PROGRAM, eventually};

#[tokio::test]
async fn no_job_is_lost_or_completed_twice_when_postgres_and_redis_restart_under_load() {
    let dir = tempfile::tempdir().unwrap();
    let options = SpawnOptions {
        program: Some(PROGRAM.clone()),
        fsync: false,
        ..SpawnOptions::default()
    };
    let mut servers = spawn(dir.path(), &options).unwrap();
    let queue = Queue::connect(&servers.urls.database_url, 8, Duration::from_secs(20))
        .await
        .unwrap();
    queue.migrate().await.unwrap();
    let store: Arc<dyn Store> = Arc::new(RedisStore::connect(&servers.urls.redis_url, "").unwrap());
    let fields = BTreeMap::from([("rps".to_owned(), Some("400".to_owned()))]);
    let change = Change {
        fields,
        create: true,
        by: "test".into(),
        ..Change::default()
    };
    store
        .set(&Name::new("load").unwrap(), &change)
        .await
        .unwrap();
    let mut kinds = Kinds::default();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    kinds.register_fn("step", move |_: Job, _: Context| {
        counted.fetch_add(1, Ordering::SeqCst);
        async {
            // Real time: jobs that last a while are running when a server ends.
            tokio::time::sleep(Duration::from_millis(20)).await;
            Outcome::Done
        }
    });
    let metrics = WorkerMetrics::register(&mut prometheus_client::registry::Registry::default());
    let config = Config {
        ttl: Duration::from_secs(10),
        ..Config::default()
    };
    let worker = Worker::start(config, queue.clone(), store.clone(), kinds, metrics)
        .await
        .unwrap();
    let jobs: Vec<NewJob> = (0..2000)
        .map(|n| NewJob {
            throttle: "load".into(),
            key: (n % 7).to_string(),
            ..NewJob::new("step", json!({"n": n}))
        })
        .collect();
    let ids: Vec<i64> = queue
        .enqueue(&jobs)
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();

    for part in [
        ServerKind::Postgres,
        ServerKind::Redis,
        ServerKind::Postgres,
    ] {
        let before = runs.load(Ordering::SeqCst);
        eventually("work is under way", Duration::from_secs(30), || async {
            (runs.load(Ordering::SeqCst) > before + 50).then_some(())
        })
        .await;
        servers.stop(part).unwrap();
        // Real time: the server is away for longer than a call waits for it.
        tokio::time::sleep(Duration::from_millis(700)).await;
        servers.start(part).unwrap();
    }

    eventually("every job has ended", Duration::from_secs(60), || async {
        let waiting: Result<i64, _> = sqlx::query_scalar(
            "select (select count(*) from flyball.ready) + (select count(*) from flyball.lease)
                + (select count(*) from flyball.scheduled) + (select count(*) from flyball.dead)",
        )
        .fetch_one(&queue.pool)
        .await;
        (waiting.ok()? == 0).then_some(())
    })
    .await;
    let completed: Vec<i64> = sqlx::query_scalar(
        "select job_id from flyball.attempt where outcome = 'completed' order by job_id",
    )
    .fetch_all(&queue.pool)
    .await
    .unwrap();
    let mut wanted = ids;
    wanted.sort_unstable();
    assert_eq!(completed, wanted, "each job is completed, and each once");
    worker.stop().await;
}
