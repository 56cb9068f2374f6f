//! `make bench-queue`: the performance of the queue, measured on private servers that this program
//! starts itself.
//!
//! Every figure is the median of several rounds in one run. Machines are shared and noisy: compare
//! lines of one run with each other, not with those of another day, and if the wall clock and the
//! CPU-seconds disagree, believe the CPU-seconds.

mod acquire;
mod blocked;
mod child;
mod cpu;
mod drain;
mod enqueue;
mod fill;
mod lists;
mod memory;
mod peer;
mod pinned;
mod pooler;
mod processes;
mod run;
mod servers;
mod soak;
mod soak_plot;
mod statements;
mod storm;
#[path = "../support/mod.rs"]
mod support;
mod trickle;
mod world;

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand, ValueEnum};
use futures_util::FutureExt;

use support::report::Report;
use support::{machine, report};
use world::QueueServers;

/// Measures the queue on private servers.
#[derive(Parser, Debug)]
struct QueueArgs {
    #[command(subcommand)]
    command: Option<QueueProcess>,
    /// Long form: 100,000 lanes and five million waiting jobs; takes about an hour
    #[arg(long)]
    full: bool,
    /// Measure only these cases, separated by commas
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<QueueCase>,
    /// Rounds per median; 3, or 5 in the long form
    #[arg(long)]
    rounds: Option<usize>,
    /// Directory for the servers' data; a new one below the system's temporary directory
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Case drain: jobs per claim
    #[arg(long, value_delimiter = ',')]
    batch: Option<Vec<usize>>,
    /// Case drain: numbers of lanes
    #[arg(long, value_delimiter = ',')]
    lanes: Option<Vec<i64>>,
    /// Case drain: waiting jobs behind the measured ones
    #[arg(long, value_delimiter = ',')]
    backlog: Option<Vec<i64>>,
    /// Case drain: clients of the bare loop
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4])]
    clients: Vec<usize>,
    /// Case drain: drains to measure
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Variant::Floor, Variant::Free, Variant::Finite, Variant::Defaults])]
    variant: Vec<Variant>,
    /// Case drain: concurrent jobs of the runner, in batches
    #[arg(long, default_value_t = 1)]
    in_flight: usize,
    /// Case soak: seconds
    #[arg(long, default_value_t = 3600)]
    soak_s: u64,
    /// Case soak: jobs per second
    #[arg(long, default_value_t = 2000)]
    per_s: u64,
    /// Case soak: the file of the curve, as SVG
    #[arg(long)]
    curve: Option<PathBuf>,
    /// Case peer: the program that drains graphile_worker
    #[arg(long, value_name = "PROGRAM")]
    peer: Option<PathBuf>,
    /// Cases drain and pinned: print the slowest statements after every round
    #[arg(long)]
    statements: bool,
    /// Print every round on standard error
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    report: Report,
}

#[derive(Subcommand, Debug)]
enum QueueProcess {
    /// A process that drains; started by this program itself
    #[command(hide = true)]
    Child(child::DrainArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum QueueCase {
    /// The bare statements and the runner, for batches, lanes and backlogs
    Drain,
    /// Single and bulk enqueue beside bare inserts
    Enqueue,
    /// Delay until a job starts on an idle system
    Trickle,
    /// A crowd due in one second, and the jobs due beside it
    Storm,
    /// Lanes that run beside lanes that are paused or slow
    Blocked,
    /// A drain beside a forgotten reader
    Pinned,
    /// One, two and four worker processes
    Processes,
    /// Memory of a worker process
    Memory,
    /// Lists and depths over HTTP
    Lists,
    /// A worker process behind PgBouncer
    Pooler,
    /// Cost of one request for tokens
    Acquire,
    /// One lane beside graphile_worker; only if it is named
    Peer,
    /// A steady load for an hour; only if it is named
    Soak,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Variant {
    /// The bare statements
    Floor,
    /// The runner with an unlimited throttle
    Free,
    /// The runner with a finite rate that it never reaches
    Finite,
    /// The runner with the default settings and an unlimited throttle
    Defaults,
}

impl QueueArgs {
    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.full { 5 } else { 3 }).max(1)
    }
}

fn main() -> anyhow::Result<()> {
    let cli = QueueArgs::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match cli.command {
        Some(QueueProcess::Child(args)) => runtime.block_on(child::run(args)),
        None => {
            let (dir, _kept) = match &cli.dir {
                Some(dir) => {
                    std::fs::create_dir_all(dir)?;
                    (dir.clone(), None)
                }
                None => {
                    let dir = tempfile::tempdir()?;
                    (dir.path().to_path_buf(), Some(dir))
                }
            };
            runtime.block_on(async {
                let world = QueueServers::start(&dir, cli.statements).await?;
                let report = cli.report;
                servers::describe(report, &world.queue, &dir).await?;
                measure(&world, &cli, report, &dir).await;
                machine::load(report);
                Ok(())
            })
        }
    }
}

/// Runs the cases; a failed case does not stop the others.
async fn measure(world: &QueueServers, cli: &QueueArgs, report: Report, dir: &Path) {
    for case in QueueCase::value_variants() {
        let is_wanted = match cli.only.as_slice() {
            [] => !matches!(case, QueueCase::Peer | QueueCase::Soak),
            only => only.contains(case),
        };
        if !is_wanted {
            continue;
        }
        let measuring = async {
            match case {
                QueueCase::Drain => drain::measure(world, cli, report).await,
                QueueCase::Enqueue => enqueue::measure(world, cli, report).await,
                QueueCase::Trickle => trickle::measure(world, cli, report).await,
                QueueCase::Storm => storm::measure(world, cli, report).await,
                QueueCase::Blocked => blocked::measure(world, cli, report).await,
                QueueCase::Pinned => pinned::measure(world, cli, report).await,
                QueueCase::Processes => processes::measure(world, cli, report).await,
                QueueCase::Memory => memory::measure(world, cli, report).await,
                QueueCase::Lists => lists::measure(world, cli, report, dir).await,
                QueueCase::Pooler => pooler::measure(world, cli, report).await,
                QueueCase::Acquire => acquire::measure(world, cli, report).await,
                QueueCase::Peer => peer::measure(world, cli, report).await,
                QueueCase::Soak => soak::measure(world, cli, report).await,
            }
        };
        match std::panic::AssertUnwindSafe(measuring).catch_unwind().await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => report.say(&format!("case {case:?} failed: {error:#}")),
            Err(_) => report.say(&format!("case {case:?} failed: it panicked")),
        }
    }
}
