//! The hands that a running handler is given.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Job, OnAmbiguous, Quota};
use crate::throttle;

/// Progress is written at most this often; what is said in between is passed over.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// What is known of a running job besides its arguments.
#[derive(Debug)]
pub struct About {
    /// Its number.
    pub id: i64,
    /// What runs it.
    pub kind: String,
    /// The throttle it passed.
    pub throttle: String,
    /// Its rate-limit key, empty for none.
    pub key: String,
    /// 1 for the first attempt.
    pub attempt: i32,
    /// Attempts before it is dead.
    pub max_attempts: i32,
    /// Tokens it was charged.
    pub cost: f64,
    /// The fence of this lease: a late answer with another fence changes nothing.
    pub fence: i64,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// The trace of whoever enqueued it, as W3C `traceparent`.
    pub traceparent: Option<String>,
    last_progress: Mutex<Option<Instant>>,
    said: Mutex<Said>,
}

/// What a handler said of its attempt besides the outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Said {
    /// What the job really cost, in tokens.
    pub cost: Option<f64>,
    /// What the other side said is left of its quota.
    pub quota: Option<Quota>,
    /// The quota, and a refusal by which the attempt ends, are the words of a server that nobody vouches for.
    pub is_hearsay: bool,
    /// Refusals that it met and got around.
    pub refusals: u32,
    /// How long the other side took, where that is not the whole attempt.
    pub took: Option<Duration>,
    /// How long the attempt took says nothing.
    pub untimed: bool,
    /// The work is handed over and not answered yet, and what becomes of the job if it never is.
    pub handed_over: Option<OnAmbiguous>,
}

impl Said {
    /// How long an attempt that ran for `ran` took, as far as it says anything about the other side.
    pub fn duration(&self, ran: Duration) -> Option<Duration> {
        (!self.untimed).then(|| self.took.map_or(ran, |took| took.min(ran)))
    }
}

impl About {
    /// What the handler said so far besides the outcome.
    pub fn said(&self) -> Said {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<&Job> for About {
    fn from(job: &Job) -> Self {
        Self {
            id: job.id,
            kind: job.kind.clone(),
            throttle: job.throttle.clone(),
            key: job.key.clone(),
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            cost: job.cost,
            fence: job.fence,
            created_at: job.created_at,
            traceparent: job.traceparent.clone(),
            last_progress: Mutex::new(None),
            said: Mutex::default(),
        }
    }
}

/// The hands that a running handler is given. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The job.
    pub job: Arc<About>,
    /// Fires when the job is cancelled, its lease is lost, the worker stops, or the attempt is over, for instance by its time-out.
    pub cancelled: CancellationToken,
    /// The throttles, for handlers that pace work inside one job.
    pub throttles: Arc<dyn throttle::Store>,
    /// Where long jobs leave their cursor.
    pub checkpoints: Arc<dyn Checkpoints>,
}

impl Context {
    /// The hands for one attempt at a job.
    pub fn new(
        job: Arc<About>,
        cancelled: CancellationToken,
        throttles: Arc<dyn throttle::Store>,
        checkpoints: Arc<dyn Checkpoints>,
    ) -> Self {
        Self { job, cancelled, throttles, checkpoints }
    }

    /// Says what the job really costs, in tokens of its throttle; the last word counts. What it was charged too little or too much
    /// is settled when the attempt ends. A number that is negative or not finite is passed over.
    pub fn report_cost(&self, tokens: f64) {
        if tokens.is_finite() && tokens >= 0.0 {
            self.say(|said| said.cost = Some(tokens));
        }
    }

    /// Says what the other side answered about its quota; the last word counts. Jobs of the same key slow down before they are
    /// refused.
    pub fn report_quota(&self, quota: Quota) {
        self.say(|said| said.quota = Some(quota));
    }

    /// Says that the job goes to a server that nobody vouches for, such as a customer's. What is said of its quota, and a refusal by
    /// which the attempt ends, then slow down no more than the knob `trust_scope` of the throttle lets them: without it what a handler
    /// says counts as it stands.
    pub fn report_hearsay(&self) {
        self.say(|said| said.is_hearsay = true);
    }

    /// What the throttle of the job lets a stranger's word slow down; the job's key alone where the throttle cannot be asked.
    pub async fn trust_scope(&self) -> throttle::Scope {
        let Ok(name) = throttle::Name::new(self.job.throttle.as_str()) else { return throttle::Scope::Key };
        let status = self.throttles.status(&name).await.ok().flatten();
        status.map_or(throttle::Scope::Key, |status| status.knobs.trust_scope)
    }

    /// Says that the other side refused `n` times within this attempt and the handler got around it, such as by another account. The
    /// governor of the throttle hears of them as of any refusal, however the attempt ends. What is said several times is added up.
    pub fn report_refusals(&self, n: u32) {
        self.say(|said| said.refusals = said.refusals.saturating_add(n));
    }

    /// Says how long the other side took, where the attempt took longer for reasons of its own, such as a wait for an account; the
    /// last word counts. It is what the governor hears as the duration, if it is not longer than the attempt.
    pub fn report_duration(&self, took: Duration) {
        self.say(|said| said.took = Some(took));
    }

    /// Says that how long this attempt took says nothing about the other side. It counts among those that succeeded, and not in
    /// their duration.
    pub fn discount_duration(&self) {
        self.say(|said| said.untimed = true);
    }

    /// Says that from now on the work may have been done, until it is answered: an attempt that is cut off then, by its time-out, by
    /// a worker that stops or by a panic, is ambiguous, and the job goes the way of this policy.
    pub fn hand_over(&self, policy: OnAmbiguous) {
        self.say(|said| said.handed_over = Some(policy));
    }

    /// Says that what was handed over has been answered, one way or the other.
    pub fn answered(&self) {
        self.say(|said| said.handed_over = None);
    }

    fn say(&self, change: impl FnOnce(&mut Said)) {
        change(&mut self.job.said.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The last checkpoint of this job, by whichever attempt it was left.
    pub async fn last_checkpoint(&self) -> Result<Option<Checkpoint>, CheckpointError> {
        self.checkpoints.load(self.job.id).await
    }

    /// Keeps a checkpoint now. It is refused if another worker holds the job by now.
    pub async fn checkpoint(&self, at: &Checkpoint) -> Result<(), CheckpointError> {
        self.checkpoints.store(self.job.id, self.job.fence, at).await
    }

    /// Says how far the job has come, for people; `done` is its cursor as well. Said as often as one likes, it is written at
    /// most once a second, and always when `done` reaches `total`.
    ///
    /// ```no_run
    /// # use flyball::jobs::{Context, Fault};
    /// # async fn send(_: &str) -> Result<(), std::io::Error> { Ok(()) }
    /// async fn send_all(letters: Vec<String>, context: Context) -> Result<(), Fault> {
    ///     let begun = context.last_checkpoint().await?.map_or(0, |at| at.done as usize);
    ///     for (n, letter) in letters.iter().enumerate().skip(begun) {
    ///         send(letter).await?;
    ///         context.progress(n as i64 + 1, Some(letters.len() as i64), "letters sent").await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub async fn progress(&self, done: i64, total: Option<i64>, note: impl Into<String>) -> Result<(), CheckpointError> {
        let is_whole = total.is_some_and(|total| done >= total);
        {
            let mut last = self.job.last_progress.lock().unwrap_or_else(PoisonError::into_inner);
            if !is_whole && last.is_some_and(|at| at.elapsed() < PROGRESS_EVERY) {
                return Ok(());
            }
            *last = Some(Instant::now());
        }
        self.checkpoint(&Checkpoint { cursor: json!(done), done, total, note: note.into() }).await
    }
}

/// How far a long job has come.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Checkpoint {
    /// The handler's own cursor; a later attempt starts from it.
    pub cursor: Value,
    /// Units done, e.g. documents.
    pub done: i64,
    /// Units in all, where known.
    pub total: Option<i64>,
    /// One line for people, e.g. `12,000 of 50,000 documents, about 40 s left`.
    pub note: String,
}

/// Why a checkpoint was not kept.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Another worker holds the job now: stop, whatever you say will be refused.
    #[error("the lease of job {0} was lost")]
    LeaseLost(i64),
    /// The store did not answer; the work may go on and try again.
    #[error("the checkpoint of job {job} was not stored: {reason}")]
    Store {
        /// The job.
        job: i64,
        /// What the store said.
        reason: String,
    },
}

/// Where long jobs leave their cursor, guarded by the lease's fence.
pub trait Checkpoints: Send + Sync + 'static {
    /// The last checkpoint of the job, whoever wrote it.
    fn load(&self, job_id: i64) -> BoxFuture<'_, Result<Option<Checkpoint>, CheckpointError>>;

    /// Keeps a checkpoint if `fence` still holds the job's lease.
    fn store<'a>(&'a self, job_id: i64, fence: i64, at: &'a Checkpoint) -> BoxFuture<'a, Result<(), CheckpointError>>;
}
