//! A burst of 10,000 jobs of one key against a server with a fixed window, in the four modes of
//! `on_429`, beside the calculated refusals; then two minutes of work for each of the usual
//! limiters: `make bench-burst`, those alone with `ARGS="--only limiter"`.
//!
//! Jobs of other keys trickle in at the same time, and must start as if there were no burst.

mod server;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "the benchmarks of the queue use all of it")]
mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use flyball::jobs::{Kinds, NewJob, Queue};
use flyball::outbound::{self, HttpHandler};
use flyball::runner::{Config, Worker, WorkerMetrics};
use flyball::stack::{SpawnOptions, spawn};
use flyball::throttle::{Change, Name, RedisStore, Store};
use serde_json::json;
use server::{BURST, Counting, MINUTE, Reports, Rules};
use support::machine;
use support::report::Report;

/// Measures a burst of one key on private servers.
#[derive(Parser, Debug)]
struct BurstArgs {
    /// Jobs of the burst
    #[arg(long, default_value_t = 10_000)]
    jobs: usize,
    /// Requests of one key that the server answers in a second
    #[arg(long, default_value_t = 1_000.0)]
    quota: f64,
    /// Jobs of other keys, one every so many milliseconds
    #[arg(long, default_value_t = 20)]
    trickle_ms: u64,
    /// Measure only the rows whose name contains this text
    #[arg(long)]
    only: Option<String>,
    #[command(flatten)]
    report: Report,
}

/// One row of the table.
struct BurstRow {
    name: String,
    knobs: Vec<(&'static str, String)>,
    rules: Rules,
    /// Jobs of the burst.
    jobs: usize,
    arithmetic: String,
    /// The most refusals that meet the goal.
    goal: Option<u64>,
}

/// The goal for the start of jobs of other keys, in milliseconds, at the 99th percentile.
const GOAL_MS: f64 = 50.0;

/// The goal for the used share of a quota, once it is found.
const GOAL_USED: f64 = 0.9;

fn met(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}

struct ArrivalCounts {
    refused: u64,
    took: Duration,
    /// The share of the available quota used after the first minute; `None` if the work ended
    /// before.
    used: Option<f64>,
    /// The time from enqueue to the server for jobs of other keys, in milliseconds: median and 99th
    /// percentile.
    started_ms: (f64, f64),
}

fn rows(cli: &BurstArgs) -> Vec<BurstRow> {
    let (jobs, quota) = (cli.jobs as f64, cli.quota);
    let windows = (jobs / quota).ceil();
    let with = |mode: &'static str, share: f64| {
        let mut knobs = vec![("on_429", mode.to_owned()), ("key_burst", "0".to_owned())];
        if share > 0.0 {
            knobs.push(("key_rps", format!("{}", quota * share)));
        }
        knobs
    };
    let alone = Rules {
        quota,
        others: 0.0,
        counts: Counting::Fixed,
        reports: Reports::Exactly,
    };
    let half = Rules {
        others: quota / 2.0,
        ..alone
    };
    let row = |name: &str, knobs, rules: Rules, arithmetic: String| {
        let goal = match (
            name.contains("active-informed")
                || name.contains("reported")
                || name.contains("no rate"),
            rules.others > 0.0,
        ) {
            (true, true) => Some(100),
            (true, false) if !name.contains("100 %") => Some(0),
            _ => None,
        };
        BurstRow {
            name: name.to_owned(),
            knobs,
            rules,
            jobs: cli.jobs,
            arithmetic,
            goal,
        }
    };
    // The usual limiters, for two minutes each: the quota is found in the first and used in the
    // second.
    let limiter = |name: &str, quota: f64, others: f64, counts, reports, knobs| {
        let rules = Rules {
            quota,
            others: quota * others,
            counts,
            reports,
        };
        BurstRow {
            name: format!("limiter: {name}"),
            knobs,
            rules,
            jobs: (quota * (1.0 - others) * 2.0 * MINUTE.as_secs_f64()) as usize,
            arithmetic: "0".to_owned(),
            goal: Some(60),
        }
    };
    let known = || vec![("key_rps", "9.8".to_owned()), ("key_burst", "0".to_owned())];
    let limiters = [
        limiter(
            "express, 10/s, reported in seconds",
            10.0,
            0.0,
            Counting::Fixed,
            Reports::RestInSeconds,
            vec![],
        ),
        limiter(
            "express, 10/s, reported in seconds, 9.8 known",
            10.0,
            0.0,
            Counting::Fixed,
            Reports::RestInSeconds,
            known(),
        ),
        limiter(
            "flask, 10/s, reported as unix seconds",
            10.0,
            0.0,
            Counting::Fixed,
            Reports::RestToEpoch,
            vec![],
        ),
        limiter(
            "flask, 10/s, half used by others",
            10.0,
            0.5,
            Counting::Fixed,
            Reports::RestToEpoch,
            known(),
        ),
        limiter(
            "50/s, half used by others, reported in seconds",
            50.0,
            0.5,
            Counting::Fixed,
            Reports::RestInSeconds,
            vec![],
        ),
        limiter(
            "10/s, Retry-After alone",
            10.0,
            0.0,
            Counting::Fixed,
            Reports::RetryAfter,
            vec![],
        ),
        limiter(
            "sliding 10/s, nothing reported",
            10.0,
            0.0,
            Counting::Sliding,
            Reports::Nothing,
            vec![],
        ),
        limiter(
            "leaky 10/s, burst 5, nothing reported",
            10.0,
            0.0,
            Counting::Leaky(5.0),
            Reports::Nothing,
            vec![],
        ),
        limiter(
            "leaky 10/s, no burst, nothing reported",
            10.0,
            0.0,
            Counting::Leaky(1.0),
            Reports::Nothing,
            vec![],
        ),
        limiter(
            "leaky 50/s, burst 20, nothing reported",
            50.0,
            0.0,
            Counting::Leaky(20.0),
            Reports::Nothing,
            vec![],
        ),
    ];
    let mut rows = vec![
        row(
            "passive-naive",
            with("passive-naive", 0.0),
            alone,
            format!("{:.0}", quota * windows * (windows - 1.0) / 2.0),
        ),
        row(
            "passive-informed",
            with("passive-informed", 0.0),
            alone,
            format!("{:.0} x those under way", windows - 1.0),
        ),
        row(
            "active-naive, at 97 % of the quota",
            with("active-naive", 0.97),
            alone,
            "0".to_owned(),
        ),
        row(
            "active-informed, at 97 %",
            with("active-informed", 0.97),
            alone,
            "0".to_owned(),
        ),
        row(
            "active-informed, at 100 %",
            with("active-informed", 1.0),
            alone,
            "0, and what jitter adds".to_owned(),
        ),
        row(
            "active-informed, remaining quota reported",
            with("active-informed", 1.0),
            Rules {
                reports: Reports::Rest,
                ..alone
            },
            "0".to_owned(),
        ),
        row(
            "half used by others: passive-informed",
            with("passive-informed", 0.0),
            half,
            format!("{:.0} x those under way", 2.0 * windows - 1.0),
        ),
        row(
            "half used by others: active-naive",
            with("active-naive", 1.0),
            half,
            format!("about {:.0}", jobs),
        ),
        row(
            "half used by others: active-informed",
            with("active-informed", 1.0),
            half,
            "a pause a period".to_owned(),
        ),
        row(
            "half used by others: no rate known",
            with("active-informed", 0.0),
            half,
            "a pause a period".to_owned(),
        ),
        row(
            "half used by others: remaining quota reported",
            with("active-informed", 0.0),
            Rules {
                reports: Reports::Rest,
                ..half
            },
            "a pause a period".to_owned(),
        ),
    ];
    rows.extend(limiters);
    rows
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = BurstArgs::parse();
    let dir = tempfile::tempdir()?;
    let options = SpawnOptions {
        program: Some(PathBuf::from(env!("CARGO_BIN_EXE_flyball-lab"))),
        ephemeral: true,
        stderr: Some(dir.path().join("services.log")),
        prometheus_url: Some("http://127.0.0.1:9".to_owned()),
        ..SpawnOptions::default()
    };
    let running = spawn(dir.path(), &options)?;
    let queue = Queue::connect(&running.urls.database_url, 6, Duration::from_secs(20)).await?;
    queue.migrate().await?;
    machine::describe(cli.report);
    machine::load(cli.report);
    let title = format!(
        "{} jobs of one key, {} a second allowed, unless a row states otherwise",
        cli.jobs, cli.quota
    );
    let table = cli.report.table(
        &title,
        &[
            "what",
            "refused",
            "arithmetic",
            "took",
            "used after a minute",
            "other keys start after, p50 / p99",
        ],
    );
    for (at, row) in rows(&cli).iter().enumerate() {
        if cli
            .only
            .as_ref()
            .is_some_and(|only| !row.name.contains(only.as_str()))
        {
            continue;
        }
        let store: Arc<dyn Store> = Arc::new(RedisStore::connect(
            &running.urls.redis_url,
            &format!("{at}:"),
        )?);
        let came = burst(&cli, row, &queue, store, at).await?;
        let (p50, p99) = came.started_ms;
        let refused_goal = row.goal.map_or(String::new(), |goal| {
            format!(" (at most {goal}: {})", met(came.refused <= goal))
        });
        let used = came.used.map_or(String::new(), |used| {
            format!("{:.0} % ({})", 100.0 * used, met(used >= GOAL_USED))
        });
        table.row([
            row.name.clone(),
            format!("{}{refused_goal}", came.refused),
            row.arithmetic.clone(),
            format!("{:.1} s", came.took.as_secs_f64()),
            used,
            format!("{p50:.1} / {p99:.1} ms ({})", met(p99 <= GOAL_MS)),
        ]);
    }
    Ok(())
}

async fn burst(
    cli: &BurstArgs,
    row: &BurstRow,
    queue: &Queue,
    store: Arc<dyn Store>,
    at: usize,
) -> anyhow::Result<ArrivalCounts> {
    let throttle = format!("burst{at}");
    let mut fields: BTreeMap<String, Option<String>> = row
        .knobs
        .iter()
        .map(|(knob, text)| ((*knob).to_owned(), Some(text.clone())))
        .collect();
    fields.insert("rps".to_owned(), Some("-1".to_owned()));
    let change = Change {
        fields,
        create: true,
        by: "bench".to_owned(),
        ..Change::default()
    };
    store.set(&Name::new(throttle.as_str())?, &change).await?;
    let (address, seen) = server::start(row.rules).await?;
    let mut kinds = Kinds::default();
    let allowed = outbound::HttpConfig {
        guard: outbound::Guard::open(),
        ..outbound::HttpConfig::default()
    };
    kinds.register("http", HttpHandler::new(allowed)?);
    let job = |key: String| {
        let args = json!({"url": format!("http://{address}/{key}"), "method": "POST"});
        NewJob {
            throttle: throttle.clone(),
            key,
            ..NewJob::new("http", args)
        }
    };
    let jobs = vec![job(BURST.to_owned()); row.jobs];
    for some in jobs.chunks(1000) {
        queue.enqueue(some).await?;
    }
    let metrics = WorkerMetrics::register(&mut prometheus_client::registry::Registry::default());
    let begun = Instant::now();
    let worker = Worker::start(Config::default(), queue.clone(), store, kinds, metrics).await?;
    let (mut sent, mut next) = (Vec::new(), 0);
    let is_over = || seen.lock().expect("a lock").served >= row.jobs as u64;
    while !is_over() && begun.elapsed() < Duration::from_secs(600) {
        let key = format!("other{next}");
        next += 1;
        let now = Instant::now();
        queue.enqueue(&[job(key.clone())]).await?;
        sent.push((key, now));
        tokio::time::sleep(Duration::from_millis(cli.trickle_ms)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    worker.stop().await;
    let seen = seen.lock().expect("a lock");
    let started = |(key, at): &(String, Instant)| {
        Some(seen.trickled.get(key)?.duration_since(*at).as_secs_f64() * 1000.0)
    };
    let mut started: Vec<f64> = sent.iter().filter_map(started).collect();
    anyhow::ensure!(
        started.len() == sent.len(),
        "{} of {} jobs of other keys came",
        started.len(),
        sent.len()
    );
    anyhow::ensure!(
        seen.served >= row.jobs as u64,
        "only {} of {} jobs were answered",
        seen.served,
        row.jobs
    );
    started.sort_by(f64::total_cmp);
    let share = |share: f64| started[((started.len() - 1) as f64 * share) as usize];
    let took = seen.last.unwrap_or(begun).duration_since(begun);
    let later_s = took.saturating_sub(MINUTE).as_secs_f64();
    let to_be_had = (row.rules.quota - row.rules.others) * later_s;
    Ok(ArrivalCounts {
        refused: seen.refused,
        took,
        used: (later_s > 1.0).then(|| seen.served_later as f64 / to_be_had),
        started_ms: (share(0.5), share(0.99)),
    })
}
