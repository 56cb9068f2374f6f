//! What runs jobs: handlers, and the hands they are given.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Job, Outcome};
use crate::throttle;

/// One thing that is wrong with a job's arguments.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Issue {
    /// JSON pointer into the arguments, e.g. `/url`; empty for the whole.
    pub pointer: String,
    /// What was wrong and what is allowed.
    pub message: String,
}

/// Runs the jobs of one kind.
pub trait Handler: Send + Sync + 'static {
    /// Looks at arguments before a job is accepted over HTTP or the CLI, and again before it runs; lists every issue.
    fn check(&self, args: &Value) -> Vec<Issue> {
        let _ = args;
        Vec::new()
    }

    /// Runs one attempt. It should stop soon after `context.cancelled` fires.
    fn run(&self, job: Job, context: Context) -> BoxFuture<'_, Outcome>;

    /// Longest that an attempt may take; `None` for no bound.
    fn timeout(&self) -> Option<Duration> {
        Some(Duration::from_secs(300))
    }
}

/// The handlers of a process, by kind.
#[derive(Clone, Default)]
pub struct Kinds(BTreeMap<String, Arc<dyn Handler>>);

impl Kinds {
    /// Adds a handler; the later of two for one kind wins.
    pub fn register(&mut self, kind: impl Into<String>, handler: impl Handler) {
        self.0.insert(kind.into(), Arc::new(handler));
    }

    /// Adds an async function as a handler, for kinds that need no check of their arguments and no timeout of their own.
    pub fn register_fn<F, R>(&mut self, kind: impl Into<String>, run: F)
    where
        F: Fn(Job, Context) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        self.register(kind, FromFn(run));
    }

    /// Adds every handler of `others`; the later of two for one kind wins.
    pub fn extend(&mut self, others: Kinds) {
        self.0.extend(others.0);
    }

    /// The handler of a kind.
    pub fn get(&self, kind: &str) -> Option<&Arc<dyn Handler>> {
        self.0.get(kind)
    }

    /// The kinds in the order of their names.
    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

struct FromFn<F>(F);

impl<F, R> Handler for FromFn<F>
where
    F: Fn(Job, Context) -> R + Send + Sync + 'static,
    R: Future<Output = Outcome> + Send + 'static,
{
    fn run(&self, job: Job, context: Context) -> BoxFuture<'_, Outcome> {
        Box::pin((self.0)(job, context))
    }
}

/// The hands that a running handler is given.
#[derive(Clone)]
pub struct Context {
    /// Fires when the job is cancelled, its lease is lost, or the worker stops.
    pub cancelled: CancellationToken,
    /// The throttles, for handlers that pace work inside one job.
    pub throttles: Arc<dyn throttle::Store>,
    /// Where long jobs leave their cursor.
    pub checkpoints: Arc<dyn Checkpoints>,
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
