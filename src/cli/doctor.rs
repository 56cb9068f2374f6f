//! `flyball doctor`: checks everything that Flyball stands on, and says what to do.

mod finding;
mod judge;
mod locks;
mod postgres;
mod replica;
mod servers;
mod settings;
mod throttles;
mod work;

use std::process::ExitCode;

use serde_json::json;

use self::finding::{Finding, Findings};
use super::exit;
use super::output::{self, say};
use crate::config::{self, Settings};

/// Check the servers, the schema, the settings and what runs; print each finding and what to do
///
/// Checks the servers, the replica for lists, the schema, the settings, the clocks, the limits, the
/// workers, the housekeeping, the schedules and the signals of governed throttles. Prints one line
/// for each finding, without secrets and addresses; changes nothing. Exits with 1 if a check failed,
/// and with 0 if all are ok or only warn.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the checks with these settings, or reports why they cannot be used.
pub(super) fn run(
    args: &Args,
    settings: Result<Settings, config::Error>,
) -> anyhow::Result<ExitCode> {
    let mut report = Findings::default();
    match settings {
        Err(error) => {
            let todo = "correct the settings; nothing else could be checked";
            for line in error.to_string().lines() {
                report.add(Finding::fail("settings", line, todo));
            }
        }
        Ok(settings) => {
            // What a check meets is its line; the log of the libraries beside it would only repeat it.
            let mut quiet = settings.clone();
            "off,sqlx=off".clone_into(&mut quiet.log);
            crate::app::start_logging(&quiet)?;
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()?;
            runtime.block_on(check(&settings, &mut report));
            runtime.shutdown_timeout(std::time::Duration::from_secs(1));
        }
    }
    print(args, &report)?;
    Ok(match report.failed() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(exit::FAILED),
    })
}

async fn check(settings: &Settings, report: &mut Findings) {
    let files = settings::check(settings, report).await;
    settings::check_limits(settings, report);
    let queue = postgres::check(settings, report).await;
    if let Some(queue) = &queue {
        locks::check(queue, report).await;
    }
    replica::check(settings, queue.as_ref(), report).await;
    let store = servers::check_redis(settings, report).await;
    if let Some(queue) = &queue {
        work::check_workers(settings, queue, report).await;
        work::check_housekeeping(settings, queue, report).await;
        work::check_schedules(queue, report).await;
    }
    if let (Some(queue), Some(store)) = (&queue, &store) {
        let (made_max, limits) = (settings.throttles_created_max, settings.api_limits());
        let expected = (made_max, files.as_slice(), limits.as_slice());
        let prefix = settings.redis_prefix.as_str();
        throttles::check_throttles(queue, store, expected, prefix, report).await;
    }
    servers::check_signals(settings, &files, report).await;
}

fn print(args: &Args, report: &Findings) -> anyhow::Result<()> {
    if args.json {
        return output::json(&json!({
            "failed": report.failed(),
            "warned": report.warned(),
            "checks": report.findings(),
        }));
    }
    for one in report.findings() {
        let todo = match &one.todo {
            Some(todo) => format!("; {todo}"),
            None => String::new(),
        };
        say!(
            "{:<4} {:<10} {}{todo}",
            one.health.as_str(),
            one.check,
            one.seen
        );
    }
    let (failed, warned) = (report.failed(), report.warned());
    match (failed, warned) {
        (0, 0) => say!("everything is ok"),
        _ => say!("{failed} failed, {warned} warned"),
    }
    Ok(())
}
