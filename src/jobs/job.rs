//! A job: a row with a kind and arguments that a handler will run.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where a job stands, as people see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It shall run at a later time.
    Scheduled,
    /// It may run as soon as its throttle lets it; waiting for tokens uses no attempt.
    Ready,
    /// A worker holds its lease.
    Running,
    /// An attempt failed and another is due later.
    Retryable,
    /// It is done.
    Completed,
    /// Somebody cancelled it.
    Cancelled,
    /// It will not run again by itself: the dead letter.
    Dead,
}

/// A job to be enqueued. Field names and defaults are the same in SQL, HTTP, CLI and Rust.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    /// What runs it: a registered kind such as `http` or `reindex`.
    pub kind: String,
    /// Arguments for the handler, at most 256 KiB as text.
    #[serde(default = "NewJob::empty_args")]
    pub args: Value,
    /// The throttle it passes through.
    #[serde(default = "NewJob::default_throttle")]
    pub throttle: String,
    /// The rate-limit key (customer, account, token); empty for none.
    #[serde(default)]
    pub key: String,
    /// 0 runs first, 3 last.
    #[serde(default = "NewJob::default_priority")]
    pub priority: i32,
    /// Not before this time; absent means now.
    #[serde(default)]
    pub run_at: Option<Timestamp>,
    /// Attempts before the job is dead, 1 to 1000.
    #[serde(default = "NewJob::default_max_attempts")]
    pub max_attempts: i32,
    /// While an unfinished job of this kind with this unique key exists, no second one is made.
    #[serde(default)]
    pub unique_key: Option<String>,
    /// Seconds after enqueueing for which the unique key stays taken, whether or not the job has finished.
    #[serde(default)]
    pub unique_for: Option<f64>,
    /// Tokens that the job takes from its throttle; above 0.
    #[serde(default = "NewJob::default_cost")]
    pub cost: f64,
}

impl NewJob {
    /// A job of `kind` with every default.
    pub fn new(kind: impl Into<String>, args: Value) -> Self {
        Self {
            kind: kind.into(),
            args,
            throttle: Self::default_throttle(),
            key: String::new(),
            priority: Self::default_priority(),
            run_at: None,
            max_attempts: Self::default_max_attempts(),
            unique_key: None,
            unique_for: None,
            cost: Self::default_cost(),
        }
    }

    fn empty_args() -> Value {
        Value::Object(serde_json::Map::new())
    }

    fn default_throttle() -> String {
        crate::throttle::Name::DEFAULT.to_owned()
    }

    fn default_priority() -> i32 {
        1
    }

    fn default_max_attempts() -> i32 {
        10
    }

    fn default_cost() -> f64 {
        1.0
    }
}

/// A job as a handler gets it.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its number: 53 bits, ascending by day.
    pub id: i64,
    /// What runs it.
    pub kind: String,
    /// Its arguments.
    pub args: Value,
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
}
