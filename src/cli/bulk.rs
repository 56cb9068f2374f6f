//! Changes of many jobs: counts first, then works batch after batch and reports the progress.

use std::io::IsTerminal as _;

use anyhow::bail;
use futures_util::future::BoxFuture;

use super::exit::{self, CliError};
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
            let walked = match step(walk.clone()).await {
                Ok(walked) => walked,
                Err(error) => return Err(self.broken_off(error, done, jobs + requested)),
            };
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

    /// Returns the error of a batch, with the number of jobs that those before it have changed.
    fn broken_off(&self, error: Error, done: &str, jobs: i64) -> anyhow::Error {
        if jobs == 0 {
            return error.into();
        }
        let part = format!("{} {done}", told(Count { jobs, more: false }));
        broken_off(error, &part, self.limit.is_some())
    }
}

/// Returns the error of a batch behind those that have changed `part`. A command with a limit would
/// change as many more.
pub(super) fn broken_off(error: Error, part: &str, has_limit: bool) -> anyhow::Error {
    let rest = match error.is_unsure() {
        true => "it is not known whether more were",
        false => "the rest was not",
    };
    let part = format!("{part}, {rest}");
    if has_limit {
        let why = exit::message(&error.into());
        return CliError::Partly(format!("{part}: {why}")).into();
    }
    anyhow::Error::new(error).context(part)
}

/// Returns a number of jobs for people, such as `1 job` or `10000+ jobs`.
fn told(count: Count) -> String {
    match (count.jobs, count.more) {
        (1, false) => "1 job".to_owned(),
        _ => format!("{count} jobs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error of a change whose second batch finds no database.
    async fn second_batch_fails(limit: Option<i64>) -> anyhow::Error {
        let bulk = Bulk {
            yes: true,
            dry_run: false,
            limit,
            signed: AuditArgs {
                by: "ann".to_owned(),
                why: String::new(),
                json: true,
            },
        };
        let step = |walk: BulkCursor| -> BoxFuture<'static, Result<BulkResult, Error>> {
            Box::pin(async move {
                match walk.start {
                    None => Ok(BulkResult {
                        jobs: BATCH_JOBS,
                        requested: 0,
                        next: Some("there".to_owned()),
                    }),
                    Some(_) => Err(Error::Lost("nobody answers".to_owned())),
                }
            })
        };
        let count = async { Ok(Count::default()) };
        bulk.run("discarded", count, step).await.unwrap_err()
    }

    #[tokio::test]
    async fn a_change_that_breaks_off_says_what_it_has_changed() {
        let words = "2000 jobs discarded, it is not known whether more were: ";

        let all = second_batch_fails(None).await;
        let some = second_batch_fails(Some(5000)).await;

        for error in [&all, &some] {
            let told = exit::message(error);
            assert!(
                told.starts_with(words) && told.contains("nobody answers"),
                "{told}"
            );
        }
        // A repeat makes the rest, but with a limit as many again.
        assert_eq!(exit::number_of(&all), exit::UNAVAILABLE);
        assert_eq!(exit::number_of(&some), exit::FAILED);
    }
}
