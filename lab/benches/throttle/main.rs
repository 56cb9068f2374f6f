//! `make bench-throttle`: the performance of throttles, measured on a Redis that this program
//! starts itself.
//!
//! The clients are processes of their own. Every figure is the median of several rounds in one run;
//! cases that are compared take turns in their rounds. Compare lines of one run with each other,
//! not with those of another day.

mod accuracy;
mod child;
mod speed;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "the benchmarks of the queue use all of it")]
mod support;
#[path = "../../../tests/it/support/redis_server.rs"]
#[allow(dead_code, reason = "tests stop and kill it as well")]
mod throttle_redis;
mod world;

use clap::{Parser, Subcommand, ValueEnum};

use support::report::Report;
use support::{machine, report};
use world::ThrottleServer;

/// Measures throttles on a private Redis.
#[derive(Parser, Debug)]
struct ThrottleArgs {
    #[command(subcommand)]
    command: Option<ThrottleProcess>,
    /// Measure only these cases, separated by commas
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<ThrottleCase>,
    /// Rounds per median
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Case speed: seconds per round
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Case speed: client processes
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4])]
    processes: Vec<usize>,
    #[command(flatten)]
    report: Report,
}

#[derive(Subcommand, Debug)]
enum ThrottleProcess {
    /// A client process; started by this program itself
    #[command(hide = true)]
    Child(child::ClientArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum ThrottleCase {
    /// Decisions per second and the cost of each, beside a bare script
    Speed,
    /// Commanded and achieved rates
    Accuracy,
}

fn main() -> anyhow::Result<()> {
    let cli = ThrottleArgs::parse();
    if let Some(ThrottleProcess::Child(args)) = cli.command {
        // One thread, as in a process that is busy with other work.
        return tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(child::run(args));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (world, report) = (ThrottleServer::start()?, cli.report);
        machine::describe(report);
        world.describe(report)?;
        machine::load(report);
        for case in ThrottleCase::value_variants()
            .iter()
            .filter(|case| cli.only.is_empty() || cli.only.contains(case))
        {
            match case {
                ThrottleCase::Speed => speed::measure(&world, &cli, report).await?,
                ThrottleCase::Accuracy => accuracy::measure(&world, report).await?,
            }
        }
        machine::load(report);
        Ok(())
    })
}
