//! Jobs for workers in other programs: the claims of such workers, the leases under which they hold
//! jobs, and the reports on them.

use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::Value;

use super::{Checkpoint, Error, Job, Outcome, State};

/// The jobs that remote workers ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemoteOffer {
    /// The kinds, in their order.
    pub kinds: Vec<String>,
    /// The throttles, as patterns in their order; empty for all.
    pub throttles: Vec<String>,
    /// The tenant whose jobs alone are wanted; `None` for the jobs of all.
    pub tenant: Option<String>,
}

impl RemoteOffer {
    /// Returns an offer whose lists are in order and name nothing twice, so that equal ones compare
    /// equal.
    pub fn new(kinds: Vec<String>, throttles: Vec<String>, tenant: Option<String>) -> Self {
        let sorted = |mut names: Vec<String>| {
            names.sort_unstable();
            names.dedup();
            names
        };
        Self {
            kinds: sorted(kinds),
            throttles: sorted(throttles),
            tenant,
        }
    }
}

/// A request of a remote worker for jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteClaim {
    /// The name of the worker, its own among those of its tenant.
    pub worker: String,
    /// The host of the worker, for people.
    pub host: String,
    /// The jobs that it asks for.
    pub offer: RemoteOffer,
    /// The most jobs to hand to it.
    pub limit: u32,
    /// The longest wait for the first job.
    pub wait: Duration,
    /// The time without a heartbeat after which a job of this claim is lost.
    pub lease: Duration,
}

/// A job that was handed to a remote worker.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteJob {
    /// The id of the lane from which the job came.
    pub lane_id: i64,
    /// The job; its fence is that of the lease.
    pub job: Job,
    /// The tenant of the job; empty for none.
    pub tenant: String,
    /// The time at which the lease ends without a heartbeat.
    pub expires_at: Timestamp,
    /// The last checkpoint of the job, from any of its attempts.
    pub checkpoint: Option<Checkpoint>,
}

/// The lease that a remote worker presents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentedLease {
    /// The id of the job.
    pub job_id: i64,
    /// The fence of the lease.
    pub fence: i64,
    /// The tenant to which the caller is bound; `None` for none.
    pub tenant: Option<String>,
}

/// A heartbeat for one job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteBeat {
    /// The new cursor; `None` keeps the last one.
    pub cursor: Option<Value>,
    /// The new progress; `None` keeps the last one.
    pub progress: Option<RemoteProgress>,
    /// The real cost so far, in tokens.
    pub cost: Option<f64>,
}

/// The progress of a job, as its remote worker reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteProgress {
    /// Units done.
    pub done: i64,
    /// Units in all, if known.
    pub total: Option<i64>,
    /// A note for people; may be empty.
    pub note: String,
}

/// The state of a lease after a heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseState {
    /// The time at which the lease ends without another heartbeat.
    pub expires_at: Timestamp,
    /// True if the job is to be cancelled: the worker should stop and end it.
    pub is_cancelled: bool,
}

/// The end of an attempt, as its remote worker reports it.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteEnd {
    /// The outcome.
    pub outcome: Outcome,
    /// The result of a completed job, with the time for which it is kept.
    pub result: Option<(Value, Duration)>,
    /// The real cost, in tokens.
    pub cost: Option<f64>,
}

/// The reason why a call of a remote worker was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The caller does not hold the lease, or not any more.
    #[error("the lease is lost")]
    LeaseLost,
    /// The process stops, serves as many different workers as it can, or carries out another report
    /// on the same lease.
    #[error("{0}")]
    Unavailable(String),
    /// The queue failed.
    #[error(transparent)]
    Queue(#[from] Error),
}

/// The service that hands jobs to remote workers.
pub trait RemoteWorkers: Send + Sync + 'static {
    /// Returns the kinds that this installation runs itself, and so hands to nobody.
    fn own_kinds(&self) -> &[String];

    /// Returns jobs for a worker, with its id, as soon as there are any; none after its wait.
    fn claim(
        &self,
        claim: RemoteClaim,
    ) -> BoxFuture<'_, Result<(i32, Vec<RemoteJob>), RemoteError>>;

    /// Extends a lease and stores what the worker reports.
    fn beat(
        &self,
        lease: PresentedLease,
        beat: RemoteBeat,
    ) -> BoxFuture<'_, Result<LeaseState, RemoteError>>;

    /// Ends an attempt; returns the state of the job after it.
    fn end(
        &self,
        lease: PresentedLease,
        end: RemoteEnd,
    ) -> BoxFuture<'_, Result<State, RemoteError>>;
}
