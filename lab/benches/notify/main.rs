//! The throughput of notifications, measured on private servers with a fake provider on the same
//! machine: `make bench-notify`.
//!
//! The worker is a process of its own, `flyball serve --roles runner`; the fake provider is this
//! process. Machines are shared and noisy: compare lines of one run, and if the wall clock and the
//! CPU-seconds disagree, believe the CPU-seconds.

mod breaker;
mod choice;
#[path = "../queue/cpu.rs"]
#[allow(dead_code, reason = "the benchmark of the queue uses all of it")]
mod cpu;
mod few;
mod send;
#[path = "../queue/servers.rs"]
mod servers;
mod shed;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "the benchmarks of the queue use all of it")]
mod support;
mod windows;
#[allow(dead_code, reason = "the benchmark of recipients uses all of it")]
mod world;

use clap::{Parser, ValueEnum};

use support::report::Report;
use support::{machine, report};

/// Measures notifications on private servers and a fake provider.
#[derive(Parser, Debug)]
struct NotifyArgs {
    /// Measure only these parts, separated by commas
    #[arg(long, value_delimiter = ',', value_enum)]
    part: Vec<BenchPart>,
    /// Parts send and free: messages per round
    #[arg(long, default_value_t = 60_000)]
    messages: usize,
    /// Part send: accounts
    #[arg(long, default_value_t = 10)]
    accounts: usize,
    /// Part send: quota of each account, in messages per second
    #[arg(long, default_value_t = 250.0)]
    rps: f64,
    /// Parts send, free and few: rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Concurrent messages of the worker
    #[arg(long, default_value_t = 256)]
    concurrency: usize,
    /// Connections of the worker to Postgres
    #[arg(long, default_value_t = 10)]
    connections: u32,
    /// Milliseconds until the provider answers
    #[arg(long, default_value_t = 20)]
    answer_ms: u64,
    /// Part send: seconds of its rate that an account may save up, instead of the pool's
    /// setting
    #[arg(long)]
    key_burst: Option<f64>,
    /// Part shed: seconds for which accounts are watched
    #[arg(long, default_value_t = 30)]
    shed_s: u64,
    /// Part breaker: worker processes
    #[arg(long, default_value_t = 10)]
    workers: usize,
    /// Part breaker: seconds without answers from an account
    #[arg(long, default_value_t = 60)]
    dead_s: u64,
    #[command(flatten)]
    report: Report,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum BenchPart {
    /// Throughput and cost of accounts with limits, and the adherence to each limit in every second
    Send,
    /// Maximum throughput of one worker through accounts without limits
    Free,
    /// Cost and delay of messages that come one by one
    Few,
    /// Cost of choosing an account
    Choice,
    /// One of ten accounts blocked, with shedding and without
    Shed,
    /// A dead account and ten workers
    Breaker,
}

fn main() -> anyhow::Result<std::process::ExitCode> {
    let cli = NotifyArgs::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let report = cli.report;
    let mut broken = Vec::new();
    runtime.block_on(async {
        let dir = tempfile::tempdir()?;
        {
            let world = world::NotifyServers::start(dir.path()).await?;
            servers::describe(report, &world.queue, dir.path()).await?;
        }
        for part in BenchPart::value_variants()
            .iter()
            .filter(|part| cli.part.is_empty() || cli.part.contains(part))
        {
            match part {
                BenchPart::Send => broken.extend(send::measure(&cli, report, true).await?),
                BenchPart::Free => broken.extend(send::measure(&cli, report, false).await?),
                BenchPart::Few => few::measure(&cli, report).await?,
                BenchPart::Choice => choice::measure(report),
                BenchPart::Shed => broken.extend(shed::measure(&cli, report).await?),
                BenchPart::Breaker => breaker::measure(&cli, report).await?,
            }
        }
        machine::load(report);
        anyhow::Ok(())
    })?;
    for what in &broken {
        report.say(&format!("BROKEN: {what}"));
    }
    Ok(if broken.is_empty() {
        std::process::ExitCode::SUCCESS
    } else {
        std::process::ExitCode::FAILURE
    })
}
