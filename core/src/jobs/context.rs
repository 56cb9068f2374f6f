//! The context of a running handler.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Job, JobRetry, OnAmbiguous, Outcome, Quota};
use crate::throttle;
use crate::trace::{TraceParent, Tracer};

/// The shortest time between two writes of progress; reports in between are skipped.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// The properties of a running job other than its arguments.
#[derive(Debug)]
pub struct JobInfo {
    /// The id of the job: 53 bits, ascending by day.
    pub id: i64,
    /// The kind of the job, which selects its handler.
    pub kind: String,
    /// The name of the throttle that limits the job.
    pub throttle: String,
    /// The rate-limit key; empty for none.
    pub key: String,
    /// The number of this attempt, from 1.
    pub attempt: i32,
    /// Attempts before the job is dead.
    pub max_attempts: i32,
    /// Tokens that its throttle charged for the job.
    pub cost: f64,
    /// The fence of this lease: a late answer with another fence changes nothing.
    pub fence: i64,
    /// The time at which the job was enqueued.
    pub created_at: Timestamp,
    /// The producer's trace, as a W3C `traceparent`.
    pub traceparent: Option<String>,
    /// The waits after failed attempts, if the job has its own.
    pub retry: Option<JobRetry>,
    /// The attempt within its trace, and the maker of spans below it.
    trace: Option<(TraceParent, Tracer)>,
    last_progress: Mutex<Option<Instant>>,
    report: Mutex<AttemptReport>,
}

/// The reports of a handler on its attempt, besides the outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttemptReport {
    /// The real cost of the job, in tokens.
    pub cost: Option<f64>,
    /// The remaining quota that the receiver reported.
    pub quota: Option<Quota>,
    /// True if the quota, and a refusal that ends the attempt, come from an untrusted server.
    pub is_untrusted: bool,
    /// True if a refusal that ends the attempt concerns this job alone, although it has a key.
    pub is_alone: bool,
    /// Refusals within the attempt that the handler worked around.
    pub refusals: u32,
    /// The time that the receiver took, if it is not that of the whole attempt.
    pub took: Option<Duration>,
    /// True if the duration of the attempt does not measure the receiver.
    pub untimed: bool,
    /// The policy for an attempt that is cut off now; `None` unless its work is handed over and not
    /// yet answered.
    pub handed_over: Option<OnAmbiguous>,
    /// The reason for which the attempt puts its job off, for people.
    pub put_off: Option<&'static str>,
}

impl AttemptReport {
    /// Returns the duration of an attempt that ran for `ran`, if it is a measure of the receiver.
    pub fn duration(&self, ran: Duration) -> Option<Duration> {
        (!self.untimed).then(|| self.took.map_or(ran, |took| took.min(ran)))
    }
}

impl JobInfo {
    /// Returns the reports that the handler has made so far.
    pub fn attempt_report(&self) -> AttemptReport {
        *self.report.lock()
    }

    /// Returns the outcome of an attempt that was cut off: `otherwise`, unless its work was handed
    /// over and is not answered. A job that may run twice is given back all the same.
    pub(crate) fn cut_off(&self, otherwise: Outcome) -> Outcome {
        match (self.attempt_report().handed_over, otherwise) {
            (Some(policy), Outcome::Retry { error, .. }) => Outcome::Ambiguous { policy, error },
            (Some(policy @ OnAmbiguous::Dead), _) => Outcome::Ambiguous {
                policy,
                error: "stopped before a response arrived".to_owned(),
            },
            (_, otherwise) => otherwise,
        }
    }

    /// Puts the attempt into a trace.
    #[cfg(feature = "runner")]
    pub(crate) fn traced(self, at: TraceParent, tracer: &Tracer) -> Self {
        Self {
            trace: Some((at, tracer.clone())),
            ..self
        }
    }

    /// Begins the span of a request that the attempt sends; `None` outside of a trace.
    #[cfg(feature = "http")]
    pub(crate) fn open_call(
        &self,
        name: impl FnOnce() -> String,
    ) -> Option<crate::trace::OpenSpan> {
        let (attempt, tracer) = self.trace.as_ref()?;
        tracer.open(Some(*attempt), crate::trace::SpanRole::Client, name)
    }
}

impl From<&Job> for JobInfo {
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
            retry: job.retry,
            trace: None,
            last_progress: Mutex::new(None),
            report: Mutex::default(),
        }
    }
}

/// The context of a running handler: its job, its throttles and its checkpoints.
///
/// It is cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The running job, without its arguments.
    pub job: Arc<JobInfo>,
    /// A token that fires when the job is cancelled, its lease is lost, the worker stops, or the
    /// attempt ends, for instance by its timeout.
    pub cancelled: CancellationToken,
    /// The throttles, for handlers that pace work inside one job.
    pub throttles: Arc<dyn throttle::Store>,
    /// The store in which long jobs keep their cursor.
    pub checkpoints: Arc<dyn Checkpoints>,
}

impl Context {
    /// Returns the context of one attempt at a job.
    pub fn new(
        job: Arc<JobInfo>,
        cancelled: CancellationToken,
        throttles: Arc<dyn throttle::Store>,
        checkpoints: Arc<dyn Checkpoints>,
    ) -> Self {
        Self {
            job,
            cancelled,
            throttles,
            checkpoints,
        }
    }

    /// Returns the `traceparent` of this attempt, a child of the producer's, for the requests that
    /// the handler sends; `None` if the job belongs to no trace.
    pub fn traceparent(&self) -> Option<String> {
        let (attempt, _) = self.job.trace.as_ref()?;
        Some(attempt.to_string())
    }

    /// Reports the real cost of the job, in tokens of its throttle; the last report counts.
    ///
    /// The difference from the charge is settled when the attempt ends. A number that is negative
    /// or not finite is ignored.
    pub fn report_cost(&self, tokens: f64) {
        if tokens.is_finite() && tokens >= 0.0 {
            self.update_report(|report| report.cost = Some(tokens));
        }
    }

    /// Reports the quota that the receiver returned; the last report counts.
    ///
    /// Jobs of the same key slow down before they are refused.
    pub fn report_quota(&self, quota: Quota) {
        self.update_report(|report| report.quota = Some(quota));
    }

    /// Reports that the job goes to an untrusted server, such as a customer's.
    ///
    /// A reported quota, and a refusal that ends the attempt, then slow down no more than the
    /// throttle's knob `trust_scope` allows. Without this report they count in full.
    pub fn report_untrusted(&self) {
        self.update_report(|report| report.is_untrusted = true);
    }

    /// Reports that jobs of the same key go to different servers.
    ///
    /// A refusal that ends the attempt then makes only this job wait, as one without a key.
    #[cfg(feature = "http")]
    pub(crate) fn report_alone(&self) {
        self.update_report(|report| report.is_alone = true);
    }

    /// Returns the widest scope that an untrusted server may slow down, as set by the throttle; the
    /// job's key alone if the throttle cannot be read.
    pub async fn trust_scope(&self) -> throttle::Scope {
        let Ok(name) = throttle::Name::new(self.job.throttle.as_str()) else {
            return throttle::Scope::Key;
        };
        let status = self.throttles.status(&name).await.ok().flatten();
        status.map_or(throttle::Scope::Key, |status| status.knobs.trust_scope)
    }

    /// Reports `n` refusals within this attempt that the handler worked around, for instance with
    /// another account.
    ///
    /// The throttle's governor counts them like any other refusal, however the attempt ends.
    /// Repeated reports add up.
    pub fn report_refusals(&self, n: u32) {
        self.update_report(|report| report.refusals = report.refusals.saturating_add(n));
    }

    /// Reports the time that the receiver took, if the attempt took longer for reasons of its own,
    /// such as a wait for an account; the last report counts.
    ///
    /// The governor uses it as the duration, but no more than that of the attempt.
    pub fn report_duration(&self, took: Duration) {
        self.update_report(|report| report.took = Some(took));
    }

    /// Reports that the duration of this attempt does not measure the receiver.
    ///
    /// A success is still counted, but without its duration.
    pub fn discount_duration(&self) {
        self.update_report(|report| report.untimed = true);
    }

    /// Reports that from now on the work may have been done, until it is answered.
    ///
    /// An attempt that is cut off in between by its timeout or a panic is ambiguous, and the job
    /// follows this policy. So does one that a stopping worker cuts off, if the job must not run
    /// twice; otherwise the job is given back.
    pub fn hand_over(&self, policy: OnAmbiguous) {
        self.update_report(|report| report.handed_over = Some(policy));
    }

    /// Reports that the handed-over work was answered, successfully or not.
    pub fn answered(&self) {
        self.update_report(|report| report.handed_over = None);
    }

    /// Reports why the attempt is about to put its job off, which nothing else would show.
    #[cfg(feature = "http")]
    pub(crate) fn report_put_off(&self, why: &'static str) {
        self.update_report(|report| report.put_off = Some(why));
    }

    fn update_report(&self, change: impl FnOnce(&mut AttemptReport)) {
        change(&mut self.job.report.lock());
    }

    /// Returns the last checkpoint of this job, from any of its attempts.
    pub async fn last_checkpoint(&self) -> Result<Option<Checkpoint>, CheckpointError> {
        self.checkpoints.load(self.job.id).await
    }

    /// Stores a checkpoint now.
    ///
    /// Fails with [`CheckpointError::LeaseLost`] if another worker holds the job.
    pub async fn checkpoint(&self, at: &Checkpoint) -> Result<(), CheckpointError> {
        self.checkpoints
            .store(self.job.id, self.job.fence, at)
            .await
    }

    /// Reports the progress of the job, for people; `done` is its cursor as well.
    ///
    /// Reports may be as frequent as one likes: they are written at most once a second, and always
    /// when `done` reaches `total`.
    ///
    /// ```no_run
    /// # use flyball_core as flyball;
    /// # use flyball::jobs::{Context, HandlerError};
    /// # async fn send(_: &str) -> Result<(), std::io::Error> { Ok(()) }
    /// async fn send_all(letters: Vec<String>, context: Context) -> Result<(), HandlerError> {
    ///     let begun = context.last_checkpoint().await?.map_or(0, |at| at.done as usize);
    ///     for (n, letter) in letters.iter().enumerate().skip(begun) {
    ///         send(letter).await?;
    ///         context.progress(n as i64 + 1, Some(letters.len() as i64), "letters sent").await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub async fn progress(
        &self,
        done: i64,
        total: Option<i64>,
        note: impl Into<String>,
    ) -> Result<(), CheckpointError> {
        let is_whole = total.is_some_and(|total| done >= total);
        {
            let mut last = self.job.last_progress.lock();
            if !is_whole && last.is_some_and(|at| at.elapsed() < PROGRESS_EVERY) {
                return Ok(());
            }
            *last = Some(Instant::now());
        }
        self.checkpoint(&Checkpoint {
            cursor: json!(done),
            done,
            total,
            note: note.into(),
        })
        .await
    }
}

/// The cursor and the progress of a long job.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Checkpoint {
    /// The handler's own cursor; a later attempt starts from it.
    pub cursor: Value,
    /// Units done, e.g. documents.
    pub done: i64,
    /// Units in all, if known.
    pub total: Option<i64>,
    /// One line of text for people, e.g. `12,000 of 50,000 documents, about 40 s left`.
    pub note: String,
}

/// The reason why a checkpoint was not stored.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Another worker holds the job now; the handler must stop, because its writes are refused.
    #[error("the lease of job {0} was lost")]
    LeaseLost(i64),
    /// The store did not answer; the work may go on and retry.
    #[error("storing the checkpoint of job {job} failed: {reason}")]
    Store {
        /// The id of the job.
        job: i64,
        /// The error of the store.
        reason: String,
    },
}

/// A store in which long jobs keep their cursor, guarded by the fence of the lease.
pub trait Checkpoints: Send + Sync + 'static {
    /// Returns the last checkpoint of the job, from any worker.
    fn load(&self, job_id: i64) -> BoxFuture<'_, Result<Option<Checkpoint>, CheckpointError>>;

    /// Stores a checkpoint if `fence` still holds the job's lease.
    fn store<'a>(
        &'a self,
        job_id: i64,
        fence: i64,
        at: &'a Checkpoint,
    ) -> BoxFuture<'a, Result<(), CheckpointError>>;
}
