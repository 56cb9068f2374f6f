//! Records of jobs that the queue store returns to people and programs, not to handlers.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::{AfterFailure, JobRetry, JobSearch, State};

/// The result of enqueueing one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Enqueued {
    /// The id of the new job, or of the job that already holds the unique key.
    pub id: i64,
    /// True if no new job was created.
    pub duplicate: bool,
    /// True if the waiting job took the new arguments.
    pub replaced: bool,
    /// The backlog of its lane, if it exceeds the throttle's `max_backlog`; `None` if there is room
    /// or no cap.
    pub backlog: Option<Backlog>,
}

/// The answer to a request that may repeat an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnceAnswer {
    /// The request is new, and its job was enqueued.
    Enqueued(Enqueued),
    /// The request repeats an earlier one, which enqueued this job.
    Replayed(i64),
    /// The same request is being handled elsewhere.
    Running,
    /// Its key was used with another body.
    Conflict,
}

/// A lane with more ready jobs than its throttle's knob `max_backlog` allows: a signal to send
/// less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct Backlog {
    /// Ready jobs of the lane, counted no further than one above the cap.
    pub depth: i64,
    /// The cap: the throttle's `max_backlog`.
    pub max: i64,
}

/// A job in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct Summary {
    /// The id of the job: 53 bits, ascending by day.
    pub id: i64,
    /// The kind of the job, which selects its handler.
    pub kind: String,
    /// The name of its throttle.
    pub throttle: String,
    /// The rate-limit key; empty for none.
    pub key: String,
    /// The tenant that owns the job; empty for the operators' own.
    pub tenant: String,
    /// The current state of the job.
    pub state: State,
    /// The priority: 0 runs first, 3 last.
    pub priority: i32,
    /// Attempts used so far.
    pub attempt: i32,
    /// Attempts before the job is dead.
    pub max_attempts: i32,
    /// Tokens that the job takes from its throttle.
    pub cost: f64,
    /// The time at which the job was enqueued.
    pub created_at: Timestamp,
    /// The time at which a scheduled or retryable job is due.
    pub due_at: Option<Timestamp>,
    /// The time at which a completed, cancelled or dead job ended.
    pub ended_at: Option<Timestamp>,
    /// The error of the last attempt, if there was one.
    pub last_error: Option<String>,
    /// The number of the group that counts the job; absent for none.
    pub group: Option<i64>,
    /// Short texts by which people find the job.
    pub tags: Vec<String>,
}

/// A job with its details: arguments, attempts, worker and progress.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct JobDetail {
    /// The same fields as in lists.
    #[serde(flatten)]
    pub summary: Summary,
    /// The arguments for the handler.
    pub args: Value,
    /// True if the job has a unique key; only its digest is stored.
    pub unique: bool,
    /// The finished attempts, oldest first; at most the last 100.
    pub attempts: Vec<Attempt>,
    /// The name of the worker that runs the job now, if any.
    pub worker: Option<String>,
    /// The last heartbeat of that worker.
    pub heartbeat_at: Option<Timestamp>,
    /// The age of that heartbeat in seconds, by the clock of Postgres.
    pub heartbeat_age_s: Option<f64>,
    /// The start of the current attempt, if the job is running.
    pub started_at: Option<Timestamp>,
    /// The timeout of one attempt in seconds, if the job has its own; otherwise that of its kind
    /// applies.
    pub timeout_s: Option<f64>,
    /// The producer's trace, as a W3C `traceparent`.
    pub traceparent: Option<String>,
    /// True if cancellation was requested and the handler has not stopped yet.
    pub cancelling: bool,
    /// The progress of a long job, as last stored.
    pub progress: Option<Progress>,
    /// The jobs after which it runs, as they were given.
    pub after: Vec<i64>,
    /// Its fate if one of those does not complete, if it was given.
    pub after_failure: Option<AfterFailure>,
    /// Those for which it still waits.
    pub waits_for: Vec<AwaitedJob>,
    /// The URL that is called when it has completed.
    pub on_complete: Option<String>,
    /// The URL that is called when it is dead.
    pub on_dead: Option<String>,
    /// The name of the secret that signs these calls.
    pub webhook_secret: Option<String>,
    /// The waits after failed attempts, if the job has its own.
    pub retry: Option<JobRetry>,
    /// The result of a completed job, as long as it is kept.
    pub result: Option<Value>,
}

/// A job for whose end another one waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct AwaitedJob {
    /// The number of the job.
    pub id: i64,
    /// Its state.
    pub state: State,
}

/// A finished attempt.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct Attempt {
    /// The number of the attempt, from 1.
    pub attempt: i32,
    /// The outcome: `completed`, `failed`, `ambiguous` (it is unknown whether the work was done),
    /// `throttled`, `snoozed`, `dead`, `cancelled`, `lost` (its worker died), `handed_back`,
    /// `dropped` (over the limit of a throttle that drops) or `merged` (another job replaced this
    /// one while it waited, under its id).
    pub outcome: String,
    /// The worker that ran the attempt; absent for a job that was cancelled before it ran.
    pub worker: Option<String>,
    /// The start of the attempt.
    pub started_at: Option<Timestamp>,
    /// The end of the attempt.
    pub finished_at: Timestamp,
    /// The error message, if there was one.
    pub error: Option<String>,
}

/// The progress of a long job, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct Progress {
    /// Units done, such as documents.
    pub done: i64,
    /// Units in all, if known.
    pub total: Option<i64>,
    /// The percentage done, 0 to 100, if the total is known.
    pub percent: Option<f64>,
    /// A description of one line for people.
    pub note: String,
    /// The time at which the progress was stored.
    pub at: Timestamp,
}

/// A filter of the jobs to list, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobFilter {
    /// Only jobs in this state.
    pub state: Option<State>,
    /// Only jobs that have ended: completed, cancelled or dead; ignored if `state` is set.
    pub ended: bool,
    /// Only jobs of this kind.
    pub kind: Option<String>,
    /// Only jobs of this throttle.
    pub throttle: Option<String>,
    /// Only jobs with this key.
    pub key: Option<String>,
    /// Only jobs of this tenant; all jobs if absent.
    pub tenant: Option<String>,
    /// Only jobs of this group.
    pub group: Option<i64>,
    /// Only jobs whose last error matches this pattern of SQL's `LIKE`: of dead jobs, and of others
    /// that failed before.
    pub error_like: Option<String>,
    /// Only jobs that fit this search.
    pub search: JobSearch,
    /// Only jobs enqueued at this time or later.
    pub created_after: Option<Timestamp>,
    /// Only jobs enqueued before this time.
    pub created_before: Option<Timestamp>,
    /// Only jobs with a smaller id: the cursor.
    pub before: Option<i64>,
    /// The most jobs to return, 1 to 1000.
    pub limit: i64,
}

/// A page of jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobPage {
    /// The jobs, newest first; a page may be short, or empty, although more follow.
    pub jobs: Vec<Summary>,
    /// The [`JobFilter::before`] of the next page; `None` after the last page.
    pub next: Option<i64>,
}

/// The number of jobs of a throttle in each state, as last counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct Depth {
    /// The name of the throttle.
    pub throttle: String,
    /// Jobs that may run as soon as tokens allow.
    pub ready: i64,
    /// Jobs that wait for a time: scheduled and retryable.
    pub scheduled: i64,
    /// Jobs held by a worker under a lease.
    pub running: i64,
    /// Jobs that are dead letters.
    pub dead: i64,
    /// The time from which the oldest ready job waits: that at which it was enqueued, or for which;
    /// absent if no job is ready.
    pub oldest_ready_at: Option<Timestamp>,
}

/// The number of all jobs in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct JobCounts {
    /// Jobs that may run as soon as tokens allow.
    pub ready: i64,
    /// Jobs that wait for a time: scheduled and retryable.
    pub scheduled: i64,
    /// Jobs held by a worker under a lease.
    pub running: i64,
    /// Jobs that are dead letters.
    pub dead: i64,
    /// Completed jobs that are still kept, by the estimate of Postgres; absent before its first.
    pub completed: Option<i64>,
    /// Cancelled jobs that are still kept, by the estimate of Postgres; absent before its first.
    pub cancelled: Option<i64>,
    /// A lower bound of the time at which the first four were counted; absent before the first
    /// count has ended.
    pub at: Option<Timestamp>,
}

/// A lane of the directory, with its depth as last counted.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneDepth {
    /// The id of the lane.
    pub lane_id: i64,
    /// The rate-limit key; empty for the lane of jobs without one.
    pub key: String,
    /// Ready jobs, as last counted.
    pub depth: i64,
    /// A lower bound of the time at which the depth was counted.
    pub counted_at: Option<Timestamp>,
    /// The time at which the oldest job that is ready now was enqueued.
    pub oldest_at: Option<Timestamp>,
    /// The time from which that job waits: that of its creation, or the later one for which it was
    /// enqueued.
    pub oldest_due_at: Option<Timestamp>,
    /// The share of the lane relative to the other lanes of its throttle.
    pub weight: f64,
    /// The time at which the lane was first seen.
    pub first_seen: Timestamp,
}

/// The order of a list of lanes, and the position after which a page begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LanesAfter {
    /// By depth, deepest first; lanes without ready jobs are left out.
    Depth {
        /// The depth of the last lane listed.
        depth: i64,
        /// The id of the last lane listed.
        lane_id: i64,
    },
    /// By key, after this one; `None` for the first page.
    Key(Option<String>),
}

impl LanesAfter {
    /// The first page by depth.
    pub const DEEPEST: Self = Self::Depth {
        depth: i64::MAX,
        lane_id: i64::MAX,
    };
}

/// A page of lanes, and the position of the next page.
#[derive(Clone, Debug, PartialEq)]
pub struct LanePage {
    /// The lanes, in the requested order.
    pub lanes: Vec<LaneDepth>,
    /// The position of the next page; `None` after the last page.
    pub next: Option<LanesAfter>,
}

/// A recent attempt that did not succeed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct FailedAttempt {
    /// The id of the job.
    pub job_id: i64,
    /// The kind of the job; empty if the job no longer exists.
    pub kind: String,
    /// The name of its throttle; empty if the job no longer exists.
    pub throttle: String,
    /// The rate-limit key; empty for none, or if the job no longer exists.
    pub key: String,
    /// The tenant that owns the job; empty for the operators' own, or if the job no longer exists.
    pub tenant: String,
    /// The number of the attempt, from 1.
    pub attempt: i32,
    /// The outcome, as in [`Attempt::outcome`].
    pub outcome: String,
    /// The error message, if there was one.
    pub error: Option<String>,
    /// The time of the failure.
    pub at: Timestamp,
    /// The number of the group that counts the job; absent for none.
    pub group: Option<i64>,
}

/// A kind that can be enqueued.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct RegisteredKind {
    /// The name of the kind.
    pub name: String,
    /// True if every role and every token that may enqueue may enqueue it.
    pub public: bool,
    /// The time at which it was first announced or registered.
    pub registered_at: Timestamp,
    /// Attempts that have ended.
    pub attempts: i64,
    /// The mean cost of about the last thousand of them, in tokens; absent before the first.
    pub mean_cost: Option<f64>,
}

/// A throttle whose last several attempts all failed, with no success for a while.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Failing {
    /// The name of the throttle.
    pub throttle: String,
    /// Attempts that failed since the last success.
    pub failures: i64,
    /// The time of the last success; `None` if there was none since its workers started.
    pub succeeded_at: Option<Timestamp>,
    /// The newest error; empty if it is unknown.
    pub error: String,
}

/// The result of a request to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelAnswer {
    /// The job was waiting and is cancelled now.
    Cancelled,
    /// The job is running; its handler was asked to stop.
    Requested,
    /// The job had already ended, in this state.
    Ended(State),
    /// The job does not exist.
    NotFound,
}

/// The result of a request to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAnswer {
    /// The job is ready now; a dead job starts with all its attempts again, unless the request
    /// keeps them. A message passes the gates of its recipient again before it is sent, and may be
    /// held once more.
    Ready,
    /// The job is in this state, from which it cannot be retried.
    Refused(State),
    /// The job does not exist.
    NotFound,
}

/// An error of the queue store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field of a job is not acceptable; nothing was enqueued.
    #[error("{}", refusal(.field, .message))]
    Refused {
        /// The index of the job in its batch, from 0.
        index: Option<usize>,
        /// The name of the field in SQL and HTTP.
        field: String,
        /// The problem, and the allowed values.
        message: String,
    },
    /// A lane is full and its throttle's `on_backlog` is `reject`; nothing was enqueued.
    #[error("throttle {throttle:?}, key {key:?}: {}{}; its knob max_backlog allows {}", in_lane(.backlog.depth), together(.backlog), .backlog.max)]
    Full {
        /// The name of the throttle.
        throttle: String,
        /// The rate-limit key of the lane.
        key: String,
        /// The depth of the lane, and its cap.
        backlog: Backlog,
    },
    /// The tenant has as many pending messages as it may have; nothing was enqueued.
    #[error("tenant {tenant:?}: {pending} messages are pending; the limit is {max}")]
    QueueFull {
        /// The tenant.
        tenant: String,
        /// The number of its pending messages.
        pending: i64,
        /// The most that it may have.
        max: i64,
        /// The time after which there will be room at the present pace, in seconds.
        retry_after_s: u64,
    },
    /// The recipient of a message got as many as its caps allow, and the category of the message
    /// refuses more; nothing was enqueued.
    #[error(
        "the recipient got as many messages as the rule {rule} allows; there is room at {reset_at}; nothing was enqueued"
    )]
    Capped {
        /// The index of the message among those of the call, from 0.
        index: Option<usize>,
        /// The rule, such as `per_hour 5 per 1h`.
        rule: String,
        /// The time at which there is room.
        reset_at: Timestamp,
    },
    /// Postgres is unreachable or starting up.
    #[error("the queue store did not answer: {0}")]
    Lost(String),
    /// Any other error from Postgres.
    #[error("the queue store failed: {0}")]
    Store(#[source] sqlx::Error),
}

impl Error {
    /// Returns true if the settings make the store unusable, for instance a broken URL; a retry
    /// does not help.
    pub fn is_of_settings(&self) -> bool {
        matches!(self, Self::Store(sqlx::Error::Configuration(_)))
    }
}

/// Returns the text of a refusal; without a field it is about the whole.
fn refusal(field: &str, message: &str) -> String {
    match field {
        "" => message.to_owned(),
        field => format!("{field}: {message}"),
    }
}

/// Returns the depth of a lane for people.
fn in_lane(depth: i64) -> String {
    match depth {
        1 => "1 job of this lane is ready".to_owned(),
        _ => format!("{depth} jobs of this lane are ready"),
    }
}

/// Returns the other reason for which jobs do not fit into a lane: they are many.
fn together(backlog: &Backlog) -> &'static str {
    if backlog.depth < backlog.max {
        " and too many more were sent together"
    } else {
        ""
    }
}
