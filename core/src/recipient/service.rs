//! The gates at work: plans messages, verifies attempts, and settles what they took.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
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
    self, Addressless, ClaimKey, ClosedDigests, GateVerdict, Look, PlannedMessage,
};
use crate::jobs::{Error, NewJob, Queue};
use crate::postgres::Db;
use crate::service::{
    BatchBroken, Batcher, DueWork, LoopOptions, UNWOKEN_EVERY, periodic, periodic_unless_watched,
};

/// The channel on which Postgres tells of messages to plan.
const CHANNEL: &str = "flyball_plan";

/// Messages that are planned in one transaction.
const PLANNED_MAX: i64 = 1000;

/// The longest time between two looks at messages that somebody has touched, while there are others.
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

/// Most repeats of a transaction after a deadlock.
const REPEATS_MAX: u32 = 5;

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
    /// The time of the last look at all messages that are due.
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
                let verified = repeated(|| postgres::verify(&db, &jobs, &rules, &capacity)).await;
                match verified {
                    Ok(verdicts) => verdicts.into_iter().map(Ok).collect(),
                    Err(error) if error.was_locked_out() && jobs.len() > 1 => {
                        let verify = |job| postgres::verify(&db, job, &rules, &capacity);
                        let verdicts = alone(&jobs, verify).await.into_iter();
                        let first = |verdicts: Vec<Option<GateVerdict>>| {
                            verdicts.into_iter().next().flatten()
                        };
                        verdicts.map(|verdict| verdict.map(first)).collect()
                    }
                    Err(error) => same(jobs.len(), &error),
                }
            })
        });
        let ends = Batcher::paced(
            VERIFIED_MAX,
            VERIFY_EVERY,
            move |ends: Vec<(ClaimKey, AttemptEnd)>| {
                let db = for_ends.clone();
                Box::pin(async move {
                    match repeated(|| postgres::end_attempts(&db, &ends)).await {
                        Ok(()) => ends.iter().map(|_| Ok(())).collect(),
                        Err(error) if error.was_locked_out() && ends.len() > 1 => {
                            alone(&ends, |end| postgres::end_attempts(&db, end)).await
                        }
                        Err(error) => same(ends.len(), &error),
                    }
                })
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
            // What was broken off has touched its messages.
            let look = std::mem::replace(&mut look, Look::AtAll);
            postgres::plan_due(&self.db, &rules, &capacity, look, PLANNED_MAX)
        };
        let mut planned = repeated(&mut plan).await;
        if first == Look::AtFresh && planned.as_ref().is_err_and(Error::was_locked_out) {
            planned = repeated(&mut plan).await;
        }
        let planned = match planned {
            Err(error) if error.was_locked_out() => self.plan_apart().await?,
            planned => planned?,
        };
        planned.iter().for_each(|one| self.metrics.note(&one.plan));
        Ok(planned.len() as i64 >= PLANNED_MAX)
    }

    /// Plans messages that are due in ever smaller parts, because an open transaction holds what one of
    /// them needs: only that one waits.
    async fn plan_apart(&self) -> Result<Vec<PlannedMessage>, Error> {
        let rules = self.rules.load();
        let capacity = |throttle: &str| self.capacity(throttle);
        let jobs = postgres::due_jobs(&self.db, PLANNED_MAX).await?;
        let mut planned = Vec::new();
        let mut parts = vec![&jobs[..]];
        while let Some(part) = parts.pop() {
            match postgres::plan_apart(&self.db, part, &rules, &capacity).await {
                Ok(more) => planned.extend(more),
                Err(error) if error.was_broken_off() && part.len() > 1 => {
                    let (left, right) = part.split_at(part.len() / 2);
                    parts.push(right);
                    parts.push(left);
                }
                Err(error) if error.was_broken_off() => {
                    tracing::debug!(jobs = ?part, %error, "a message is planned later");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(planned)
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
        match self.close(CLOSED_MAX).await {
            Ok(closed) => return Ok(closed.is_cut || closed.seen as i64 >= CLOSED_MAX),
            Err(Error::Lost(lost)) => return Err(Error::Lost(lost)),
            Err(_) => {}
        }
        for _ in 0..CLOSED_MAX {
            match self.close(1).await {
                Ok(closed) if closed.seen == 0 => return Ok(false),
                Ok(_) => {}
                Err(Error::Lost(lost)) => return Err(Error::Lost(lost)),
                Err(error) => {
                    tracing::warn!(%error, "a digest cannot be closed; it stays open");
                    postgres::put_first_off(&self.db, "its close failed").await?;
                }
            }
        }
        Ok(true)
    }

    /// Closes at most `most` digests, and plans their messages.
    async fn close(&self, most: i64) -> Result<ClosedDigests, Error> {
        let rules = self.rules.load();
        let capacity = |throttle: &str| self.capacity(throttle);
        let closed = repeated(|| postgres::close_due(&self.db, &rules, &capacity, most)).await?;
        self.metrics.closed(closed.closed as u64);
        if !closed.jobs.is_empty() {
            match self.plan_jobs(&closed.jobs).await {
                // The planner finds them.
                Err(error) if error.was_broken_off() => {}
                planned => drop(planned?),
            }
        }
        Ok(closed)
    }

    /// Returns the rule that refuses a message, and the time at which there is room; `None` if it
    /// is accepted. Takes nothing.
    pub async fn refusal(
        &self,
        tenant: &str,
        job: &NewJob,
    ) -> Result<Option<(String, Timestamp)>, Error> {
        let rules = self.rules.load();
        postgres::refusal(&self.db, tenant, job, &rules).await
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
        let pruned = periodic(pace, cancel, || {
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

/// Runs a transaction for each item, some at a time, because an open transaction holds what one of them
/// needs: only that one waits.
async fn alone<'a, T, R, F>(items: &'a [T], run: impl Fn(&'a [T]) -> F) -> Vec<Result<R, Error>>
where
    F: Future<Output = Result<R, Error>>,
{
    let mut answers = Vec::with_capacity(items.len());
    for some in items.chunks(ALONE_AT_ONCE) {
        let each: Vec<F> = some.chunks(1).map(&run).collect();
        let answered = join_all(each).await.into_iter();
        answers
            .extend(answered.map(|answer| answer.map_err(|error| Error::Lost(error.to_string()))));
    }
    answers
}

/// Runs a transaction again that was broken off by a deadlock. One that waited for a lock as long as it
/// may is not repeated.
async fn repeated<T, F>(mut run: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut repeats = 0;
    loop {
        match run().await {
            Err(error)
                if error.was_broken_off() && !error.was_locked_out() && repeats < REPEATS_MAX =>
            {
                repeats += 1;
            }
            ended => return ended,
        }
    }
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
