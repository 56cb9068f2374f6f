//! `make bench-throttle`: the performance of throttles, measured on a Redis that this program
//! starts itself.
//!
//! The clients are processes of their own. Every figure is the median of several rounds in one run;
//! cases that are compared take turns in their rounds. Compare lines of one run with each other,
//! not with those of another day.

mod accuracy;
mod child;
mod machine;
#[path = "../queue/report.rs"]
#[allow(dead_code, reason = "the benchmarks of the queue use all of it")]
mod report;
mod speed;
#[path = "../../../tests/it/support/redis_server.rs"]
#[allow(dead_code, reason = "tests stop and kill it as well")]
mod throttle_redis;
mod world;

use clap::{Parser, Subcommand, ValueEnum};

use report::Report;
use world::World;

/// Measures throttles on a private Redis.
#[derive(Parser, Debug)]
struct Cli {
    #[command(subcommand)]
    command: Option<Hidden>,
    /// Measure only these cases, separated by commas
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Case>,
    /// Rounds per median
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Case speed: seconds per round
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Case speed: client processes
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4])]
    processes: Vec<usize>,
    /// Print markdown
    #[arg(long)]
    markdown: bool,
    /// Passed by cargo and ignored
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Subcommand, Debug)]
enum Hidden {
    /// A client process; started by this program itself
    #[command(hide = true)]
    Child(child::ChildArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Case {
    /// Decisions per second and the cost of each, beside a bare script
    Speed,
    /// Commanded and achieved rates
    Accuracy,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    if let Some(Hidden::Child(args)) = cli.command {
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
        let (world, report) = (
            World::start()?,
            Report {
                markdown: cli.markdown,
            },
        );
        machine::describe(report, &world)?;
        for case in Case::value_variants()
            .iter()
            .filter(|case| cli.only.is_empty() || cli.only.contains(case))
        {
            match case {
                Case::Speed => speed::measure(&world, &cli, report).await?,
                Case::Accuracy => accuracy::measure(&world, report).await?,
            }
        }
        machine::load(report);
        Ok(())
    })
}
