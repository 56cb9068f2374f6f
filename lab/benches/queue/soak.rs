//! A steady load for an hour: nothing that should stay as it is may grow.
//!
//! One worker process with the default settings, this process as the producer, and the server's own
//! checkpoints. Each minute is one line; the summary compares the last quarter with the second one,
//! because tables and caches reach their size in the first.

use std::time::{Duration, Instant};

use anyhow::Context;
use flyball::jobs::NewJob;
use serde_json::json;
use sqlx::Row;
use tokio::time::MissedTickBehavior;

use crate::child::{DEFAULTS, ENQUEUED_AT, now_us};
use crate::cpu::{Cpu, resident_mib};
use crate::fill;
use crate::report::{Report, Table, count, median, quantile};
use crate::run::{Drain, Drainer};
use crate::soak_plot::SoakMinute;
use crate::world::{FAR_ABOVE, QueueServers, THROTTLE, frequent_checkpoints, rare_checkpoints};
use crate::{QueueArgs, soak_plot};

const LANES: u64 = 1_000;

/// Transactions of the producer in each second.
const TICKS_PER_S: u64 = 100;

/// The time of one line.
const MINUTE: Duration = Duration::from_secs(60);

/// The largest growth from the second quarter to the last one.
const GOAL: f64 = 1.1;

/// The sizes of tables, partitions included, and the server's counters.
const SIZES: &str = "
with kept as (
    select t.relid from unnest(array['job', 'attempt']) as n(name)
    cross join lateral pg_partition_tree(format('flyball.%I', n.name)::regclass) t where t.isleaf
)
select
    (select sum(pg_total_relation_size(c.oid)) from pg_class c where c.relnamespace = 'flyball'::regnamespace
        and c.relname = any(array['ready', 'lease', 'scheduled', 'lane', 'wakeup', 'worker']))::float8 as hot,
    (select sum(pg_table_size(k.relid)) from kept k)::float8 as kept,
    (select sum(pg_indexes_size(k.relid)) from kept k)::float8 as kept_indexes,
    (select count(*) from flyball.ready) as waiting,
    (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8 as log,
    (select xact_commit from pg_stat_database where datname = current_database())::float8 as commits";

/// The counters of a moment.
#[derive(Clone, Copy)]
struct Moment {
    at: Instant,
    done: f64,
    cpu: Cpu,
    /// Bytes of the tables of live jobs, of jobs and their history, and of the indexes of those.
    hot: f64,
    kept: f64,
    kept_indexes: f64,
    waiting: i64,
    /// Bytes of the log, and commits, since the server was made.
    log: f64,
    commits: f64,
}

pub async fn measure(world: &QueueServers, cli: &QueueArgs, report: Report) -> anyhow::Result<()> {
    fill::clear(&world.pool).await?;
    frequent_checkpoints(&world.pool).await?;
    world.knobs(THROTTLE, &[("rps", FAR_ABOVE)]).await?;
    let mut worker = [Drain::start(world, DEFAULTS, Drainer::runner(1))?];
    Drain::until_ready(&mut worker, Instant::now() + Duration::from_secs(60)).await?;
    let [mut worker] = worker;
    worker.go().await?;

    let table = report.table(
        &format!(
            "{} jobs a second for {} s, one worker with the default settings",
            count(cli.per_s as f64),
            count(cli.soak_s as f64)
        ),
        &[
            "minute",
            "jobs/s",
            "p50 ms",
            "p99 ms",
            "max ms",
            "waiting",
            "worker MiB",
            "live tables MiB",
            "log B a job",
            "commits a job",
            "PG µs a job",
            "worker µs a job",
        ],
    );
    let producer = tokio::spawn(produce(
        world.queue.clone(),
        cli.per_s,
        Duration::from_secs(cli.soak_s),
    ));
    let first = look(world, &worker).await?;
    let (mut before, mut minutes) = (first, Vec::new());
    while before.at - first.at + MINUTE / 2 < Duration::from_secs(cli.soak_s) {
        let next = first.at + MINUTE * (minutes.len() as u32 + 1);
        tokio::time::sleep_until(next.into()).await;
        let after = look(world, &worker).await?;
        let minute = between(&before, &after, worker.delays().await?, worker.pid);
        line(&table, minutes.len() + 1, &minute);
        minutes.push(minute);
        before = after;
    }
    let enqueued = producer.await??;
    let waited = Instant::now();
    while worker.done() < enqueued && waited.elapsed() < MINUTE {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let done = worker.done();
    worker.stop().await?;
    rare_checkpoints(&world.pool).await?;
    summary(report, &minutes);
    let jobs = before.done - first.done;
    report.say(&format!(
        "{} enqueued, {} done. A job and its history take {:.0} B, and {:.0} B of indexes: {:.1} GB a \
         day at this rate",
        count(enqueued as f64),
        count(done as f64),
        (before.kept - first.kept) / jobs,
        (before.kept_indexes - first.kept_indexes) / jobs,
        (before.kept + before.kept_indexes - first.kept - first.kept_indexes) / jobs
            * cli.per_s as f64
            * 86_400.0
            / 1e9
    ));
    anyhow::ensure!(
        done == enqueued,
        "{enqueued} jobs were enqueued and {done} done"
    );
    if let Some(curve) = &cli.curve {
        let svg = soak_plot::draw(&minutes).map_err(anyhow::Error::msg)?;
        std::fs::write(curve, svg).with_context(|| format!("writing {}", curve.display()))?;
    }
    Ok(())
}

/// Enqueues jobs evenly, and returns their number.
async fn produce(queue: flyball::jobs::Queue, per_s: u64, span: Duration) -> anyhow::Result<u64> {
    let mut tick = tokio::time::interval(Duration::from_secs(1) / TICKS_PER_S as u32);
    // A late producer catches up, so the load is what was asked for.
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let ticks = span.as_secs() * TICKS_PER_S;
    let mut enqueued = 0;
    for n in 1..=ticks {
        tick.tick().await;
        let until = per_s * n / TICKS_PER_S;
        let job = |n: u64| NewJob {
            throttle: THROTTLE.to_owned(),
            key: format!("k{}", n % LANES),
            ..NewJob::new("noop", json!({ "n": n, ENQUEUED_AT: now_us() }))
        };
        let jobs: Vec<NewJob> = (enqueued..until).map(job).collect();
        if !jobs.is_empty() {
            queue.enqueue(&jobs).await?;
        }
        enqueued = until;
    }
    Ok(enqueued)
}

async fn look(world: &QueueServers, worker: &Drain) -> anyhow::Result<Moment> {
    let row = sqlx::query(SIZES).fetch_one(&world.pool).await?;
    Ok(Moment {
        at: Instant::now(),
        done: worker.done() as f64,
        cpu: world.servers.spent(&[worker.pid]),
        hot: row.get("hot"),
        kept: row.get("kept"),
        kept_indexes: row.get("kept_indexes"),
        waiting: row.get("waiting"),
        log: row.get("log"),
        commits: row.get("commits"),
    })
}

fn between(before: &Moment, after: &Moment, delays: [f64; 3], worker: u32) -> SoakMinute {
    let jobs = after.done - before.done;
    let cpu = after.cpu - before.cpu;
    SoakMinute {
        jobs_per_s: jobs / (after.at - before.at).as_secs_f64(),
        p50_ms: delays[0],
        p99_ms: delays[1],
        max_ms: delays[2],
        waiting: after.waiting,
        worker_mib: resident_mib(worker).1,
        hot_mib: after.hot / 1024.0 / 1024.0,
        log_per_job: (after.log - before.log) / jobs,
        commits_per_job: (after.commits - before.commits) / jobs,
        postgres_us: cpu.postgres_s / jobs * 1e6,
        worker_us: cpu.flyball_s / jobs * 1e6,
    }
}

fn line(table: &Table, number: usize, minute: &SoakMinute) {
    table.row([
        number.to_string(),
        count(minute.jobs_per_s),
        format!("{:.2}", minute.p50_ms),
        format!("{:.2}", minute.p99_ms),
        format!("{:.0}", minute.max_ms),
        count(minute.waiting as f64),
        format!("{:.1}", minute.worker_mib),
        format!("{:.1}", minute.hot_mib),
        count(minute.log_per_job),
        format!("{:.3}", minute.commits_per_job),
        format!("{:.0}", minute.postgres_us),
        format!("{:.0}", minute.worker_us),
    ]);
}

/// A figure of each minute.
type Figure = fn(&SoakMinute) -> f64;

/// Prints what must stay as it is: the medians of the second and of the last quarter.
fn summary(report: Report, minutes: &[SoakMinute]) {
    let table = report.table(
        "what must not grow, medians of minutes",
        &["what", "second quarter", "last quarter", "growth"],
    );
    let quarter = (minutes.len() / 4).max(1);
    let second = &minutes[quarter.min(minutes.len() - 1)..(2 * quarter).min(minutes.len()).max(1)];
    let last = &minutes[minutes.len() - quarter..];
    let figures: [(&str, Figure); 6] = [
        ("p50, ms", |minute| minute.p50_ms),
        ("p99, ms", |minute| minute.p99_ms),
        ("worker, MiB", |minute| minute.worker_mib),
        ("live tables, MiB", |minute| minute.hot_mib),
        ("log of a job, B", |minute| minute.log_per_job),
        ("Postgres for a job, µs", |minute| minute.postgres_us),
    ];
    for (name, figure) in figures {
        let (from, to) = (
            median(second.iter().map(figure)),
            median(last.iter().map(figure)),
        );
        let word = if to <= from * GOAL { "met" } else { "missed" };
        table.row([
            name.to_owned(),
            format!("{from:.2}"),
            format!("{to:.2}"),
            format!("{:.2} (≤ {GOAL}: {word})", to / from),
        ]);
    }
    report.say(&format!(
        "the worst minute: p99 {:.2} ms",
        quantile(minutes.iter().map(|minute| minute.p99_ms), 1.0)
    ));
}
