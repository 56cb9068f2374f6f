//! Changes of many jobs: counts first, then works batch after batch and reports the progress.

use std::io::IsTerminal as _;

use anyhow::bail;
use futures_util::future::BoxFuture;

use super::exit::CliError;
use super::output;
use super::output::{note, say};
use super::signed::AuditArgs;
use crate::jobs::{BulkCursor, BulkResult, Count, Error};

/// Most jobs in one batch: few enough that no other work waits for it.
const BATCH_JOBS: i64 = 2_000;

#[derive(clap::Args)]
pub(super) struct Bulk {
    /// Apply the change; without this the jobs are only counted
    #[arg(long)]
    yes: bool,
    /// Only count what would be changed, up to 10000
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Stop after this many jobs
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..))]
    limit: Option<i64>,
    #[command(flatten)]
    pub(super) signed: AuditArgs,
}

impl Bulk {
    /// Counts the jobs, or changes them batch after batch; `done` is the participle for the output,
    /// such as `cancelled`.
    pub(super) async fn run<'a>(
        &self,
        done: &str,
        count: impl Future<Output = Result<Count, Error>>,
        mut step: impl FnMut(BulkCursor) -> BoxFuture<'a, Result<BulkResult, Error>>,
    ) -> anyhow::Result<()> {
        if !self.yes {
            let count = count.await?;
            if !self.dry_run {
                bail!(CliError::Refused(format!(
                    "{} would be {done}; add --yes to do it",
                    told(count)
                )));
            } else if self.signed.json {
                return output::json(
                    &serde_json::json!({ "dry_run": true, "jobs": count.jobs, "more": count.more }),
                );
            }
            say!("{} would be {done}", told(count));
            return Ok(());
        }
        let (mut jobs, mut requested) = (0, 0);
        let mut walk = BulkCursor::of(BATCH_JOBS);
        let mut shown = false;
        loop {
            let left = self
                .limit
                .map_or(BATCH_JOBS, |limit| limit - jobs - requested);
            walk.max_jobs = left.min(BATCH_JOBS);
            let walked = step(walk.clone()).await?;
            jobs += walked.jobs;
            requested += walked.requested;
            let full = self.limit.is_some_and(|limit| jobs + requested >= limit);
            let Some(next) = walked.next.filter(|_| !full) else {
                break;
            };
            walk.start = Some(next);
            if std::io::stderr().is_terminal() {
                note(&format!("\r{} jobs {done} so far", jobs + requested));
                shown = true;
            }
        }
        if shown {
            note("\n");
        }
        if self.signed.json {
            return output::json(&serde_json::json!({ "jobs": jobs, "requested": requested }));
        }
        let stopping = if requested > 0 {
            let ones = if requested == 1 { "one" } else { "ones" };
            format!(", {requested} running {ones} asked to stop")
        } else {
            String::new()
        };
        say!("{} {done}{stopping}", told(Count { jobs, more: false }));
        Ok(())
    }
}

/// Returns a number of jobs for people, such as `1 job` or `10000+ jobs`.
fn told(count: Count) -> String {
    match (count.jobs, count.more) {
        (1, false) => "1 job".to_owned(),
        _ => format!("{count} jobs"),
    }
}
