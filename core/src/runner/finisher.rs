//! Writes the ends of attempts in batches, until Postgres has accepted each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::finish_pace::FinishPace;
use super::shared::{Backlog, FinishedRun};
use crate::jobs::postgres::wants_end;
use crate::jobs::{Ending, Error, Finish};

/// Most ends written in one statement.
const MAX_BATCH: usize = 1000;

/// Longest wait for an answer of Postgres.
const FINISH_TIMEOUT: Duration = Duration::from_secs(15);

/// Most batches on their way to Postgres at once.
const WRITERS: usize = 2;

/// Writes ends until every sender is dropped. While Postgres is away, ends are kept and retried.
pub(super) async fn finish_all(backlog: Backlog, mut ends: mpsc::Receiver<FinishedRun>) {
    let backlog = Arc::new(backlog);
    let mut writers = JoinSet::new();
    let mut batch = Vec::with_capacity(MAX_BATCH);
    let mut pace = FinishPace::default();
    while ends.recv_many(&mut batch, MAX_BATCH).await > 0 {
        if batch.len() < MAX_BATCH / 2 {
            let is_needed = backlog.ended.is_awaited()
                || batch
                    .iter()
                    .any(|end| end.finish.ending != Ending::Completed);
            let wait = pace.wait(is_needed, Instant::now());
            // The timer would make even no wait a millisecond.
            if !wait.is_zero() {
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = backlog.room_wanted.notified() => {}
                }
            }
            while batch.len() < MAX_BATCH {
                match ends.try_recv() {
                    Ok(end) => batch.push(end),
                    Err(_) => break,
                }
            }
        }
        pace.record(batch.len(), Instant::now());
        if writers.len() >= WRITERS {
            wait_for_one(&mut writers).await;
        }
        writers.spawn(write_all(backlog.clone(), std::mem::take(&mut batch)));
    }
    while wait_for_one(&mut writers).await {}
}

/// Waits until a batch is written; returns false if none is left.
///
/// The ends in a batch whose writer panicked are lost, and their jobs would seem to run for as long
/// as the worker lives. So the loop ends as well, which ends the worker and gives the jobs back.
async fn wait_for_one(writers: &mut JoinSet<()>) -> bool {
    match writers.join_next().await {
        None => false,
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Some(_) => true,
    }
}

/// Writes a batch. Completed jobs go separately, because there is a faster statement for them.
async fn write_all(backlog: Arc<Backlog>, batch: Vec<FinishedRun>) {
    let back: Vec<i64> = batch
        .iter()
        .filter(|end| goes_back(&end.finish.ending))
        .map(|end| end.lane_id)
        .collect();
    let (completed, others): (Vec<Finish>, Vec<Finish>) = batch
        .into_iter()
        .map(|end| end.finish)
        .partition(|finish| finish.ending == Ending::Completed);
    for part in [completed, others] {
        if !part.is_empty() {
            write(&backlog, &part).await;
            backlog.wrote(&part);
        }
    }
    if !back.is_empty() {
        backlog.notifier.notify(&back);
    }
}

/// Returns an error rather than wait for a connection that hangs; the fence makes a second write
/// harmless.
async fn bounded<T>(text: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let answer = tokio::time::timeout(FINISH_TIMEOUT, text).await;
    answer.unwrap_or_else(|_| {
        Err(Error::Lost(format!(
            "no answer within {} s",
            FINISH_TIMEOUT.as_secs()
        )))
    })
}

/// Writes a batch, halving it as long as it has a row that Postgres cannot accept. Any other error
/// is not the fault of the jobs, so the batch is retried.
async fn write(backlog: &Backlog, batch: &[Finish]) {
    let queue = &backlog.queue;
    let mut halves = vec![batch];
    let mut pause = Duration::from_millis(50);
    while let Some(part) = halves.pop() {
        match bounded(queue.finish(part)).await {
            Ok(kept) => {
                if kept.iter().any(|id| wants_end(*id)) {
                    backlog.members_ended.notify_one();
                }
                backlog.ended.note(&kept);
                let fenced = part.len() - kept.len();
                if fenced > 0 {
                    backlog.metrics.fenced.inc_by(fenced as u64);
                    tracing::warn!(
                        jobs = fenced,
                        "late results were rejected: the leases belong to other workers"
                    );
                }
            }
            Err(error) if error.was_locked_out() && part.len() > 1 => {
                tracing::warn!(%error, jobs = part.len(), "an open transaction holds what a job result needs; writing them one by one");
                halves.extend(part.chunks(1));
            }
            // The others first.
            Err(error) if error.was_locked_out() => {
                tracing::warn!(%error, job.id = part[0].job_id, "an open transaction holds what this job's result needs; it is kept for a retry");
                halves.insert(0, part);
                tokio::time::sleep(pause).await;
            }
            Err(error) if !error.blames_a_row() => {
                tracing::warn!(%error, jobs = part.len(), "writing job results failed; they are kept for a retry");
                halves.push(part);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(2));
            }
            Err(error) if part.len() > 1 => {
                tracing::debug!(%error, jobs = part.len(), "a batch of job results was rejected; halving it");
                let (left, right) = part.split_at(part.len() / 2);
                halves.push(right);
                halves.push(left);
            }
            Err(error) => {
                tracing::error!(job.id = part[0].job_id, %error, "the result of this job was rejected; marking the job dead");
                let dead = Ending::Dead {
                    error: format!("storing its result failed: {error}"),
                };
                if let Err(error) = bounded(queue.finish(&[Finish {
                    ending: dead,
                    ..part[0].clone()
                }]))
                .await
                {
                    tracing::error!(job.id = part[0].job_id, %error, "the job stays leased until its worker stops");
                }
            }
        }
    }
}

/// Returns true if the job is ready again at once.
fn goes_back(ending: &Ending) -> bool {
    matches!(
        ending,
        Ending::Throttled { alone: None, .. } | Ending::HandedBack
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_writer_that_panics_takes_its_loop_along() {
        let mut writers = JoinSet::new();
        writers.spawn(async {});
        assert!(wait_for_one(&mut writers).await);
        assert!(!wait_for_one(&mut writers).await);

        writers.spawn(async { panic!("a defect") });

        let waited = tokio::spawn(async move { wait_for_one(&mut writers).await });
        assert!(waited.await.unwrap_err().is_panic());
    }
}
