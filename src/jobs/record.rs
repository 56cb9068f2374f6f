//! What the queue store tells about jobs: records for people and programs that look, not for handlers.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::State;

/// The answer to an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Enqueued {
    /// The new job, or the one that already holds the unique key.
    pub id: i64,
    /// True if no new job was made.
    pub duplicate: bool,
    /// True if the job that waited was given the new arguments.
    pub replaced: bool,
    /// How far its lane is above the throttle's `max_backlog`; `None` where there is room or no cap.
    pub backlog: Option<Backlog>,
}

/// A lane that holds more ready jobs than its throttle's knob `max_backlog` allows: the sign to send less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize, utoipa::ToSchema)]
pub struct Backlog {
    /// Ready jobs of the lane, counted no further than one above the cap.
    pub depth: i64,
    /// The cap.
    pub max: i64,
}

/// A job in a list.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Summary {
    /// Its number.
    pub id: i64,
    /// What runs it.
    pub kind: String,
    /// Its throttle.
    pub throttle: String,
    /// Its rate-limit key.
    pub key: String,
    /// Where it stands.
    pub state: State,
    /// 0 runs first, 3 last.
    pub priority: i32,
    /// Attempts that were used so far.
    pub attempt: i32,
    /// Attempts before it is dead.
    pub max_attempts: i32,
    /// Tokens it takes from its throttle.
    pub cost: f64,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When it is due, for scheduled and retryable jobs.
    pub due_at: Option<Timestamp>,
    /// The error of its last attempt, where there is one.
    pub last_error: Option<String>,
}

/// One job with everything that is known about it.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Detail {
    /// As in lists.
    #[serde(flatten)]
    pub summary: Summary,
    /// Its arguments.
    pub args: Value,
    /// Its unique key is taken (a digest is kept, not the text).
    pub unique: bool,
    /// Every finished attempt, oldest first.
    pub attempts: Vec<Attempt>,
    /// The worker that runs it now, where one does.
    pub worker: Option<String>,
    /// The last sign of life of that worker.
    pub heartbeat_at: Option<Timestamp>,
    /// Seconds since then, by the clock of Postgres.
    pub heartbeat_age_s: Option<f64>,
    /// Since when it runs.
    pub started_at: Option<Timestamp>,
    /// Longest that one attempt may take, in seconds, where the job says so itself; otherwise its kind decides.
    pub timeout_s: Option<f64>,
    /// The trace of whoever enqueued it.
    pub traceparent: Option<String>,
    /// True when its cancellation was asked for and its handler has not stopped yet.
    pub cancelling: bool,
    /// How far a long job has come.
    pub progress: Option<Progress>,
}

/// A finished attempt.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Attempt {
    /// 1 for the first.
    pub attempt: i32,
    /// `completed`, `failed`, `ambiguous` (nobody knows whether it was done), `throttled`, `snoozed`, `dead`, `cancelled`, `lost`
    /// (its worker died), `handed_back`, `dropped` (over the limit of a throttle that drops) or `merged` (another job took the
    /// place of this one while it waited, under its number).
    pub outcome: String,
    /// The worker that ran it; absent for a job that was cancelled before it ran.
    pub worker: Option<String>,
    /// When it began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Timestamp,
    /// What went wrong.
    pub error: Option<String>,
}

/// How far a long job has come, for people.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Progress {
    /// Units done.
    pub done: i64,
    /// Units in all, where known.
    pub total: Option<i64>,
    /// 0 to 100, where the total is known.
    pub percent: Option<f64>,
    /// One line for people.
    pub note: String,
    /// When it was written.
    pub at: Timestamp,
}

/// Which jobs to list, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Only jobs in this state.
    pub state: Option<State>,
    /// Only jobs that have ended, completed, cancelled or dead; for lists that name no state.
    pub ended: bool,
    /// Only jobs of this kind.
    pub kind: Option<String>,
    /// Only jobs of this throttle.
    pub throttle: Option<String>,
    /// Only jobs with this key.
    pub key: Option<String>,
    /// Only jobs that were enqueued at this time or later.
    pub created_after: Option<Timestamp>,
    /// Only jobs that were enqueued before this time.
    pub created_before: Option<Timestamp>,
    /// Only jobs with a smaller id: the cursor.
    pub before: Option<i64>,
    /// At most so many, 1 to 1000.
    pub limit: i64,
}

/// A page of jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Newest first; a page may be short, or empty, though more follow.
    pub jobs: Vec<Summary>,
    /// [`Filter::before`] of the next page; `None` when everything was looked at.
    pub next: Option<i64>,
}

/// How many jobs of a throttle are in which state, as last counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Depth {
    /// The throttle.
    pub throttle: String,
    /// May run as soon as tokens allow.
    pub ready: i64,
    /// Wait for a time: scheduled and retryable.
    pub scheduled: i64,
    /// Hold a lease.
    pub running: i64,
    /// Dead letters.
    pub dead: i64,
    /// When its oldest ready job was enqueued; absent where no job is ready.
    pub oldest_ready_at: Option<Timestamp>,
}

/// A lane of the directory, with its depth as last counted.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneDepth {
    /// The lane.
    pub lane_id: i64,
    /// Its key; empty for the lane of jobs without one.
    pub key: String,
    /// Ready jobs.
    pub depth: i64,
    /// The depth is no older than this.
    pub counted_at: Option<Timestamp>,
    /// When its oldest ready job was enqueued, as it is now.
    pub oldest_at: Option<Timestamp>,
    /// Its share beside the other lanes of its throttle.
    pub weight: f64,
    /// When somebody first saw it.
    pub first_seen: Timestamp,
}

/// In which order lanes are listed, and behind which the page begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LanesAfter {
    /// The deepest first; lanes without ready jobs are left out.
    Depth {
        /// The depth of the last lane that was listed.
        depth: i64,
        /// The lane itself.
        lane_id: i64,
    },
    /// By key, after this one.
    Key(Option<String>),
}

impl LanesAfter {
    /// The deepest first, from the beginning.
    pub const DEEPEST: Self = Self::Depth { depth: i64::MAX, lane_id: i64::MAX };
}

/// Lanes, and where the next page begins.
#[derive(Clone, Debug, PartialEq)]
pub struct LanePage {
    /// In the order that was asked for.
    pub lanes: Vec<LaneDepth>,
    /// `None` after the last page.
    pub next: Option<LanesAfter>,
}

/// An attempt that went wrong lately.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Failure {
    /// The job.
    pub job_id: i64,
    /// What ran it.
    pub kind: String,
    /// Its throttle.
    pub throttle: String,
    /// Its key.
    pub key: String,
    /// Which attempt.
    pub attempt: i32,
    /// As in [`Attempt::outcome`].
    pub outcome: String,
    /// What went wrong.
    pub error: Option<String>,
    /// When.
    pub at: Timestamp,
}

/// A throttle of which several attempts in a row failed, and none succeeded for a while.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Failing {
    /// Its name.
    pub throttle: String,
    /// Attempts that failed since the last success.
    pub failures: i64,
    /// When an attempt last succeeded; `None` if none did since its workers started.
    pub succeeded_at: Option<Timestamp>,
    /// The newest error; empty where it is not known.
    pub error: String,
}

/// What became of a request to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelAnswer {
    /// It was waiting and is cancelled now.
    Cancelled,
    /// It runs; its handler has been asked to stop.
    Requested,
    /// It had ended already, in this state.
    Ended(State),
    /// There is no such job.
    NotFound,
}

/// What became of a request to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAnswer {
    /// It is ready now, with its attempts counted from zero again if it was dead.
    Ready,
    /// It is in a state from which it cannot be retried: running, completed or cancelled… as said.
    Refused(State),
    /// There is no such job.
    NotFound,
}

/// Why the queue store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field of a job cannot be accepted; nothing was enqueued.
    #[error("{field}: {message}")]
    Refused {
        /// Which job of a batch, from 0.
        index: Option<usize>,
        /// The field, as named in SQL and HTTP.
        field: String,
        /// What was wrong and what is allowed.
        message: String,
    },
    /// A lane is full and its throttle says `on_backlog` reject; nothing was enqueued.
    #[error("throttle {throttle:?}, key {key:?}: {} jobs of this lane are ready; its knob max_backlog allows {}", .backlog.depth, .backlog.max)]
    Full {
        /// The throttle.
        throttle: String,
        /// The key.
        key: String,
        /// How full.
        backlog: Backlog,
    },
    /// Postgres cannot be reached or is starting up.
    #[error("the queue store did not answer: {0}")]
    Lost(String),
    /// Anything else that Postgres said.
    #[error("the queue store failed: {0}")]
    Store(#[source] sqlx::Error),
}

impl Error {
    /// True if the store cannot be used as it was named, for instance by a broken URL; trying again does not help.
    pub fn is_of_settings(&self) -> bool {
        matches!(self, Self::Store(sqlx::Error::Configuration(_)))
    }
}
