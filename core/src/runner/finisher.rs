//! Writes the ends of attempts in batches, until Postgres has accepted each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{JoinError, JoinSet};

use super::finish_pace::FinishPace;
use super::shared::{Backlog, FinishedRun};
use crate::jobs::postgres::{wants_end, within};
use crate::jobs::{Ending, Finish};

/// Most ends written in one statement.
const MAX_BATCH: usize = 1000;

/// Longest wait for an answer of Postgres; the fence makes a second write harmless.
const FINISH_TIMEOUT: Duration = Duration::from_secs(15);

/// Most batches on their way to Postgres at once.
const WRITERS: usize = 2;

/// Most statements at once with the end of one job for which an open transaction is waited.
const RETRIERS: usize = 2;

/// Pause after a statement that found a job locked.
const LOCKED_PAUSE: Duration = Duration::from_millis(50);

/// Writes ends until every sender is dropped. While Postgres is away, ends are kept and retried.
///
/// An end for which an open transaction must be waited keeps no place of a writer: a few of them
/// would hold up all others for as long as that transaction lasts.
pub(super) async fn finish_all(backlog: Backlog, mut ends: mpsc::Receiver<FinishedRun>) {
    let backlog = Arc::new(backlog);
    let mut writers = JoinSet::new();
    let (places, retriers) = (
        Arc::new(Semaphore::new(WRITERS)),
        Arc::new(Semaphore::new(RETRIERS)),
    );
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
        let place = place_of(&mut writers, &places).await;
        let (backlog, retriers) = (backlog.clone(), retriers.clone());
        let batch = std::mem::take(&mut batch);
        let write = async move {
            let back = lanes_of_returned(&batch);
            let locked = write_all(&backlog, batch).await;
            notify(&backlog, &back);
            drop(place);
            if !locked.is_empty() {
                write_locked(&backlog, locked, &retriers).await;
                notify(&backlog, &back);
            }
        };
        writers.spawn(write.boxed());
    }
    while let Some(ended) = writers.join_next().await {
        note(ended);
    }
}

/// Waits for the place of a writer; `None` never comes, because places are not closed.
async fn place_of(
    writers: &mut JoinSet<()>,
    places: &Arc<Semaphore>,
) -> Option<OwnedSemaphorePermit> {
    loop {
        tokio::select! {
            biased;
            Some(ended) = writers.join_next() => note(ended),
            place = places.clone().acquire_owned() => return place.ok(),
        }
    }
}

/// Notes the end of a writer.
///
/// The ends in a batch whose writer panicked are lost, and their jobs would seem to run for as long
/// as the worker lives. So the loop ends as well, which ends the worker and gives the jobs back.
fn note(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}

fn notify(backlog: &Backlog, back: &[i64]) {
    if !back.is_empty() {
        backlog.notifier.notify(back);
    }
}

/// Returns the lanes to which jobs of a batch return.
fn lanes_of_returned(batch: &[FinishedRun]) -> Vec<i64> {
    batch
        .iter()
        .filter(|end| goes_back(&end.finish.ending))
        .map(|end| end.lane_id)
        .collect()
}

/// Writes a batch, and returns the ends that were not written because one of them is locked.
/// Completed jobs go separately, because there is a faster statement for them.
async fn write_all(backlog: &Backlog, batch: Vec<FinishedRun>) -> Vec<Finish> {
    let (completed, others): (Vec<Finish>, Vec<Finish>) = batch
        .into_iter()
        .map(|end| end.finish)
        .partition(|finish| finish.ending == Ending::Completed);
    let mut locked = write(backlog, &completed).await;
    locked.extend(write(backlog, &others).await);
    locked
}

/// Writes ends one by one, in turn, because open transactions hold what some of them need.
async fn write_locked(backlog: &Backlog, ends: Vec<Finish>, retriers: &Semaphore) {
    tracing::warn!(
        jobs = ends.len(),
        "an open transaction holds what a job result needs; writing them one by one"
    );
    let mut left = VecDeque::from(ends);
    while let Some(finish) = left.pop_front() {
        let locked = {
            let _turn = retriers.acquire().await;
            write(backlog, std::slice::from_ref(&finish)).await
        };
        if !locked.is_empty() {
            left.extend(locked);
            tokio::time::sleep(LOCKED_PAUSE).await;
        }
    }
}

/// Writes a batch, halving it as long as it has a row that Postgres cannot accept. Returns the ends of
/// parts in which one is locked. Any other error is not the fault of the jobs, so the batch is retried.
async fn write(backlog: &Backlog, batch: &[Finish]) -> Vec<Finish> {
    let queue = &backlog.queue;
    let (mut halves, mut locked) = (Vec::new(), Vec::new());
    if !batch.is_empty() {
        halves.push(batch);
    }
    let mut pause = Duration::from_millis(50);
    while let Some(part) = halves.pop() {
        match within(FINISH_TIMEOUT, queue.finish(part)).await {
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
                backlog.wrote(part);
                if backlog.failures.lock().succeeded(Instant::now()) {
                    tracing::info!("job results are written again");
                }
            }
            Err(error) if error.was_locked_out() => {
                tracing::debug!(%error, jobs = part.len(), job.id = part[0].job_id, "a job result is locked");
                locked.extend_from_slice(part);
            }
            Err(error) if !error.blames_a_row() => {
                if backlog.failures.lock().failed(Instant::now()) {
                    let claimed = backlog.unwritten.load(Ordering::Acquire);
                    let jobs = claimed.saturating_sub(backlog.running.len());
                    tracing::warn!(%error, jobs, "writing job results failed; they are kept for a retry");
                } else {
                    tracing::debug!(%error, jobs = part.len(), "writing job results still fails");
                }
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
                let finish = Finish {
                    ending: dead,
                    ..part[0].clone()
                };
                if let Err(error) = within(FINISH_TIMEOUT, queue.finish(&[finish])).await {
                    tracing::error!(job.id = part[0].job_id, %error, "the job stays leased until its worker stops");
                }
                backlog.wrote(part);
            }
        }
    }
    locked
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
        note(writers.join_next().await.unwrap());

        writers.spawn(async { panic!("a defect") });

        let places = Arc::new(Semaphore::new(0));
        let waited = tokio::spawn(async move { place_of(&mut writers, &places).await });
        assert!(waited.await.unwrap_err().is_panic());
    }

    #[tokio::test]
    async fn a_writer_that_waits_for_an_open_transaction_keeps_no_place() {
        let (mut writers, places) = (JoinSet::new(), Arc::new(Semaphore::new(1)));
        let first = place_of(&mut writers, &places).await;
        assert!(first.is_some());
        writers.spawn(async move {
            drop(first);
            std::future::pending::<()>().await;
        });
        assert!(place_of(&mut writers, &places).await.is_some());
    }
}
