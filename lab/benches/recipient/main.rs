//! The gates of recipients, measured on private servers: `make bench-recipient`.
//!
//! Machines are shared and noisy: compare lines of one run, and if the wall clock and the
//! CPU-seconds disagree, believe the CPU-seconds.

#[path = "../queue/cpu.rs"]
#[allow(dead_code, reason = "the benchmarks of the queue use all of it")]
mod cpu;
mod crowd;
mod digests;
mod dry_run;
mod plans;
#[path = "../queue/servers.rs"]
mod servers;
mod size;
#[path = "../queue/statements.rs"]
mod statements;
mod story;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "the benchmarks of the queue use all of it")]
mod support;
mod watch;
#[path = "../notify/world.rs"]
#[allow(dead_code, reason = "the benchmark of notifications uses all of it")]
mod world;

use clap::{Parser, ValueEnum};
use flyball::jobs::{NewJob, Queue};
use flyball::recipient::live_rules::LiveRules;
use flyball::recipient::rules::RecipientRules;
use flyball::recipient::service::Gates;

use support::report::Report;
use support::{machine, report};

/// Measures the gates of recipients on private servers.
#[derive(Parser, Debug)]
struct RecipientArgs {
    /// Measure only these parts, separated by commas
    #[arg(long, value_delimiter = ',', value_enum)]
    part: Vec<Part>,
    /// Rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Parts plans and digests: messages of each round
    #[arg(long, default_value_t = 100_000)]
    messages: usize,
    /// Parts plans and digests: planners and closers side by side
    #[arg(long, default_value_t = 2)]
    side_by_side: usize,
    /// Part size: recipients, with three sends of one category each
    #[arg(long, default_value_t = 1_000_000)]
    recipients: usize,
    /// Part crowd: messages that become due at one time
    #[arg(long, default_value_t = 1_000_000)]
    crowd: usize,
    /// Part dry-run: messages of the last day
    #[arg(long, default_value_t = 1_000_000)]
    log: usize,
    /// Part story: followers
    #[arg(long, default_value_t = 10_000)]
    followers: usize,
    /// Parts plans and digests: print the slowest statements and the records of the log of each round
    #[arg(long)]
    statements: bool,
    #[command(flatten)]
    report: Report,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Part {
    /// Messages taken through the gates per second, and the log that each writes
    Plans,
    /// Items collected, and digests closed, per second
    Digests,
    /// The disk that the state of recipients takes
    Size,
    /// A critical message beside a crowd that is released
    Crowd,
    /// New rules over the messages of a day
    DryRun,
    /// 47 posts of one creator to all followers
    Story,
}

/// Returns the gates of a queue by these rules.
fn gates(queue: &Queue, rules: &str) -> anyhow::Result<Gates> {
    let rules = RecipientRules::parse("bench.toml", rules)?;
    Ok(Gates::new(queue.clone(), LiveRules::new(rules)))
}

/// Enqueues jobs in bulk.
async fn enqueue(queue: &Queue, jobs: Vec<NewJob>) -> anyhow::Result<()> {
    for some in jobs.chunks(2_000) {
        queue.enqueue(some).await?;
    }
    Ok(())
}

/// Returns the bytes of the log of Postgres so far.
async fn log_bytes(queue: &Queue) -> anyhow::Result<f64> {
    let bytes = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8";
    Ok(sqlx::query_scalar(bytes).fetch_one(&queue.pool).await?)
}

fn main() -> anyhow::Result<()> {
    let cli = RecipientArgs::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let report = cli.report;
    runtime.block_on(async {
        {
            let dir = tempfile::tempdir()?;
            let world = world::NotifyServers::start(dir.path()).await?;
            servers::describe(report, &world.queue, dir.path()).await?;
        }
        for part in Part::value_variants()
            .iter()
            .filter(|part| cli.part.is_empty() || cli.part.contains(part))
        {
            match part {
                Part::Plans => plans::measure(&cli, report).await?,
                Part::Digests => digests::measure(&cli, report).await?,
                Part::Size => size::measure(&cli, report).await?,
                Part::Crowd => crowd::measure(&cli, report).await?,
                Part::DryRun => dry_run::measure(&cli, report).await?,
                Part::Story => story::measure(&cli, report).await?,
            }
            machine::load(report);
        }
        Ok(())
    })
}
