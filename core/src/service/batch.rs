//! Batching of small writes: items submitted during one call go with the next.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

/// The limit of submitted items, in batches of the largest size.
const BATCHES_WAITING: usize = 16;

/// The timeout of a call. A longer one hangs, on a silently lost connection for example, and all
/// items would wait behind it.
const LONGEST_CALL: Duration = Duration::from_secs(30);

/// The time in which calls for items that run alone begin. The last of them end before the timeout of
/// the call that makes them, so that the answers of all others are not lost.
const BEGUN_WITHIN: Duration = Duration::from_secs(20);

/// The function that processes a batch of items and returns one result for each, in order.
type BatchFn<T, R> = dyn Fn(Vec<T>) -> BoxFuture<'static, Vec<R>> + Send + Sync;

/// Collects the items that callers submit during one call, and processes them with the next. An
/// item that comes alone is processed alone, at once.
///
/// A caller that goes away while it waits loses only its own answer. Cheap to clone.
pub struct Batcher<T, R> {
    shared: Arc<BatcherShared<T, R>>,
}

struct BatcherShared<T, R> {
    most: usize,
    /// The shortest time from the begin of a call with several items to the begin of the next.
    every: Duration,
    /// The timeout of a call.
    longest: Duration,
    run: Box<BatchFn<T, R>>,
    /// The permits of submitted items; further callers wait for one.
    room: Arc<Semaphore>,
    waiting: Mutex<BatchQueue<T, R>>,
}

impl<T, R> BatcherShared<T, R> {
    fn lock(&self) -> MutexGuard<'_, BatchQueue<T, R>> {
        // No code that runs under the lock leaves it inconsistent.
        self.waiting.lock()
    }
}

struct BatchQueue<T, R> {
    items: VecDeque<Item<T, R>>,
    /// A task is running and checks the queue again before it ends.
    is_running: bool,
}

struct Item<T, R> {
    what: T,
    answer: oneshot::Sender<R>,
    _room: OwnedSemaphorePermit,
}

/// The error of a call that panicked or took too long; it is unknown whether its items were
/// processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the batch ended unexpectedly")]
pub struct BatchBroken;

impl<T: Send + 'static, R: Send + 'static> Batcher<T, R> {
    /// Collects up to `most` items for one call of `run`, which returns one result for each, in
    /// order.
    pub fn new(
        most: usize,
        run: impl Fn(Vec<T>) -> BoxFuture<'static, Vec<R>> + Send + Sync + 'static,
    ) -> Self {
        Self::paced(most, Duration::ZERO, run)
    }

    /// Collects items for calls with a high fixed cost: while items keep coming, a call begins at
    /// least `every` after the previous one, unless `most` items wait. After a call of one item
    /// there is no wait.
    pub fn paced(
        most: usize,
        every: Duration,
        run: impl Fn(Vec<T>) -> BoxFuture<'static, Vec<R>> + Send + Sync + 'static,
    ) -> Self {
        Self::within(LONGEST_CALL, most, every, run)
    }

    fn within(
        longest: Duration,
        most: usize,
        every: Duration,
        run: impl Fn(Vec<T>) -> BoxFuture<'static, Vec<R>> + Send + Sync + 'static,
    ) -> Self {
        let waiting = Mutex::new(BatchQueue {
            items: VecDeque::new(),
            is_running: false,
        });
        let room = Arc::new(Semaphore::new(most * BATCHES_WAITING));
        Self {
            shared: Arc::new(BatcherShared {
                most,
                every,
                longest,
                run: Box::new(run),
                room,
                waiting,
            }),
        }
    }

    /// Submits an item and waits for its result.
    pub async fn submit(&self, what: T) -> Result<R, BatchBroken> {
        let room = self
            .shared
            .room
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| BatchBroken)?;
        let (answer, answered) = oneshot::channel();
        let is_first = {
            let mut waiting = self.shared.lock();
            waiting.items.push_back(Item {
                what,
                answer,
                _room: room,
            });
            !std::mem::replace(&mut waiting.is_running, true)
        };
        if is_first {
            // The batches run in a task of their own, so that the caller that started it may go
            // away.
            let task = BatchTask {
                shared: self.shared.clone(),
                is_over: false,
            };
            tokio::spawn(task.all().boxed());
        }
        answered.await.map_err(|_| BatchBroken)
    }
}

/// Makes calls for the items of one batch, `at_once` at a time, because one of them holds up the batch;
/// returns `None` for those that had to wait too long to begin.
pub async fn in_waves<F: Future>(calls: Vec<F>, at_once: usize) -> Vec<Option<F::Output>> {
    in_waves_until(Instant::now() + BEGUN_WITHIN, calls, at_once).await
}

async fn in_waves_until<F: Future>(
    until: Instant,
    calls: Vec<F>,
    at_once: usize,
) -> Vec<Option<F::Output>> {
    let mut answers = Vec::with_capacity(calls.len());
    let mut calls = calls.into_iter();
    while calls.len() > 0 && Instant::now() < until {
        let wave: Vec<F> = calls.by_ref().take(at_once).collect();
        answers.extend(join_all(wave).await.into_iter().map(Some));
    }
    answers.extend(calls.map(|_| None));
    answers
}

/// The task that processes waiting items. If it panics, every waiting caller gets an error and the
/// next item starts a new task.
struct BatchTask<T, R> {
    shared: Arc<BatcherShared<T, R>>,
    /// The task has cleared `is_running`, so another may run already.
    is_over: bool,
}

impl<T: Send + 'static, R: Send + 'static> BatchTask<T, R> {
    async fn all(mut self) {
        loop {
            let batch: Vec<Item<T, R>> = {
                let mut waiting = self.shared.lock();
                if waiting.items.is_empty() {
                    waiting.is_running = false;
                    self.is_over = true;
                    return;
                }
                let count = waiting.items.len().min(self.shared.most);
                waiting.items.drain(..count).collect()
            };
            let (begun, is_busy) = (Instant::now(), batch.len() > 1);
            let (what, answers): (Vec<_>, Vec<_>) = batch
                .into_iter()
                .map(|item| (item.what, (item.answer, item._room)))
                .unzip();
            // Without results the callers get an error, because their answers are dropped.
            let called = timeout(self.shared.longest, (self.shared.run)(what));
            let results = called.await.unwrap_or_default();
            for ((answer, _room), result) in answers.into_iter().zip(results) {
                // The send fails if the caller has gone away.
                let _ = answer.send(result);
            }
            if is_busy
                && !self.shared.every.is_zero()
                && self.shared.lock().items.len() < self.shared.most
            {
                sleep_until(begun + self.shared.every).await;
            }
        }
    }
}

impl<T, R> Drop for BatchTask<T, R> {
    fn drop(&mut self) {
        if !self.is_over {
            let mut waiting = self.shared.lock();
            waiting.is_running = false;
            waiting.items.clear();
        }
    }
}

impl<T, R> Clone for Batcher<T, R> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<T, R> fmt::Debug for Batcher<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher")
            .field("most", &self.shared.most)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Doubles its numbers, one batch at a time, and records the size of each batch; 13 makes it
    /// panic.
    fn doubling(gate: Arc<Semaphore>) -> (Batcher<u64, u64>, Arc<Mutex<Vec<usize>>>) {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let seen = sizes.clone();
        let batcher = Batcher::new(8, move |items: Vec<u64>| -> BoxFuture<'static, Vec<u64>> {
            seen.lock().push(items.len());
            let gate = gate.clone();
            Box::pin(async move {
                let _pass = gate.acquire_owned().await;
                assert!(!items.contains(&13), "13 was submitted");
                items.into_iter().map(|item| item * 2).collect()
            })
        });
        (batcher, sizes)
    }

    #[tokio::test]
    async fn everybody_gets_his_own_answer_and_what_waits_goes_together() {
        let (batcher, sizes) = doubling(Arc::new(Semaphore::new(1)));

        let all = futures_util::future::join_all((100..400).map(|n| {
            let batcher = batcher.clone();
            async move { (n, batcher.submit(n).await) }
        }));

        for (n, answer) in all.await {
            assert_eq!(answer, Ok(n * 2));
        }
        let sizes = sizes.lock();
        assert_eq!(sizes.iter().sum::<usize>(), 300);
        assert!(
            sizes.iter().all(|size| *size <= 8) && sizes.len() < 60,
            "{sizes:?}"
        );
    }

    #[tokio::test]
    async fn paced_calls_are_few_and_a_single_item_waits_for_nothing() {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let seen = sizes.clone();
        let batcher = Batcher::paced(
            100,
            Duration::from_millis(50),
            move |items: Vec<u64>| -> BoxFuture<'static, Vec<u64>> {
                seen.lock().push(items.len());
                Box::pin(std::future::ready(items))
            },
        );
        for n in 0..3 {
            assert_eq!(batcher.submit(n).await, Ok(n));
        }
        let begun = Instant::now();
        // One comes each millisecond; the first two come together.
        let all = (0..200u64).map(|n| {
            let batcher = batcher.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(n.saturating_sub(1))).await;
                assert_eq!(batcher.submit(n).await, Ok(n));
            }
        });
        futures_util::future::join_all(all).await;
        let sizes = sizes.lock();
        assert_eq!(sizes.iter().sum::<usize>(), 203);
        // One call for each 50 ms of the elapsed time, and those at its two ends.
        let most = 3 + 2 + begun.elapsed().as_millis() as usize / 50;
        assert!(
            sizes.len() <= most,
            "{} calls where {most} are allowed: {sizes:?}",
            sizes.len()
        );
    }

    #[tokio::test]
    async fn one_who_goes_away_takes_nobody_along() {
        let gate = Arc::new(Semaphore::new(0));
        let (batcher, _) = doubling(gate.clone());
        let first = tokio::spawn({
            let batcher = batcher.clone();
            async move { batcher.submit(1).await }
        });
        let second = tokio::spawn({
            let batcher = batcher.clone();
            async move { batcher.submit(2).await }
        });
        tokio::task::yield_now().await;

        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        gate.add_permits(1);

        assert_eq!(second.await.unwrap(), Ok(4));
        assert_eq!(batcher.submit(3).await, Ok(6));
    }

    #[tokio::test]
    async fn a_call_that_hangs_is_given_up_and_what_waits_behind_it_goes_on() {
        // Real time: the call of the item 13 hangs for this long.
        let longest = Duration::from_millis(50);
        let run = |items: Vec<u64>| -> BoxFuture<'static, Vec<u64>> {
            Box::pin(async move {
                if items.contains(&13) {
                    std::future::pending::<()>().await;
                }
                items
            })
        };
        let batcher = Batcher::within(longest, 8, Duration::ZERO, run);
        let behind = async {
            tokio::task::yield_now().await;
            batcher.submit(4).await
        };

        let (hung, behind) = tokio::join!(batcher.submit(13), behind);

        assert_eq!(hung, Err(BatchBroken));
        assert_eq!(behind, Ok(4));
    }

    #[tokio::test]
    async fn calls_that_would_begin_too_late_are_left_out() {
        let calls = || (0..5).map(std::future::ready).collect::<Vec<_>>();

        let begun = in_waves(calls(), 2).await;
        let late = in_waves_until(Instant::now(), calls(), 2).await;

        assert_eq!(begun, (0..5).map(Some).collect::<Vec<_>>());
        assert_eq!(late, vec![None::<i32>; 5]);
    }

    #[tokio::test]
    async fn after_a_sudden_end_the_next_item_begins_anew() {
        let (batcher, _) = doubling(Arc::new(Semaphore::new(1)));

        assert_eq!(batcher.submit(13).await, Err(BatchBroken));

        assert_eq!(batcher.submit(4).await, Ok(8));
    }
}
