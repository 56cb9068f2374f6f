//! The delay until a job starts on an idle system: 100 jobs a second, enqueued one by one.
//!
//! The worker runs in this process, because only then are both times on one clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flyball::jobs::{Kinds, Outcome, Queue};
use flyball::runner::{Config, Worker, WorkerMetrics};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::QueueArgs;
use crate::fill;
use crate::report::{Report, median, quantile};
use crate::world::{FAR_ABOVE, QueueServers, THROTTLE};

const ENQUEUE: &str = "select job_id from flyball.enqueue('noop', $1, $2, $3)";

const PER_S: u64 = 100;

/// The goals for the time from the commit to the start of the handler, in milliseconds: median and
/// 99th percentile.
const GOAL_MS: (f64, f64) = (2.0, 6.0);

pub async fn measure(world: &QueueServers, cli: &QueueArgs, report: Report) -> anyhow::Result<()> {
    let table = report.table(
        "enqueue to start on an idle system, 100 jobs/s one by one",
        &[
            "ms from the return of enqueue",
            "p50",
            "p99",
            "max",
            "from its start p50",
            "p99",
        ],
    );
    let jobs = PER_S * if cli.full { 20 } else { 6 };
    for (rps, name) in [("-1", "free"), (FAR_ABOVE, "finite")] {
        world.knobs(THROTTLE, &[("rps", rps)]).await?;
        let (mut p50s, mut p99s, mut worst) = (Vec::new(), Vec::new(), 0.0_f64);
        for round in 0..cli.rounds() {
            fill::clear(&world.pool).await?;
            let (from_return, from_start) = once(world, jobs).await?;
            let (p50, p99) = (
                median(from_return.clone()),
                quantile(from_return.clone(), 0.99),
            );
            let most = quantile(from_return, 1.0);
            let cells = [
                p50,
                p99,
                most,
                median(from_start.clone()),
                quantile(from_start, 0.99),
            ];
            table.row(
                std::iter::once(format!("{name}, round {}", round + 1))
                    .chain(cells.map(|ms| format!("{ms:.2}"))),
            );
            p50s.push(p50);
            p99s.push(p99);
            worst = worst.max(most);
        }
        let (p50, p99) = (median(p50s), median(p99s));
        let met = |value: f64, goal: f64| {
            format!(
                "{value:.2} (≤ {goal}: {})",
                if value <= goal { "met" } else { "missed" }
            )
        };
        table.row([
            format!("{name}, median of rounds"),
            met(p50, GOAL_MS.0),
            met(p99, GOAL_MS.1),
            format!("{worst:.2}"),
        ]);
    }
    Ok(())
}

/// Returns the milliseconds from the return and from the start of each enqueue to the start of its
/// handler.
async fn once(world: &QueueServers, jobs: u64) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let (sender, mut receiver) = mpsc::unbounded_channel::<(u64, Instant)>();
    let mut kinds = Kinds::default();
    kinds.register_fn("noop", move |job, _| {
        let _ = sender.send((job.args["n"].as_u64().unwrap_or(u64::MAX), Instant::now()));
        std::future::ready(Outcome::Done)
    });
    let metrics = WorkerMetrics::register(&mut prometheus_client::registry::Registry::default());
    let config = Config {
        grace: Duration::from_secs(5),
        ..Config::default()
    };
    let queue = Queue::connect(&world.database_url, 10, Duration::from_secs(20)).await?;
    let worker = Worker::start(config, queue, Arc::clone(&world.store), kinds, metrics).await?;
    let mut connection = PgConnection::connect(&world.database_url).await?;
    // The first second is spent on connections and query plans.
    let warm = PER_S;
    let mut tick = tokio::time::interval(Duration::from_secs(1) / PER_S as u32);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut moments = Vec::with_capacity((warm + jobs) as usize);
    for n in 0..warm + jobs {
        tick.tick().await;
        let begun = Instant::now();
        let statement = sqlx::query(ENQUEUE)
            .bind(json!({ "n": n }))
            .bind(THROTTLE)
            .bind((n % 16).to_string());
        statement.fetch_one(&mut connection).await?;
        moments.push((begun, Instant::now()));
    }
    let mut started = vec![None; moments.len()];
    for _ in 0..moments.len() {
        let (n, at) = tokio::time::timeout(Duration::from_secs(10), receiver.recv())
            .await
            .map_err(|_| anyhow::anyhow!("a job did not start within 10 s"))?
            .ok_or_else(|| anyhow::anyhow!("the worker is gone"))?;
        started[n as usize] = Some(at);
    }
    worker.stop().await;
    connection.close().await?;
    let (mut from_return, mut from_start) = (Vec::new(), Vec::new());
    for ((begun, returned), at) in moments.iter().zip(&started).skip(warm as usize) {
        let Some(at) = at else { continue };
        // A handler may start before the producer has read the answer to its commit, which counts
        // as zero.
        from_return.push(at.saturating_duration_since(*returned).as_secs_f64() * 1e3);
        from_start.push(at.saturating_duration_since(*begun).as_secs_f64() * 1e3);
    }
    Ok((from_return, from_start))
}
