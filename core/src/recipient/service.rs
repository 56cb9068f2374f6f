//! The gates at work: plans messages, verifies attempts, and settles what they took.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::collectors::digest_problem;
use super::gate::AttemptEnd;
use super::gates::MessagePlan;
use super::live_rules::LiveRules;
use super::metrics::GateMetrics;
use super::postgres::{
    self, Addressless, ClaimKey, ClosedDigests, GateVerdict, Look, PlannedMessage, Waking, repeated,
};
use crate::jobs::{Error, NewJob, Queue};
use crate::postgres::Db;
use crate::service::{
    BatchBroken, Batcher, DueWork, LoopOptions, UNWOKEN_EVERY, housekeeping, in_waves,
    periodic_unless_watched,
};

/// The channel on which Postgres tells of messages to plan.
const CHANNEL: &str = "flyball_plan";

/// Messages that are planned in one transaction.
const PLANNED_MAX: i64 = 1000;

/// The longest time between two polls of messages that somebody has touched, while there are
/// others.
const TOUCHED_EVERY: Duration = Duration::from_secs(1);

/// Digests that are closed in one transaction.
const CLOSED_MAX: i64 = 500;

/// The time between two steps that prune old rows.
const PRUNE_EVERY: Duration = Duration::from_secs(60);

/// Most steps at once that look for slots of ended messages.
const SLOT_STEPS_MAX: usize = 20;

/// Most attempts in one transaction.
const VERIFIED_MAX: usize = 256;

/// The shortest time between transactions while attempts keep coming.
const VERIFY_EVERY: Duration = Duration::from_millis(5);

/// Most transactions at once of items that run alone.
const ALONE_AT_ONCE: usize = 4;

/// The capacity of a throttle without a rate, or whose rate has not been read yet, in messages a
/// second: what is released together goes over a span all the same.
const UNKNOWN_CAPACITY_PER_S: f64 = 100.0;

/// The capacities of throttles, in messages a second.
pub type Capacities = Arc<RwLock<HashMap<String, f64>>>;

/// The gates of all recipients. Cheap to clone; clones share their batches.
#[derive(Clone)]
pub struct Gates {
    pub(super) db: Db,
    pub(super) queue: Queue,
    /// The rules that hold now.
    pub rules: LiveRules,
    /// The capacities over which messages are spread that become due together.
    pub capacities: Capacities,
    pub metrics: GateMetrics,
    /// The time of the last poll of all messages that are due.
    looked_at_all: Arc<Mutex<Option<Instant>>>,
    /// The job up to which slots of ended messages were looked for.
    slots_seen: Arc<AtomicI64>,
    verifies: Batcher<i64, Result<Option<GateVerdict>, Error>>,
    ends: Batcher<(ClaimKey, AttemptEnd), Result<(), Error>>,
}

impl Gates {
    /// Opens the gates on this database, whose schema must be up to date.
    pub fn new(queue: Queue, rules: LiveRules) -> Self {
        let db: Db = (&queue.pool).into();
        let (for_verify, for_ends, live) = (db.clone(), db.clone(), rules.clone());
        let capacities = Capacities::default();
        let of_throttles = capacities.clone();
        let verifies = Batcher::paced(VERIFIED_MAX, VERIFY_EVERY, move |jobs: Vec<i64>| {
            let (db, rules) = (for_verify.clone(), live.load());
            let capacities = of_throttles.clone();
            Box::pin(async move {
                let capacity = |throttle: &str| capacity_of(&capacities, throttle);
                halved(&jobs, |jobs| postgres::verify(&db, jobs, &rules, &capacity)).await
            })
        });
        let ends = Batcher::paced(
            VERIFIED_MAX,
            VERIFY_EVERY,
            move |ends: Vec<(ClaimKey, AttemptEnd)>| {
                let db = for_ends.clone();
                Box::pin(
                    async move { halved(&ends, |ends| postgres::end_attempts(&db, ends)).await },
                )
            },
        );
        Self {
            db,
            queue,
            rules,
            capacities,
            metrics: GateMetrics::default(),
            looked_at_all: Arc::default(),
            slots_seen: Arc::default(),
            verifies,
            ends,
        }
    }

    /// Looks at the gates of a message whose attempt begins, and takes its slots if it may go;
    /// concurrent calls share a transaction. `None` if its job is gone.
    pub async fn verify(&self, job_id: i64) -> Result<Option<GateVerdict>, Error> {
        let verdict = self.verifies.submit(job_id).await.unwrap_or_else(lost)?;
        if let Some(verdict) = &verdict {
            match (&verdict.plan, verdict.planned_at) {
                (MessagePlan::Send, Some(planned_at)) => {
                    let late = verdict.now.duration_since(planned_at);
                    self.metrics.late_by(late.as_secs_f64());
                }
                (MessagePlan::Send, None) => {}
                (plan, _) => self.metrics.note(plan),
            }
        }
        Ok(verdict)
    }

    /// Settles what an attempt took, by its end and the claim of its verdict; concurrent calls share
    /// a transaction.
    pub async fn end(&self, claim: ClaimKey, end: AttemptEnd) -> Result<(), Error> {
        if end == AttemptEnd::Retried {
            return Ok(());
        }
        self.ends.submit((claim, end)).await.unwrap_or_else(lost)
    }

    /// Gives back the slots of messages that ended while they waited, and returns the number of
    /// these messages. Looks at a bounded part of all messages; the next call goes on behind it.
    pub async fn return_slots(&self) -> Result<usize, Error> {
        let rules = self.rules.load();
        let mut messages = 0;
        for _ in 0..SLOT_STEPS_MAX {
            let after = self.slots_seen.load(Ordering::Relaxed);
            let step = repeated(|| postgres::return_ended(&self.db, &rules, after)).await?;
            messages += step.messages;
            self.slots_seen
                .store(step.next.unwrap_or_default(), Ordering::Relaxed);
            if step.next.is_none() {
                break;
            }
        }
        Ok(messages)
    }

    /// Plans messages that were just accepted, and returns the plans of those that no other process
    /// has planned.
    pub async fn plan_jobs(&self, jobs: &[i64]) -> Result<Vec<PlannedMessage>, Error> {
        let rules = self.rules.load();
        let capacity = |throttle: &str| self.capacity(throttle);
        let planned = repeated(|| postgres::plan_jobs(&self.db, jobs, &rules, &capacity)).await?;
        planned.iter().for_each(|one| self.metrics.note(&one.plan));
        Ok(planned)
    }

    /// Plans messages that are due; returns true if there may be more.
    pub async fn plan_due(&self) -> Result<bool, Error> {
        let rules = self.rules.load();
        let capacity = |throttle: &str| self.capacity(throttle);
        let first = self.next_look();
        let mut look = first;
        let mut plan = || {
            // The round that was broken off has touched its messages.
            let look = std::mem::replace(&mut look, Look::AtAll);
            postgres::plan_due(&self.db, &rules, &capacity, look, PLANNED_MAX)
        };
        let mut planned = repeated(&mut plan).await;
        if first == Look::AtFresh && planned.as_ref().is_err_and(Error::was_locked_out) {
            planned = repeated(&mut plan).await;
        }
        let (planned, put_off) = match planned {
            Ok(planned) => (planned, 0),
            Err(Error::Lost(lost)) => return Err(Error::Lost(lost)),
            Err(_) => self.plan_apart().await?,
        };
        planned.iter().for_each(|one| self.metrics.note(&one.plan));
        Ok((planned.len() + put_off) as i64 >= PLANNED_MAX)
    }

    /// Plans messages that are due in ever smaller parts, because one of them cannot be planned.
    /// Only that one waits: for an open transaction that holds what it needs, or else for a while,
    /// so that it takes no place from others. Returns the plans, and the number of messages that
    /// were put off.
    async fn plan_apart(&self) -> Result<(Vec<PlannedMessage>, usize), Error> {
        let rules = self.rules.load();
        let capacity = |throttle: &str| self.capacity(throttle);
        let jobs = postgres::due_jobs(&self.db, PLANNED_MAX).await?;
        let (mut planned, mut put_off) = (Vec::new(), 0);
        let mut parts = vec![&jobs[..]];
        let plan = |part, waking| postgres::plan_apart(&self.db, part, waking, &rules, &capacity);
        while let Some(part) = parts.pop() {
            match plan(part, Waking::Together).await {
                Ok(more) => planned.extend(more),
                Err(Error::Lost(lost)) => return Err(Error::Lost(lost)),
                Err(_) if part.len() > 1 => {
                    let (left, right) = part.split_at(part.len() / 2);
                    parts.push(right);
                    parts.push(left);
                }
                Err(error) if error.was_broken_off() => {
                    tracing::debug!(jobs = ?part, %error, "a message is planned later");
                }
                // Perhaps one cannot be planned that would have woken with it.
                Err(_) => match plan(part, Waking::Alone).await {
                    Ok(more) => planned.extend(more),
                    Err(error) => {
                        tracing::warn!(jobs = ?part, %error, "a message cannot be planned; it waits");
                        for job in part {
                            postgres::put_plan_off(&self.db, *job).await?;
                            put_off += 1;
                        }
                    }
                },
            }
        }
        Ok((planned, put_off))
    }

    fn next_look(&self) -> Look {
        let mut last = self.looked_at_all.lock();
        if last.is_some_and(|last| last.elapsed() < TOUCHED_EVERY) {
            return Look::AtFresh;
        }
        *last = Some(Instant::now());
        Look::AtAll
    }

    /// Closes digests that are due, and plans their messages; returns true if there may be more.
    ///
    /// If one of them cannot be closed, because the queue of its tenant is full for example, the
    /// others are closed one by one, and that one stays open for a while longer.
    pub async fn close_due(&self) -> Result<bool, Error> {
        let rules = self.rules.load();
        let capacity = |throttle: &str| self.capacity(throttle);
        let all = || postgres::close_due(&self.db, &rules, &capacity, CLOSED_MAX);
        match repeated(all).await {
            Ok(closed) => {
                self.plan_closed(&closed).await;
                return Ok(closed.is_cut || closed.seen as i64 >= CLOSED_MAX);
            }
            Err(Error::Lost(lost)) => return Err(Error::Lost(lost)),
            Err(_) => {}
        }
        let due = postgres::due_digests(&self.db, CLOSED_MAX).await?;
        let mut may_be_more = due.len() as i64 >= CLOSED_MAX;
        for digest in due {
            match repeated(|| postgres::close_one(&self.db, &rules, &capacity, digest)).await {
                Ok(closed) => {
                    self.plan_closed(&closed).await;
                    may_be_more |= closed.is_cut;
                }
                Err(Error::Lost(lost)) => return Err(Error::Lost(lost)),
                Err(error) => {
                    tracing::warn!(digest, %error, "a digest cannot be closed; it stays open");
                    postgres::put_off_failed(&self.db, digest, "its close failed").await?;
                }
            }
        }
        Ok(may_be_more)
    }

    /// Plans the messages of closed digests. The planner finds those for which that fails.
    async fn plan_closed(&self, closed: &ClosedDigests) {
        self.metrics.closed(closed.closed as u64);
        if closed.jobs.is_empty() {
            return;
        }
        if let Err(error) = self.plan_jobs(&closed.jobs).await {
            tracing::debug!(%error, "messages of digests are planned later");
        }
    }

    /// Returns the rule that refuses a message, and the time at which there is room; `None` if it
    /// is accepted. Takes nothing.
    pub async fn refusal(
        &self,
        tenant: &str,
        job: &NewJob,
    ) -> Result<Option<(String, Timestamp)>, Error> {
        let rules = self.rules.load();
        let refused = postgres::refusal(&self.db, tenant, job, &rules).await?;
        if let Some((rule, reset_at)) = &refused {
            let (rule, reset_at) = (rule.clone(), *reset_at);
            self.metrics.note(&MessagePlan::Refused { rule, reset_at });
        }
        Ok(refused)
    }

    /// Refuses new messages of which one names an unknown type of digest.
    pub fn check_digests(&self, jobs: &[NewJob]) -> Result<(), Error> {
        let rules = self.rules.load();
        for (index, job) in jobs.iter().enumerate() {
            let named = job.args.get("digest").and_then(Value::as_str);
            if let Some(message) = named.and_then(|name| digest_problem(name, &rules)) {
                return Err(Error::Refused {
                    index: Some(index),
                    field: "digest".to_owned(),
                    message,
                });
            }
        }
        Ok(())
    }

    /// Returns those of new messages that name no address, and a recipient without one.
    pub async fn addressless(
        &self,
        tenant: &str,
        jobs: &[NewJob],
    ) -> Result<Vec<Addressless>, Error> {
        postgres::addressless(&self.db, tenant, jobs).await
    }

    pub(super) fn capacity(&self, throttle: &str) -> f64 {
        capacity_of(&self.capacities, throttle)
    }

    /// Plans messages and closes digests until `cancel` fires.
    pub async fn run(self, due: DueWork, cancel: CancellationToken) {
        let wake = due.messages.clone();
        let listened = {
            let (queue, wake) = (self.queue.clone(), wake.clone());
            let notify = move |_: &str| wake.notify_one();
            let cancel = cancel.clone();
            async move { queue.listen_to(CHANNEL, notify, cancel).await }
        };
        let pace = LoopOptions {
            name: "plan_messages",
            every: UNWOKEN_EVERY,
            wake: Some(wake),
        };
        let planned = periodic_unless_watched(pace, due.clone(), cancel.clone(), || {
            let gates = self.clone();
            async move { drained(|| gates.plan_due()).await }
        });
        let pace = LoopOptions {
            name: "close_digests",
            every: UNWOKEN_EVERY,
            wake: Some(due.digests.clone()),
        };
        let closed = periodic_unless_watched(pace, due, cancel.clone(), || {
            let gates = self.clone();
            async move { drained(|| gates.close_due()).await }
        });
        let pace = LoopOptions {
            name: "prune_recipients",
            every: PRUNE_EVERY,
            wake: None,
        };
        let part = Arc::new(AtomicI32::new(0));
        let pruned = housekeeping(pace, cancel, || {
            let (gates, part) = (self.clone(), part.clone());
            async move {
                let rules = gates.rules.load();
                let part = part.fetch_add(1, Ordering::Relaxed);
                postgres::prune(&gates.db, &rules, part).await?;
                gates.return_slots().await.map(drop)
            }
        });
        tokio::join!(listened, planned, closed, pruned);
    }
}

fn capacity_of(capacities: &Capacities, throttle: &str) -> f64 {
    capacity_by(capacities.read().get(throttle).copied())
}

/// Returns the capacity of a throttle by its rate, which is endless if it has none.
fn capacity_by(rate: Option<f64>) -> f64 {
    let rate = rate.filter(|rate| rate.is_finite());
    rate.unwrap_or(UNKNOWN_CAPACITY_PER_S)
}

/// Takes batches until fewer are due than a batch holds: two at once behind a first that was full,
/// so that Postgres has work while this process plans.
async fn drained<F>(batch: impl Fn() -> F) -> Result<(), Error>
where
    F: Future<Output = Result<bool, Error>>,
{
    let mut may_be_more = batch().await?;
    while may_be_more {
        let (one, other) = tokio::try_join!(batch(), batch())?;
        may_be_more = one || other;
    }
    Ok(())
}

/// Runs a batch, and returns one result for each item.
///
/// A batch with an item that Postgres refuses is halved until that item is alone, so that it fails
/// alone. After a lock that was not free in time, each item runs alone.
async fn halved<'a, T, R, F>(items: &'a [T], run: impl Fn(&'a [T]) -> F) -> Vec<Result<R, Error>>
where
    F: Future<Output = Result<Vec<R>, Error>>,
{
    let mut answers = Vec::with_capacity(items.len());
    let mut parts = vec![items];
    while let Some(part) = parts.pop() {
        match repeated(|| run(part)).await {
            Ok(results) => answers.extend(results.into_iter().map(Ok)),
            Err(error) if error.was_locked_out() && part.len() > 1 => {
                for answer in alone(part, &run).await {
                    match answer {
                        Ok(results) => answers.extend(results.into_iter().map(Ok)),
                        Err(error) => answers.push(Err(error)),
                    }
                }
            }
            Err(error) if is_of_one(&error) && part.len() > 1 => {
                let (left, right) = part.split_at(part.len() / 2);
                parts.push(right);
                parts.push(left);
            }
            Err(error) => answers.extend(same(part.len(), &error)),
        }
    }
    answers
}

/// Runs a transaction for each item, some at a time, because an open transaction holds what one of them
/// needs: only that one waits.
async fn alone<'a, T, R, F>(items: &'a [T], run: impl Fn(&'a [T]) -> F) -> Vec<Result<R, Error>>
where
    F: Future<Output = Result<R, Error>>,
{
    let each: Vec<F> = items.chunks(1).map(run).collect();
    let answers = in_waves(each, ALONE_AT_ONCE).await.into_iter();
    answers
        .map(|answer| match answer {
            Some(answer) => answer.map_err(|error| Error::Lost(error.to_string())),
            None => Err(Error::Lost("others of its batch are locked".to_owned())),
        })
        .collect()
}

/// Returns true for an error that one item of a batch may have: the server refused something.
fn is_of_one(error: &Error) -> bool {
    !matches!(error, Error::Lost(_)) && !error.was_broken_off() && !error.was_cut_off()
}

fn same<R>(items: usize, error: &Error) -> Vec<Result<R, Error>> {
    (0..items)
        .map(|_| Err(Error::Lost(error.to_string())))
        .collect()
}

fn lost<R>(broken: BatchBroken) -> Result<R, Error> {
    Err(Error::Lost(broken.to_string()))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_a_pool_without_a_rate_releases_goes_over_a_span_too() {
        let capacities = [None, Some(f64::INFINITY), Some(20.0)].map(capacity_by);
        let unknown = UNKNOWN_CAPACITY_PER_S;
        assert_eq!(capacities, [unknown, unknown, 20.0]);
    }

    #[tokio::test]
    async fn of_items_that_run_alone_one_fails_alone_and_the_others_keep_their_places() {
        let items = [1, 2, 3, 4, 5, 6];

        let answers = alone(&items, |one| async move {
            match one[0] {
                3 => Err(Error::Lost("locked".to_owned())),
                n => Ok(n * 10),
            }
        });

        let answers = answers.await.into_iter().map(Result::ok);
        let expected = [Some(10), Some(20), None, Some(40), Some(50), Some(60)];
        assert_eq!(answers.collect::<Vec<Option<i32>>>(), expected);
    }

    #[tokio::test]
    async fn of_a_batch_with_a_bad_item_that_item_fails_alone_and_a_lost_one_is_not_halved() {
        let (items, runs) = ([1, 2, 3, 4, 5, 6], Cell::new(0));
        let failing = async |error: fn() -> Error| {
            runs.set(0);
            let run = |part: &[i32]| {
                runs.set(runs.get() + 1);
                let tens: Vec<i32> = part.iter().map(|n| n * 10).collect();
                let ran = match tens.contains(&30) {
                    true => Err(error()),
                    false => Ok(tens),
                };
                async { ran }
            };
            let answers = halved(&items, run).await.into_iter().map(Result::ok);
            answers.collect::<Vec<Option<i32>>>()
        };

        let refused = || Error::Refused {
            index: None,
            field: "args".to_owned(),
            message: "bad".to_owned(),
        };
        let bad = failing(refused).await;
        let expected = [Some(10), Some(20), None, Some(40), Some(50), Some(60)];
        assert_eq!(bad, expected);

        let lost = failing(|| Error::Lost("gone".to_owned())).await;
        assert_eq!((lost, runs.get()), (vec![None; 6], 1));
    }

    #[tokio::test]
    async fn batches_are_taken_until_none_is_full() {
        let (left, taken) = (Cell::new(5), Cell::new(0));
        let batch = || async {
            let is_full = left.get() > 0;
            left.set(left.get() - i32::from(is_full));
            taken.set(taken.get() + 1);
            Ok(is_full)
        };

        drained(batch).await.unwrap();

        assert_eq!((left.get(), taken.get()), (0, 7));
    }
}
