//! Jobs in memory, under the queue's own rules as far as a test of handlers can observe them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, MutexGuard};

use super::clock;
use super::error::Error;
use crate::jobs::retry::MAX_DELAY;
use crate::jobs::{Checkpoint, CheckpointError, Checkpoints, Ending, Job, NewJob, check};

pub(super) struct Memory {
    kinds: Vec<String>,
    jobs: Mutex<MemoryJobs>,
    checkpoints: Arc<InMemory>,
}

struct MemoryJobs {
    now: Timestamp,
    last_id: i64,
    waiting: BTreeMap<i64, WaitingJob>,
    /// Unique keys that are unfinished or still reserved, by kind and text.
    unique: BTreeMap<(String, String), Holder>,
    running: BTreeMap<i64, NewJob>,
}

/// The job that holds a unique key.
struct Holder {
    job_id: i64,
    /// The end of the window, if the producer set one.
    until: Option<Timestamp>,
    /// The time at which the first of the debounced jobs that it replaced was enqueued.
    since: Option<Timestamp>,
}

/// The effect of a unique key on a new job.
enum UniqueDecision {
    /// The job is new.
    New,
    /// This job is unfinished, or its window is open.
    Duplicate(i64),
    /// The job replaces this one, which waits; the time is the start of the debounced series, if
    /// there is one.
    Replaces(i64, Option<Timestamp>),
}

struct WaitingJob {
    job: NewJob,
    due: Timestamp,
    attempt: i32,
    created_at: Timestamp,
}

impl Memory {
    pub(super) fn new(kinds: Vec<String>) -> Self {
        let jobs = MemoryJobs {
            now: clock::now(),
            last_id: 0,
            waiting: BTreeMap::new(),
            unique: BTreeMap::new(),
            running: BTreeMap::new(),
        };
        Self {
            kinds,
            jobs: Mutex::new(jobs),
            checkpoints: Arc::default(),
        }
    }

    fn locked(&self) -> MutexGuard<'_, MemoryJobs> {
        self.jobs.lock()
    }

    pub(super) fn enqueue(&self, job: NewJob) -> Result<i64, Error> {
        if !self.kinds.contains(&job.kind) {
            let message = format!(
                "{:?} is not a kind of this queue; known kinds: {}",
                job.kind,
                self.kinds.join(", ")
            );
            return Err(Error::Refused {
                field: "kind".to_owned(),
                message,
            });
        }
        let mut jobs = self.locked();
        let now = jobs.now;
        if let Some((field, message)) = check::problem(&job, now) {
            return Err(Error::Refused {
                field: field.to_owned(),
                message,
            });
        }
        let quiet = job.debounce_s.map(span);
        let due = quiet.map_or(job.run_at, |quiet| now.checked_add(quiet).ok());
        match jobs.verdict(&job) {
            UniqueDecision::Duplicate(id) => Ok(id),
            UniqueDecision::Replaces(id, since) => {
                let longest = job
                    .debounce_max_s
                    .or(job.debounce_s.map(|quiet| quiet * 10.0))
                    .map(span);
                let last = since
                    .zip(longest)
                    .and_then(|(since, longest)| since.checked_add(longest).ok());
                self.checkpoints.forget(id);
                jobs.wait(id, job, due.into_iter().chain(last).min());
                Ok(id)
            }
            UniqueDecision::New => {
                jobs.last_id += 1;
                let id = jobs.last_id;
                jobs.wait(id, job, due);
                Ok(id)
            }
        }
    }

    pub(super) fn take_due(&self) -> Vec<Job> {
        let mut jobs = self.locked();
        let now = jobs.now;
        let mut due: Vec<(i32, i64)> = jobs
            .waiting
            .iter()
            .filter(|(_, one)| one.due <= now)
            .map(|(id, one)| (one.job.priority, *id))
            .collect();
        due.sort_unstable();
        let mut taken = Vec::with_capacity(due.len());
        for (_, id) in due {
            let Some(WaitingJob {
                job,
                attempt,
                created_at,
                ..
            }) = jobs.waiting.remove(&id)
            else {
                continue;
            };
            jobs.running.insert(id, job.clone());
            taken.push(Job {
                id,
                kind: job.kind,
                args: job.args,
                throttle: job.throttle,
                key: job.key,
                priority: job.priority,
                attempt: attempt + 1,
                max_attempts: job.max_attempts,
                cost: job.cost,
                fence: id,
                created_at,
                timeout: job
                    .timeout_s
                    .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
                traceparent: job.traceparent,
                retry: job.retry,
            });
        }
        taken
    }

    pub(super) fn finish(&self, job: &Job, ending: &Ending) {
        let mut jobs = self.locked();
        let Some(kept) = jobs.running.remove(&job.id) else {
            return;
        };
        let (delay, attempt) = match ending {
            Ending::Failed { delay, .. }
            | Ending::Ambiguous {
                delay: Some(delay), ..
            } => ((*delay).min(MAX_DELAY), job.attempt),
            Ending::Snoozed { delay, .. } => ((*delay).min(MAX_DELAY), job.attempt - 1),
            Ending::Throttled { .. } | Ending::HandedBack => (Duration::ZERO, job.attempt - 1),
            Ending::Completed
            | Ending::Dead { .. }
            | Ending::Ambiguous { delay: None, .. }
            | Ending::Cancelled => {
                jobs.unique
                    .retain(|_, holder| holder.job_id != job.id || holder.until.is_some());
                return;
            }
        };
        let due = jobs
            .now
            .saturating_add(SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX));
        let waiting = WaitingJob {
            job: kept,
            due: due.unwrap_or(Timestamp::MAX),
            attempt,
            created_at: job.created_at,
        };
        jobs.waiting.insert(job.id, waiting);
    }

    pub(super) fn waiting(&self, kind: &str) -> Vec<NewJob> {
        self.locked()
            .waiting
            .values()
            .filter(|one| one.job.kind == kind)
            .map(|one| kept(&one.job))
            .collect()
    }

    pub(super) fn advance(&self, by: Duration) {
        let mut jobs = self.locked();
        let later = jobs
            .now
            .saturating_add(SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX));
        jobs.now = later.unwrap_or(Timestamp::MAX);
    }

    pub(super) fn next_due(&self) -> Option<Duration> {
        let jobs = self.locked();
        let due = jobs.waiting.values().map(|one| one.due).min()?;
        Some(Duration::try_from(due.duration_since(jobs.now)).unwrap_or_default())
    }

    pub(super) fn checkpoints(&self) -> Arc<dyn Checkpoints> {
        self.checkpoints.clone()
    }
}

impl MemoryJobs {
    /// Returns the effect of a job's unique key, as `flyball.admit` does; a new job then holds the
    /// key.
    fn verdict(&mut self, job: &NewJob) -> UniqueDecision {
        let Some(text) = &job.unique_key else {
            return UniqueDecision::New;
        };
        let (now, next_id) = (self.now, self.last_id + 1);
        let begun = job.debounce_s.map(|_| now);
        let digest = (job.kind.clone(), text.clone());
        if let Some(holder) = self.unique.get_mut(&digest) {
            let waiting = self.waiting.get(&holder.job_id);
            let replaces = job.replace || job.debounce_s.is_some();
            if let Some(waiting) = waiting.filter(|_| replaces) {
                // A series goes on only if the new job is debounced and the waiting one has never
                // been tried; otherwise a new series begins.
                let goes_on = begun.is_some() && waiting.attempt == 0;
                holder.since = holder.since.filter(|_| goes_on).or(begun);
                // A time that ends before the job is due would protect nothing.
                let debounced = job.debounce_s.and_then(|s| now.checked_add(span(s)).ok());
                let due = debounced.or(job.run_at).map_or(now, |due| due.max(now));
                holder.until = holder.until.filter(|until| *until > due);
                return UniqueDecision::Replaces(holder.job_id, holder.since);
            }
            let is_unfinished = waiting.is_some() || self.running.contains_key(&holder.job_id);
            if !replaces && holder.until.map_or(is_unfinished, |until| until > now) {
                return UniqueDecision::Duplicate(holder.job_id);
            }
        }
        let until = job
            .unique_for
            .and_then(|seconds| now.checked_add(span(seconds)).ok());
        self.unique.insert(
            digest,
            Holder {
                job_id: next_id,
                until,
                since: begun,
            },
        );
        UniqueDecision::New
    }

    /// Adds a waiting job under an id, which may be that of the job that it replaces.
    fn wait(&mut self, id: i64, job: NewJob, due: Option<Timestamp>) {
        let now = self.now;
        let created_at = self
            .waiting
            .get(&id)
            .map_or(now, |before| before.created_at);
        let job = NewJob { run_at: due, ..job };
        self.waiting.insert(
            id,
            WaitingJob {
                job,
                due: due.unwrap_or(now).max(now),
                attempt: 0,
                created_at,
            },
        );
    }
}

/// Returns a job as the queue keeps it, without the fields that only control the enqueueing.
fn kept(job: &NewJob) -> NewJob {
    NewJob {
        unique_for: None,
        debounce_s: None,
        debounce_max_s: None,
        replace: false,
        ..job.clone()
    }
}

fn span(seconds: f64) -> SignedDuration {
    SignedDuration::try_from_secs_f64(seconds).unwrap_or(SignedDuration::MAX)
}

/// Checkpoints without fences, because no other worker competes for a job.
#[derive(Default)]
struct InMemory(Mutex<BTreeMap<i64, Checkpoint>>);

impl InMemory {
    fn forget(&self, job_id: i64) {
        self.0.lock().remove(&job_id);
    }
}

impl Checkpoints for InMemory {
    fn load(&self, job_id: i64) -> BoxFuture<'_, Result<Option<Checkpoint>, CheckpointError>> {
        let kept = self.0.lock().get(&job_id).cloned();
        Box::pin(std::future::ready(Ok(kept)))
    }

    fn store<'a>(
        &'a self,
        job_id: i64,
        _: i64,
        at: &'a Checkpoint,
    ) -> BoxFuture<'a, Result<(), CheckpointError>> {
        self.0.lock().insert(job_id, at.clone());
        Box::pin(std::future::ready(Ok(())))
    }
}
