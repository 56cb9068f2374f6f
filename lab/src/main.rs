//! The command `flyball-lab`: the demo of Flyball, and its capacity model.
//!
//! The benchmarks of this package are below `benches`.

mod capacity;
mod demo;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use flyball::cli::exit;
use flyball::config::Settings;

/// The exit code for something that must be installed: EX_UNAVAILABLE of sysexits.h.
const EXIT_UNAVAILABLE: u8 = 69;

/// Commands of the product that the demo and the benchmarks start as processes of their own.
const OF_THE_PRODUCT: [&str; 3] = ["services", "serve", "notify"];

/// The demo of Flyball, and its capacity model.
#[derive(Parser)]
#[command(name = "flyball-lab", version, about, propagate_version = true)]
struct LabArgs {
    /// Settings file; flyball.toml by default, if it exists
    #[arg(long, global = true, env = "FLYBALL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(Box<DemoArgs>),
    Capacity(capacity::CapacityOptions),
    /// The search store of the demo
    #[command(hide = true)]
    DemoStore(demo::StoreOptions),
}

/// Run a demo on a dashboard: a reindex of real documents under a governor, then a message campaign
///
/// Starts a private Postgres, Redis and Prometheus, a search store, the API, workers and the
/// governor; loads 117,659 documents; indexes them through the throttle `reindex`; makes them ten
/// times more expensive to index after a while. Then it sends 20,000 messages over a pool of
/// accounts; blocks one, suspends one, and halves the quota of all. Runs until Ctrl-C, or with
/// --headless for a number of seconds.
///
/// Exit codes: 0 success; 69 a required program is not installed (the output says which); 1 any
/// other failure.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
struct DemoArgs {
    #[command(subcommand)]
    command: Option<DemoCommand>,
    #[command(flatten)]
    options: demo::DemoOptions,
}

#[derive(Subcommand)]
enum DemoCommand {
    /// Draw the chart of a report
    Plot(demo::PlotOptions),
}

fn main() -> ExitCode {
    let first = std::env::args().nth(1);
    if first.is_some_and(|word| OF_THE_PRODUCT.contains(&word.as_str())) {
        return flyball::cli::main();
    }
    match run(LabArgs::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flyball-lab: {}", exit::message(&error));
            let is_missing = error.chain().any(|cause| cause.is::<demo::Unavailable>());
            ExitCode::from(match is_missing {
                true => EXIT_UNAVAILABLE,
                false => exit::number_of(&error),
            })
        }
    }
}

fn run(cli: LabArgs) -> anyhow::Result<()> {
    if let Command::Capacity(options) = &cli.command {
        capacity::print(options);
        return Ok(());
    }
    let settings = Settings::from_env(cli.config.as_deref())?;
    flyball::app::start_logging(&settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let ended = runtime.block_on(async {
        match cli.command {
            Command::Demo(args) => match args.command {
                Some(DemoCommand::Plot(options)) => demo::plot(&options),
                None => demo::run(args.options, settings).await,
            },
            Command::DemoStore(options) => demo::serve(options).await,
            Command::Capacity(_) => unreachable!("printed above"),
        }
    });
    // A handler that does not stop must not keep the process alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}
