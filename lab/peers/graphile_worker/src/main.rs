//! graphile_worker as a draining process of `make bench-peer`.
//!
//! `fill URL JOBS` installs its schema and replaces its jobs. `drain URL QUEUES` speaks the protocol
//! of the benchmark's own processes: it prints `ready` on standard output, waits for a line on
//! standard input, prints the number of finished jobs every few milliseconds (`n COUNT`), and stops
//! when standard input closes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext,
    WorkerOptions, WorkerUtils,
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

const SCHEMA: &str = "graphile_worker";

/// The jobs of one call that adds them.
const PART: usize = 20_000;

/// The settings of the project's own benchmark of its speed (`benches/perf_test.rs`, 0.14.1).
const CONCURRENCY: usize = 500;
const CONNECTIONS: u32 = 100;
const LOCAL_JOBS: usize = 5_000;
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const COMPLETION_DELAY: Duration = Duration::from_millis(5);

/// A job that does nothing, like those of the benchmark.
#[derive(Deserialize, Serialize)]
struct Noop {
    n: u64,
}

/// The number of jobs that the handler has run.
#[derive(Clone, Debug)]
struct Done(Arc<AtomicU64>);

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(done) = context.get_ext::<Done>() {
            done.0.fetch_add(1, Ordering::Relaxed);
        }
        Ok::<(), String>(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["fill", url, jobs] => fill(url, jobs.parse().context("JOBS is not a number")?).await,
        ["drain", url, queues] => {
            drain(url, queues.parse().context("QUEUES is not a number")?).await
        }
        _ => bail!("usage: peer-graphile-worker fill URL JOBS | drain URL QUEUES"),
    }
}

async fn fill(url: &str, jobs: usize) -> anyhow::Result<()> {
    let pool = connect(url, 1).await?;
    let utils = WorkerUtils::new(pool.clone(), SCHEMA);
    utils.migrate().await?;
    sqlx::query("truncate graphile_worker._private_jobs cascade")
        .execute(&pool)
        .await?;
    let mut from = 0;
    while from < jobs {
        let to = (from + PART).min(jobs);
        let part: Vec<RawJobSpec> = (from..to)
            .map(|n| RawJobSpec {
                identifier: Noop::IDENTIFIER.to_owned(),
                payload: serde_json::json!({ "n": n }),
                spec: JobSpec::default(),
            })
            .collect();
        utils.add_raw_jobs(&part).await?;
        from = to;
    }
    sqlx::query("vacuum (analyze) graphile_worker._private_jobs")
        .execute(&pool)
        .await?;
    Ok(())
}

/// Drains with so many local queues, which share the jobs that are fetched in advance.
async fn drain(url: &str, queues: usize) -> anyhow::Result<()> {
    let done = Done(Arc::default());
    let local = LocalQueueConfig::default()
        .with_size(LOCAL_JOBS / queues)
        .with_queue_count(queues);
    let options = WorkerOptions::default()
        .database(connect(url, CONNECTIONS).await?)
        .schema(SCHEMA)
        .concurrency(CONCURRENCY)
        .poll_interval(POLL_INTERVAL)
        .complete_job_batch_delay(COMPLETION_DELAY)
        .local_queue(local)
        .add_extension(done.clone())
        .define_job::<Noop>();
    let worker = Arc::new(options.init().await?);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    say("ready").await?;
    if lines.next_line().await?.is_none() {
        return Ok(());
    }
    let running = tokio::spawn({
        let worker = Arc::clone(&worker);
        async move { worker.run().await }
    });
    let mut told = 0;
    loop {
        tokio::select! {
            line = lines.next_line() => if line?.is_none() { break },
            () = tokio::time::sleep(Duration::from_millis(5)) => {
                let now = done.0.load(Ordering::Relaxed);
                if now != told {
                    told = now;
                    say(&format!("n {now}")).await?;
                }
            }
        }
    }
    worker.request_shutdown();
    running.await??;
    Ok(())
}

async fn connect(url: &str, connections: u32) -> anyhow::Result<PgPool> {
    let pool = PgPoolOptions::new().max_connections(connections);
    Ok(pool.connect(url).await?)
}

async fn say(line: &str) -> anyhow::Result<()> {
    let mut out = tokio::io::stdout();
    out.write_all(format!("{line}\n").as_bytes()).await?;
    Ok(out.flush().await?)
}
