//! `flyball dead requeue|discard`.

use std::process::ExitCode;

use anyhow::bail;
use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::bulk::Bulk;
use super::exit::CliError;
use super::given_text::filled;
use super::search_args::{SearchArgs, options};
use super::{connect, when};
use crate::config::Settings;
use crate::jobs::DeadFilter;

/// The filters of this command besides those of a search.
const FILTERS: [&str; 6] = [
    "kind",
    "throttle",
    "key",
    "error_like",
    "died_after",
    "died_before",
];

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Run the dead jobs that match the filters again; at least one filter is required
    Requeue {
        #[command(flatten)]
        filter: DeadFilterArgs,
        /// Keep the count of used attempts; the jobs get the remaining ones, at least one
        #[arg(long)]
        keep_attempts: bool,
        #[command(flatten)]
        bulk: Bulk,
    },
    /// Discard the dead jobs that match the filters permanently; at least one filter is required
    Discard {
        #[command(flatten)]
        filter: DeadFilterArgs,
        #[command(flatten)]
        bulk: Bulk,
    },
}

#[derive(clap::Args)]
pub(super) struct DeadFilterArgs {
    /// Only jobs of this kind
    #[arg(long, value_parser = filled)]
    kind: Option<String>,
    /// Only jobs of this throttle
    #[arg(long, value_parser = filled)]
    throttle: Option<String>,
    /// Only jobs with this key
    #[arg(long)]
    key: Option<String>,
    /// Only jobs whose error matches this pattern: 'timeout%' begins with, '%timeout%' contains,
    /// '%' any text
    #[arg(long, value_name = "PATTERN", value_parser = filled)]
    error_like: Option<String>,
    /// Only jobs that died at or after a time, or within a span before now such as 2h
    #[arg(long, value_name = "TIME", value_parser = when::ago)]
    died_after: Option<Timestamp>,
    /// Only jobs that died before a time, or before a span ago such as 2h
    #[arg(long, value_name = "TIME", value_parser = when::ago)]
    died_before: Option<Timestamp>,
    #[command(flatten)]
    search: SearchArgs,
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = &connect::queue(&settings).await?;
    match command {
        Command::Requeue {
            filter,
            keep_attempts,
            bulk,
        } => {
            let filter = &filter.read(&settings, "requeued")?;
            let signed = &bulk.signed.signature();
            let step = |walk| -> BoxFuture<'_, _> {
                Box::pin(async move {
                    queue
                        .requeue_dead(filter, keep_attempts, &walk, signed)
                        .await
                })
            };
            bulk.run("requeued", queue.count_dead(filter, signed), step)
                .await?;
        }
        Command::Discard { filter, bulk } => {
            let filter = &filter.read(&settings, "discarded")?;
            let signed = &bulk.signed.signature();
            let step = |walk| -> BoxFuture<'_, _> {
                Box::pin(async move { queue.discard_dead(filter, &walk, signed).await })
            };
            bulk.run("discarded", queue.count_dead(filter, signed), step)
                .await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl DeadFilterArgs {
    /// Returns the filter, or refuses that of a tenant alone; `done` is the participle for the
    /// message.
    fn read(self, settings: &Settings, done: &str) -> anyhow::Result<DeadFilter> {
        let Self {
            kind,
            throttle,
            key,
            error_like,
            died_after,
            died_before,
            search,
        } = self;
        let filter = DeadFilter {
            kind,
            throttle,
            key,
            error_like,
            died_after,
            died_before,
            tenant: search.tenant.clone(),
            group: search.group,
            search: search.search(settings),
        };
        let of_a_tenant = DeadFilter {
            tenant: filter.tenant.clone(),
            ..DeadFilter::default()
        };
        if filter.tenant.is_some() && filter == of_a_tenant {
            bail!(CliError::Refused(format!(
                "--tenant alone is not enough; add one or more of {}; nothing was {done}",
                options(&FILTERS)
            )));
        }
        Ok(filter)
    }
}
