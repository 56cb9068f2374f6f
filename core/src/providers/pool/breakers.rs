//! The breakers of a pool, shared by all workers: notes beside the accounts' throttle, changed by
//! compare-and-set.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::breaker::{Breaker, BreakerSettings, BreakerState, Change};
use crate::throttle::{Error, Name, Notes};

/// The pauses before each attempt at a report to the store, which may be slow for a moment.
pub(super) const STORE_RETRY_PAUSES: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(20),
    Duration::from_millis(200),
];

/// The number of attempts at a change that conflicts with others.
const MAX_CONFLICT_RETRIES: u32 = 20;

/// The decision on a message that may be an account's probe.
#[derive(Clone, Debug, PartialEq)]
pub enum ProbeDecision {
    /// The message is sent; the change of the breaker, if any.
    Goes(Option<Change>),
    /// The message has failed at this account, so another one must probe.
    Another,
}

/// The breakers of one pool as this process last saw them, and their shared store.
pub struct Breakers {
    notes: Arc<dyn Notes>,
    throttle: Name,
    law: BreakerSettings,
    seen: Mutex<BTreeMap<String, Breaker>>,
    /// The successes of each account since this process last reported a failure, and the start of
    /// the count.
    successes: Mutex<BTreeMap<String, (u64, Instant)>>,
}

impl Breakers {
    /// Creates the breakers whose notes are stored beside `throttle`.
    pub fn new(notes: Arc<dyn Notes>, throttle: Name, law: BreakerSettings) -> Self {
        Self {
            notes,
            throttle,
            law,
            seen: Mutex::default(),
            successes: Mutex::default(),
        }
    }

    /// Returns the thresholds and times of the breakers.
    pub fn law(&self) -> &BreakerSettings {
        &self.law
    }

    /// Returns the account's breaker as last seen.
    pub fn seen(&self, account: &str) -> Breaker {
        locked(&self.seen).get(account).cloned().unwrap_or_default()
    }

    /// Reads all breakers again; returns the store's clock, in unix milliseconds.
    pub async fn refresh(&self) -> Result<i64, Error> {
        let noted = self.notes.read(&self.throttle).await?;
        let read = noted
            .notes
            .into_iter()
            .map(|(account, note)| (account, parse(&note)));
        *locked(&self.seen) = read.collect();
        Ok(noted.now_ms)
    }

    /// Records a failure of a message at the account.
    pub async fn failed(
        &self,
        account: &str,
        message: i64,
        why: &str,
    ) -> Result<Option<Change>, Error> {
        let counted = locked(&self.successes).remove(account);
        let (successes, over_ms) = counted.map_or((0, 0), |(successes, since)| {
            (successes, since.elapsed().as_millis() as i64)
        });
        self.change(account, |breaker, now| {
            breaker.failed(
                now,
                &self.law,
                breaker.of_window(now, &self.law, successes, over_ms),
                message,
                why,
            )
        })
        .await
    }

    /// Records a refusal of the account itself.
    pub async fn account_failed(
        &self,
        account: &str,
        message: i64,
        why: &str,
    ) -> Result<Option<Change>, Error> {
        self.change(account, |breaker, now| {
            breaker.account_failed(now, &self.law, message, why)
        })
        .await
    }

    /// Records that a message is about to be sent as the account's probe; makes no change if the
    /// breaker is closed or already has its probe.
    pub async fn probed(&self, account: &str, message: i64) -> Result<ProbeDecision, Error> {
        let lets = AtomicBool::new(true);
        let change = self.change(account, |breaker, now| {
            lets.store(breaker.lets(now, &self.law, message), Ordering::Relaxed);
            if lets.load(Ordering::Relaxed) {
                breaker.probed(now)
            } else {
                breaker.clone()
            }
        });
        let change = change.await?;
        Ok(if lets.into_inner() {
            ProbeDecision::Goes(change)
        } else {
            ProbeDecision::Another
        })
    }

    /// Closes the breaker at the request of a person.
    pub async fn close(&self, account: &str) -> Result<Option<Change>, Error> {
        self.change(account, |breaker, now| match breaker.state {
            BreakerState::Closed => breaker.clone(),
            BreakerState::Open | BreakerState::HalfOpen => Breaker {
                changed_at_ms: now,
                window_from_ms: now,
                ..Breaker::default()
            },
        })
        .await
    }

    /// Records a success. Writes nothing to the store if nothing is known against the account,
    /// which is the usual case.
    pub async fn succeeded(&self, account: &str, message: i64) -> Result<Option<Change>, Error> {
        if self.is_trusted(account) {
            locked(&self.successes)
                .entry(account.to_owned())
                .or_insert_with(|| (0, Instant::now()))
                .0 += 1;
            return Ok(None);
        }
        self.change(account, |breaker, now| breaker.succeeded(now, message))
            .await
    }

    /// Returns true if nothing is known against the account.
    fn is_trusted(&self, account: &str) -> bool {
        locked(&self.seen).get(account).is_none_or(|breaker| {
            breaker.state == BreakerState::Closed && breaker.against.is_empty()
        })
    }

    /// Changes a breaker for all workers; returns the change if others should hear of it.
    ///
    /// If the store does not answer, the change is made again after a pause, unless the note shows
    /// that it was made: nobody else would tell of it.
    async fn change(
        &self,
        account: &str,
        step: impl Fn(&Breaker, i64) -> Breaker,
    ) -> Result<Option<Change>, Error> {
        let mut unanswered = None;
        let mut last = Ok(None);
        for pause in STORE_RETRY_PAUSES {
            tokio::time::sleep(pause).await;
            last = self.try_change(account, &step, &mut unanswered).await;
            if last.is_ok() {
                break;
            }
        }
        last
    }

    async fn try_change(
        &self,
        account: &str,
        step: impl Fn(&Breaker, i64) -> Breaker,
        unanswered: &mut Option<UnansweredSwap>,
    ) -> Result<Option<Change>, Error> {
        for _ in 0..MAX_CONFLICT_RETRIES {
            let noted = self.notes.read(&self.throttle).await?;
            let note = noted.notes.get(account);
            let before = note.map(|note| parse(note)).unwrap_or_default();
            if let Some(swap) = unanswered.take()
                && note == Some(&swap.text)
            {
                locked(&self.seen).insert(account.to_owned(), before);
                return Ok(swap.change);
            }
            let after = step(&before, noted.now_ms);
            if after == before {
                locked(&self.seen).insert(account.to_owned(), after);
                return Ok(None);
            }
            let text = serde_json::to_string(&after).unwrap_or_default();
            let change = reported(account, &before, &after, noted.now_ms);
            *unanswered = Some(UnansweredSwap {
                text: text.clone(),
                change: change.clone(),
            });
            if self
                .notes
                .swap(&self.throttle, account, note.map(String::as_str), &text)
                .await?
            {
                locked(&self.seen).insert(account.to_owned(), after);
                return Ok(change);
            }
            *unanswered = None;
        }
        Err(Error::Lost(
            "the breaker kept changing concurrently".to_owned(),
        ))
    }
}

/// A swap that the store may have made without an answer.
struct UnansweredSwap {
    text: String,
    change: Option<Change>,
}

/// Returns the change if others should hear of it: one of the state, or a new cooldown after a
/// failed probe.
fn reported(account: &str, before: &Breaker, after: &Breaker, now_ms: i64) -> Option<Change> {
    let is_reported = before.state != after.state || before.until_ms != after.until_ms;
    let why = match after.why.is_empty() {
        true => &before.why,
        false => &after.why,
    };
    is_reported.then(|| Change {
        account: account.to_owned(),
        from: before.state,
        to: after.state,
        why: why.clone(),
        at_ms: now_ms,
        until_ms: after.until_ms,
    })
}

/// Parses a note. An unreadable one counts as a closed breaker: failures open it again soon.
fn parse(note: &str) -> Breaker {
    serde_json::from_str(note).unwrap_or_default()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;

    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;

    use super::*;
    use crate::throttle::{MemoryNotes, NotesSnapshot};

    const SETTINGS: BreakerSettings = BreakerSettings {
        failures: 5,
        window_ms: 10_000,
        cooldown_ms: 30_000,
    };

    struct Workers {
        now_us: Arc<AtomicI64>,
        workers: Vec<Breakers>,
    }

    fn workers(many: usize) -> Workers {
        let now_us = Arc::new(AtomicI64::new(1_000_000_000));
        let clock = now_us.clone();
        let notes = Arc::new(MemoryNotes::new(Arc::new(move || {
            clock.load(Ordering::Relaxed)
        })));
        let throttle = Name::new("sms:accounts").unwrap();
        let workers = (0..many)
            .map(|_| Breakers::new(notes.clone(), throttle.clone(), SETTINGS))
            .collect();
        Workers { now_us, workers }
    }

    #[tokio::test]
    async fn failures_of_several_workers_add_up_and_one_of_them_tells_the_change() {
        let Workers { workers, .. } = workers(5);
        let mut reported = Vec::new();
        for (message, worker) in (0..).zip(&workers) {
            reported.extend(worker.failed("a", message, "answered 503").await.unwrap());
        }
        assert_eq!(reported.len(), 1);
        assert_eq!(
            (reported[0].from, reported[0].to, reported[0].why.as_str()),
            (BreakerState::Closed, BreakerState::Open, "answered 503")
        );
        assert_eq!(workers[0].seen("a").state, BreakerState::Closed);
        workers[0].refresh().await.unwrap();
        assert_eq!(
            (workers[0].seen("a").state, workers[0].seen("b").state),
            (BreakerState::Open, BreakerState::Closed)
        );
    }

    #[tokio::test]
    async fn of_ten_workers_one_tells_of_the_probe_and_its_success_closes_it_for_all() {
        let Workers { now_us, workers } = workers(10);
        assert_eq!(
            workers[4]
                .account_failed("a", 1, "answered 401")
                .await
                .unwrap(),
            None
        );
        workers[3]
            .account_failed("a", 2, "answered 401")
            .await
            .unwrap()
            .unwrap();
        now_us.fetch_add(30_000_000, Ordering::Relaxed);

        let mut probes = 0;
        for worker in &workers {
            assert_eq!(worker.probed("a", 1).await.unwrap(), ProbeDecision::Another);
            probes += usize::from(matches!(
                worker.probed("a", 3).await.unwrap(),
                ProbeDecision::Goes(Some(_))
            ));
        }
        assert_eq!(probes, 1);
        let closed = workers[7].succeeded("a", 3).await.unwrap().unwrap();
        assert_eq!(
            (closed.from, closed.to),
            (BreakerState::HalfOpen, BreakerState::Closed)
        );
        workers[3].refresh().await.unwrap();
        assert_eq!(workers[3].seen("a").state, BreakerState::Closed);
    }

    #[tokio::test]
    async fn successes_of_this_window_are_counted_here_and_told_with_the_next_failure() {
        let Workers { now_us, workers } = workers(1);
        assert_eq!(workers[0].failed("a", 100, "").await.unwrap(), None);
        now_us.fetch_add(5_000_000, Ordering::Relaxed);
        for message in 0..10 {
            assert_eq!(workers[0].succeeded("a", message).await.unwrap(), None);
        }
        for message in 10..18 {
            assert_eq!(workers[0].failed("a", message, "").await.unwrap(), None);
        }
        assert_eq!(
            workers[0]
                .failed("a", 18, "")
                .await
                .unwrap()
                .map(|change| change.to),
            Some(BreakerState::Open)
        );
    }

    #[tokio::test]
    async fn an_account_that_was_well_for_long_is_given_up_as_soon_as_any_other() {
        let Workers { workers, .. } = workers(2);
        for message in 0..1_000 {
            workers[0].succeeded("a", message).await.unwrap();
            workers[1].succeeded("a", message).await.unwrap();
        }
        for nth in 0..4 {
            assert_eq!(
                workers[nth % 2]
                    .failed("a", 2_000 + nth as i64, "")
                    .await
                    .unwrap(),
                None
            );
        }
        assert_eq!(
            workers[1]
                .failed("a", 3_000, "")
                .await
                .unwrap()
                .map(|change| change.to),
            Some(BreakerState::Open)
        );
    }

    /// Notes of which some swaps are made, and some are not, without an answer.
    struct UnansweredNotes {
        notes: MemoryNotes,
        is_made: bool,
        unanswered: Mutex<u32>,
    }

    impl Notes for UnansweredNotes {
        fn read<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<NotesSnapshot, Error>> {
            self.notes.read(throttle)
        }

        fn swap<'a>(
            &'a self,
            throttle: &'a Name,
            key: &'a str,
            old: Option<&'a str>,
            new: &'a str,
        ) -> BoxFuture<'a, Result<bool, Error>> {
            async move {
                let is_answered = {
                    let mut unanswered = self.unanswered.lock();
                    let is_answered = *unanswered == 0;
                    *unanswered = unanswered.saturating_sub(1);
                    is_answered
                };
                if !is_answered && !self.is_made {
                    return Err(Error::Lost("cut".to_owned()));
                }
                let swapped = self.notes.swap(throttle, key, old, new).await;
                if is_answered {
                    swapped
                } else {
                    Err(Error::Lost("no answer".to_owned()))
                }
            }
            .boxed()
        }
    }

    #[tokio::test]
    async fn a_change_whose_answer_is_lost_is_told_once() {
        for (is_made, lost) in [(true, 1), (true, 2), (false, 2)] {
            let notes = Arc::new(UnansweredNotes {
                notes: MemoryNotes::new(Arc::new(|| 1_000_000_000)),
                is_made,
                unanswered: Mutex::new(0),
            });
            let throttle = Name::new("sms:accounts").unwrap();
            let worker = Breakers::new(notes.clone(), throttle, SETTINGS);
            let refused = |message| worker.account_failed("a", message, "answered 401");
            assert_eq!(refused(1).await.unwrap(), None);

            *notes.unanswered.lock() = lost;
            let opened = refused(2).await.unwrap();

            assert_eq!(
                opened.map(|change| (change.from, change.to)),
                Some((BreakerState::Closed, BreakerState::Open)),
                "{lost} without an answer"
            );
            assert_eq!(worker.seen("a").state, BreakerState::Open);
            assert_eq!(refused(3).await.unwrap(), None);
        }
    }

    #[tokio::test]
    async fn a_store_that_stays_away_is_an_error() {
        let notes = Arc::new(UnansweredNotes {
            notes: MemoryNotes::new(Arc::new(|| 1_000_000_000)),
            is_made: false,
            unanswered: Mutex::new(u32::MAX),
        });
        let worker = Breakers::new(notes, Name::new("sms:accounts").unwrap(), SETTINGS);

        let answer = worker.account_failed("a", 1, "answered 401").await;

        assert!(answer.is_err(), "{answer:?}");
        assert_eq!(worker.seen("a"), Breaker::default());
    }
}
