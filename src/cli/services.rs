//! `flyball services`: a private Postgres, Redis and Prometheus.

use std::path::PathBuf;
use std::process::ExitCode;

use super::exit;
use super::output::tell;
use crate::stack::Error;
use crate::stack::layout::parse_interval_ms;
use crate::stack::supervise::{self, SupervisorSettings};

/// Run a private Postgres, Redis and Prometheus, for the demo and for tests
///
/// Prints one line of JSON with their URLs when all are ready, and stops them when its standard
/// input closes or on SIGINT or SIGTERM. Data is kept in DIR between runs; logs are in DIR/log.
///
/// Scrape targets can be added while Prometheus runs: write a file_sd file to the directory
/// targets_dir of that line, DIR/prometheus/targets/NAME.json.
///
/// Commands on standard input, one per line: `stop NAME` and `start NAME`, with NAME one of
/// postgres, redis, prometheus.
///
/// Exit codes: 0 success; 69 a required server is not installed (the output says which); 1 any
/// other failure.
#[derive(Clone, Debug, clap::Args)]
pub struct ServicesArgs {
    /// Directory for data, logs and the lock; created if missing.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,

    /// Use this Postgres instead of starting one.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,

    /// Use this Redis instead of starting one.
    #[arg(long, env = "REDIS_URL", hide_env_values = true, value_name = "URL")]
    pub redis_url: Option<String>,

    /// Use this Prometheus instead of starting one.
    #[arg(
        long,
        env = "PROMETHEUS_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub prometheus_url: Option<String>,

    /// Scrape interval of Prometheus: a whole number and ms, s or m.
    #[arg(long, value_name = "INTERVAL", default_value = "5s", value_parser = parse_interval_ms)]
    pub scrape_interval: u64,

    /// Off is faster, but a crash of the machine may lose data; for tests and demos.
    #[arg(long, value_enum, default_value = "on")]
    pub fsync: Switch,

    /// Search the servers only in this directory (repeatable), instead of PATH and the usual
    /// places.
    #[arg(long, value_name = "DIR")]
    pub search_path: Vec<PathBuf>,

    /// Delete the created files in DIR after stopping.
    #[arg(long)]
    pub ephemeral: bool,

    /// Delete the data in DIR and start nothing.
    #[arg(long, conflicts_with = "ephemeral")]
    pub wipe: bool,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

/// Runs the command. Must be called from the main thread, outside any runtime.
pub fn run(args: ServicesArgs) -> anyhow::Result<ExitCode> {
    if args.wipe {
        supervise::wipe(&args.dir)?;
        return Ok(ExitCode::SUCCESS);
    }
    // A variable that is set but empty counts as unset.
    let given = |url: Option<String>| url.filter(|url| !url.trim().is_empty());
    let settings = SupervisorSettings {
        dir: args.dir,
        database_url: given(args.database_url),
        redis_url: given(args.redis_url),
        prometheus_url: given(args.prometheus_url),
        scrape_interval_ms: args.scrape_interval,
        fsync: args.fsync == Switch::On,
        search_path: args.search_path,
        ephemeral: args.ephemeral,
    };
    match supervise::run(&settings) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error @ Error::NotFound { .. }) => {
            tell!("flyball services: {error}");
            Ok(ExitCode::from(exit::UNAVAILABLE))
        }
        Err(error) => Err(error.into()),
    }
}
