//! The admission of tenants' messages, measured on private servers: `make bench-admission`.
//!
//! Machines are shared and noisy: compare lines of one run, and if the wall clock and the
//! CPU-seconds disagree, believe the CPU-seconds.

#[path = "../queue/cpu.rs"]
#[allow(dead_code, reason = "the benchmarks of the queue use all of it")]
mod cpu;
mod decide;
mod expand;
mod neighbour;
#[path = "../queue/servers.rs"]
mod servers;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "the benchmarks of the queue use all of it")]
mod support;
mod tenants;
#[path = "../notify/world.rs"]
#[allow(dead_code, reason = "the benchmark of notifications uses all of it")]
mod world;

use clap::{Parser, ValueEnum};

use support::report::Report;
use support::{machine, report};

/// Measures the admission of tenants' messages on private servers and a fake provider.
#[derive(Parser, Debug)]
struct AdmissionArgs {
    /// Measure only these parts, separated by commas
    #[arg(long, value_delimiter = ',', value_enum)]
    part: Vec<Part>,
    /// Rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Parts decide and neighbour: seconds of each measurement
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Part decide: tenants, with two modules each
    #[arg(long, default_value_t = 1_000)]
    tenants: usize,
    /// Part decide: questions in flight
    #[arg(long, default_value_t = 16)]
    in_flight: usize,
    /// Part expand: batches of 500 recipients, twenty of each tenant
    #[arg(long, default_value_t = 400)]
    batches: usize,
    /// Part neighbour: messages per second of the tenant within its limit
    #[arg(long, default_value_t = 50.0)]
    rate: f64,
    /// Part neighbour: the multiple of its limit that the other tenant sends
    #[arg(long, default_value_t = 100.0)]
    times: f64,
    #[command(flatten)]
    report: Report,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Part {
    /// Decisions per second over many tenants, and whole acceptances
    Decide,
    /// Batches accepted, and their recipients expanded in the background
    Expand,
    /// A tenant within its limit beside one far above it
    Neighbour,
}

fn main() -> anyhow::Result<()> {
    let cli = AdmissionArgs::parse();
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
                Part::Decide => decide::measure(&cli, report).await?,
                Part::Expand => expand::measure(&cli, report).await?,
                Part::Neighbour => neighbour::measure(&cli, report).await?,
            }
            machine::load(report);
        }
        Ok(())
    })
}
