//! The lateness beside a crowd that is due in one second: of a critical job of another throttle,
//! and of one with the crowd's priority.
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
use crate::report::{Report, count, median, quantile};
use crate::world::{QueueServers, THROTTLE};

/// The throttle of the crowd, and its rate in jobs per second.
const CROWD: (&str, &str) = ("crowd", "1000");

/// The number of lanes of the crowd.
const LANES: i64 = 1000;

/// The most jobs in one statement.
const PART: i64 = 500_000;

/// The time between the enqueueing of a job and its due time.
const AHEAD: Duration = Duration::from_millis(200);

/// The goal for the 99th percentile of critical jobs, in milliseconds from the due time to the
/// start of the handler.
const GOAL_MS: f64 = 1000.0;

/// The time limit for watching one storm.
const LONGEST: Duration = Duration::from_secs(60);

const FILL: &str = "
with fresh as materialized (
    select flyball.next_id() as id, (n % $3)::text as key, n from generate_series($1, $2 - 1) as g(n)
),
kept as (
    insert into flyball.job (id, lane_id, priority, max_attempts, cost, run_at, kind, throttle, key, args)
    select id, flyball.lane_of($4, key), 1, 10, 1, now(), 'noop', $4, key, '{}' from fresh
)
insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique, turn)
select id, now() + make_interval(secs => n::float8 / $5), flyball.lane_of($4, key), 1, 1, false, false,
    flyball.turn_of($4, 1::smallint, false)
from fresh";

const PROBE: &str = "
select job_id from flyball.enqueue('noop', $1, $2, priority => $3, run_at => clock_timestamp() + make_interval(secs => $4))";

pub async fn measure(world: &QueueServers, cli: &QueueArgs, report: Report) -> anyhow::Result<()> {
    let jobs = if cli.full { 5_000_000 } else { 300_000 };
    let table = report.table(
        &format!(
            "{} jobs due in one second, those of other throttles beside them",
            count(jobs as f64)
        ),
        &[
            "ms from its time to its start",
            "p50",
            "p99",
            "max",
            "moved per s",
        ],
    );
    world.knobs(CROWD.0, &[("rps", CROWD.1)]).await?;
    world.knobs("other", &[("rps", "-1")]).await?;
    for round in 0..cli.rounds() {
        fill::clear(&world.pool).await?;
        let mut from = 0;
        while from < jobs {
            let to = (from + PART).min(jobs);
            sqlx::query(FILL)
                .bind(from)
                .bind(to)
                .bind(LANES)
                .bind(CROWD.0)
                .bind(jobs as f64)
                .execute(&world.pool)
                .await?;
            from = to;
        }
        sqlx::query("vacuum (analyze) flyball.scheduled")
            .execute(&world.pool)
            .await?;
        sqlx::query("checkpoint").execute(&world.pool).await?;
        let (critical, equal, per_s) = once(world).await?;
        for (name, late) in [("critical", critical), ("the crowd's priority", equal)] {
            let p99 = quantile(late.clone(), 0.99);
            let met = if p99 <= GOAL_MS { "met" } else { "missed" };
            table.row([
                format!("{name}, round {}", round + 1),
                format!("{:.0}", median(late.clone())),
                format!("{p99:.0} (≤ {GOAL_MS}: {met})"),
                format!("{:.0}", quantile(late, 1.0)),
                count(per_s),
            ]);
        }
    }
    Ok(())
}

/// Returns the lateness of critical jobs and of jobs with the crowd's priority in milliseconds, and
/// the crowd's jobs promoted per second.
async fn once(world: &QueueServers) -> anyhow::Result<(Vec<f64>, Vec<f64>, f64)> {
    let (sender, mut receiver) = mpsc::unbounded_channel::<(u64, Instant)>();
    let mut kinds = Kinds::default();
    kinds.register_fn("noop", move |job, _| {
        if let Some(n) = job.args["n"].as_u64() {
            let _ = sender.send((n, Instant::now()));
        }
        std::future::ready(Outcome::Done)
    });
    let metrics = WorkerMetrics::register(&mut prometheus_client::registry::Registry::default());
    let config = Config {
        grace: Duration::from_secs(5),
        ..Config::default()
    };
    let queue = Queue::connect(&world.database_url, 10, Duration::from_secs(20)).await?;
    let waiting = || {
        sqlx::query_scalar::<_, i64>("select count(*) from flyball.scheduled")
            .fetch_one(&world.pool)
    };
    let (begun, before) = (Instant::now(), waiting().await?);
    let worker = Worker::start(config, queue, Arc::clone(&world.store), kinds, metrics).await?;
    let mut connection = PgConnection::connect(&world.database_url).await?;
    let mut tick = tokio::time::interval(Duration::from_millis(50));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut due = Vec::new();
    let mut left = before;
    while left > 100 && begun.elapsed() < LONGEST {
        tick.tick().await;
        for (throttle, priority) in [(THROTTLE, 0), ("other", 1)] {
            let probe = sqlx::query(PROBE)
                .bind(json!({ "n": due.len() }))
                .bind(throttle)
                .bind(priority);
            due.push(Instant::now() + AHEAD);
            probe
                .bind(AHEAD.as_secs_f64())
                .fetch_one(&mut connection)
                .await?;
        }
        if due.len() % 40 == 0 {
            left = waiting().await?;
        }
    }
    let per_s = (before - left) as f64 / begun.elapsed().as_secs_f64();
    let mut late = vec![0.0; due.len()];
    for _ in 0..due.len() {
        let (n, at) = tokio::time::timeout(Duration::from_secs(60), receiver.recv())
            .await
            .map_err(|_| anyhow::anyhow!("a job did not start within 60 s"))?
            .ok_or_else(|| anyhow::anyhow!("the worker is gone"))?;
        late[n as usize] = at.saturating_duration_since(due[n as usize]).as_secs_f64() * 1e3;
    }
    worker.stop().await;
    connection.close().await?;
    let of = |which: usize| late.iter().skip(which).step_by(2).copied().collect();
    Ok((of(0), of(1), per_s))
}
