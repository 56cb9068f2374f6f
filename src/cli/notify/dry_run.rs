//! `flyball notify dry-run`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use crate::cli::output::say;
use crate::cli::{connect, output, rules_file, when};
use crate::config::Settings;
use crate::recipient::dry_run::{DryRunReport, DryRunRow};
use crate::recipient::replay_log::replay_log;
use crate::recipient::replay_tally::GateCounts;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  flyball notify dry-run --rules new.toml --since 24h
  flyball notify dry-run --rules new.toml --old old.toml --since 7d")]
pub(super) struct Args {
    /// The file of the new rules
    #[arg(long, value_name = "FILE")]
    rules: PathBuf,
    /// The file of the old rules; by default that of the setting recipients_file, or the defaults
    #[arg(long, value_name = "FILE")]
    old: Option<PathBuf>,
    /// The first message: a time such as 2026-11-20T14:00:00Z, or a span before now such as 24h
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = when::ago)]
    since: Timestamp,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The report for programs.
#[derive(Serialize)]
struct Shown<'a> {
    since: Timestamp,
    until: Timestamp,
    /// Messages that cannot be read.
    unreadable: u64,
    #[serde(flatten)]
    report: &'a DryRunReport,
}

pub(super) async fn run(args: &Args, settings: &Settings) -> anyhow::Result<ExitCode> {
    let new = Arc::new(rules_file::read(&args.rules)?);
    let old = match &args.old {
        Some(path) => rules_file::read(path)?,
        None => rules_file::of_settings(settings)?,
    };
    let queue = connect::queue(settings).await?;
    let until = when::now();
    let old = Arc::new(old);
    let (report, unreadable) = replay_log(&queue.pool, args.since, until, old, new).await?;
    if args.json {
        output::json(&Shown {
            since: args.since,
            until,
            unreadable,
            report: &report,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    say!(
        "{} messages since {:.0}, of which {} have another outcome under the new rules",
        report.messages,
        args.since,
        report.changed
    );
    if unreadable > 0 {
        say!("{unreadable} messages or profiles cannot be read");
    }
    print("CATEGORY", &report.categories)?;
    if !report.tenants.is_empty() {
        say!("");
        print("TENANT", &report.tenants)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The number of messages that end otherwise is the last column, because it is rarely of interest.
const COLUMNS: [&str; 10] = [
    "SENT",
    "HELD",
    "COLLECTED",
    "DIGESTS",
    "CAPPED",
    "REFUSED",
    "DUPLICATE",
    "OPTED OUT",
    "QUIET",
    "ENDED",
];

/// Prints two lines for each row: the old rules, and below them the new ones.
fn print(of: &str, rows: &[DryRunRow]) -> anyhow::Result<()> {
    let header = [&[of, "CHANGED", "RULES"][..], &COLUMNS[..]].concat();
    let lines = rows.iter().flat_map(|row| {
        let name = if row.name.is_empty() { "-" } else { &row.name };
        let line = |first: [String; 3], counts: &GateCounts| {
            first.into_iter().chain(cells(counts)).collect::<Vec<_>>()
        };
        [
            line(
                [name.to_owned(), row.changed.to_string(), "old".to_owned()],
                &row.old,
            ),
            line([String::new(), String::new(), "new".to_owned()], &row.new),
        ]
    });
    output::table(&header, lines)
}

fn cells(counts: &GateCounts) -> [String; COLUMNS.len()] {
    [
        counts.sent,
        counts.held,
        counts.collected,
        counts.digests,
        counts.capped,
        counts.refused,
        counts.duplicate,
        counts.opted_out,
        counts.quiet,
        counts.ended,
    ]
    .map(|count| count.to_string())
}
