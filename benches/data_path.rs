//! What each step of the data path costs, on private servers that this program starts itself: `make bench`.
//!
//! Every figure is the median of several rounds in one run. Machines are shared and noisy: compare rows of one run with
//! each other, not with those of another day.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker};
use flyball::jobs::{Kinds, NewJob, Outcome, Queue};
use flyball::runner::{Config, Metrics, Worker};
use flyball::stack::{Options, spawn};
use flyball::throttle::redis::RedisStore;
use flyball::throttle::{Ask, Change, LaneAsk, Name, Store};
use serde_json::json;

const ROUNDS: usize = 5;

fn main() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let options = Options { program: Some(PathBuf::from(env!("CARGO_BIN_EXE_flyball"))), ephemeral: true, ..Options::default() };
    let servers = spawn(dir.path(), &options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!("{:<58} {:>12}", "step", "per second");
    runtime.block_on(run(&servers.urls.database_url, &servers.urls.redis_url))
}

async fn run(database_url: &str, redis_url: &str) -> anyhow::Result<()> {
    let queue = Queue::connect(database_url, 10, Duration::from_secs(20)).await?;
    queue.migrate().await?;
    sqlx::query("select flyball.register_kind('noop')").execute(&queue.pool).await?;
    let store: Arc<dyn Store> = Arc::new(RedisStore::connect(redis_url, "")?);
    for (name, rps) in [("free", "-1"), ("fast", "1000000")] {
        let fields = BTreeMap::from([("rps".to_owned(), Some(rps.to_owned()))]);
        let change = Change { fields, create: true, by: "bench".into(), ..Change::default() };
        store.set(&Name::new(name)?, &change).await?;
    }
    enqueue(&queue).await?;
    for lanes in [1, 1000] {
        for batch in [1, 10, 100, 500] {
            claim_and_finish(&queue, lanes, batch).await?;
        }
    }
    for lanes in [1, 10, 48] {
        acquire(&*store, lanes).await?;
    }
    for throttle in ["free", "fast"] {
        drain(&queue, &store, throttle).await?;
    }
    Ok(())
}

async fn enqueue(queue: &Queue) -> anyhow::Result<()> {
    let one = [job("free", 0)];
    let bulk = vec![job("free", 0); 1000];
    let mut single = Vec::new();
    let mut many = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for _ in 0..200 {
            queue.enqueue(&one).await?;
        }
        single.push(200.0 / begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        queue.enqueue(&bulk).await?;
        many.push(1000.0 / begun.elapsed().as_secs_f64());
    }
    show("enqueue, one job per statement, one connection", single);
    show("enqueue, 1000 jobs per statement, one connection", many);
    clear(queue).await
}

async fn claim_and_finish(queue: &Queue, lanes: usize, batch: usize) -> anyhow::Result<()> {
    let kinds = vec!["noop".to_owned()];
    let worker = queue
        .register(&NewWorker { name: "bench".into(), host: "bench".into(), pid: 1, ttl: Duration::from_secs(600), kinds })
        .await?;
    let per_round = (batch * 20).min(4000);
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let jobs: Vec<NewJob> = (0..per_round.max(lanes)).map(|n| job("free", n % lanes)).collect();
        for part in jobs.chunks(5000) {
            queue.enqueue(part).await?;
        }
        let ready = queue.ready_lanes().await?;
        let mut place = 0;
        let begun = Instant::now();
        let mut done = 0;
        while done < per_round {
            let asked: Vec<LaneClaim> = match lanes {
                1 => vec![LaneClaim { lane_id: ready[0].lane_id, jobs: batch as i32 }],
                _ => (0..batch).map(|n| LaneClaim { lane_id: ready[(place + n) % ready.len()].lane_id, jobs: 1 }).collect(),
            };
            place += batch;
            let claimed = queue.claim(worker, 7, &asked).await?;
            let ends: Vec<Finish> =
                claimed.iter().map(|one| Finish { job_id: one.job.id, fence: 7, ending: Ending::Completed }).collect();
            done += queue.finish(&ends).await?.len().max(1);
        }
        rates.push(done as f64 / begun.elapsed().as_secs_f64());
        clear(queue).await?;
    }
    show(&format!("claim and finish, {lanes} lanes, batches of {batch}, one client"), rates);
    Ok(())
}

async fn acquire(store: &dyn Store, lanes: usize) -> anyhow::Result<()> {
    let lanes_asked = (0..lanes).map(|n| LaneAsk { key: n.to_string(), want: 1, cost: 1.0 }).collect();
    let ask = Ask { throttle: Name::new("fast")?, lanes: lanes_asked };
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for _ in 0..500 {
            store.acquire(&ask).await;
        }
        rates.push(500.0 / begun.elapsed().as_secs_f64());
    }
    show(&format!("acquire, {lanes} lanes a call, one client (calls)"), rates);
    Ok(())
}

async fn drain(queue: &Queue, store: &Arc<dyn Store>, throttle: &str) -> anyhow::Result<()> {
    const JOBS: usize = 20_000;
    let mut rates = Vec::new();
    for _ in 0..3 {
        let jobs: Vec<NewJob> = (0..JOBS).map(|n| job(throttle, n % 16)).collect();
        for part in jobs.chunks(5000) {
            queue.enqueue(part).await?;
        }
        let done = Arc::new(AtomicUsize::new(0));
        let counted = done.clone();
        let mut kinds = Kinds::default();
        kinds.register_fn("noop", move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Outcome::Done)
        });
        let metrics = Metrics::register(&mut prometheus_client::registry::Registry::default());
        let config = Config { concurrency: 500, ..Config::default() };
        let begun = Instant::now();
        let worker = Worker::start(config, queue.clone(), store.clone(), kinds, metrics).await?;
        while done.load(Ordering::Relaxed) < JOBS {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        rates.push(JOBS as f64 / begun.elapsed().as_secs_f64());
        worker.stop().await;
        clear(queue).await?;
    }
    show(&format!("runner, no-op jobs through throttle {throttle}, 16 lanes"), rates);
    Ok(())
}

fn job(throttle: &str, key: usize) -> NewJob {
    NewJob { throttle: throttle.into(), key: key.to_string(), ..NewJob::new("noop", json!({})) }
}

async fn clear(queue: &Queue) -> anyhow::Result<()> {
    for statement in ["truncate flyball.ready, flyball.lease, flyball.job, flyball.attempt", "analyze flyball.ready"] {
        sqlx::query(statement).execute(&queue.pool).await?;
    }
    Ok(())
}

fn show(step: &str, mut rates: Vec<f64>) {
    rates.sort_by(f64::total_cmp);
    println!("{step:<58} {:>12.0}", rates[rates.len() / 2]);
}
