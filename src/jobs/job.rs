//! A job: a row with a kind and arguments that a handler will run.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Error;

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
    /// The caller's trace, as W3C Trace Context writes it; handed on to the handler.
    #[serde(default)]
    pub traceparent: Option<String>,
    /// Seconds that one attempt may take; absent for the kind's own time-out.
    #[serde(default, rename = "timeout")]
    pub timeout_s: Option<f64>,
    /// Seconds for which the job waits for the next one with its unique key, which then takes its place and waits as long again.
    #[serde(default, rename = "debounce")]
    pub debounce_s: Option<f64>,
    /// Seconds after the first of such a row of jobs when the last of them runs at the latest; absent for ten times `debounce`.
    #[serde(default, rename = "debounce_max")]
    pub debounce_max_s: Option<f64>,
    /// Takes the place of the waiting job with its unique key; a running one is left alone and this one runs after.
    #[serde(default)]
    pub replace: bool,
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
            traceparent: None,
            timeout_s: None,
            debounce_s: None,
            debounce_max_s: None,
            replace: false,
        }
    }

    /// A job of `kind` with these arguments and every other default. Fails, naming `args`, if they cannot be JSON.
    ///
    /// ```
    /// use flyball::jobs::NewJob;
    ///
    /// #[derive(serde::Serialize)]
    /// struct Welcome {
    ///     user: i64,
    /// }
    ///
    /// let job = NewJob::of("welcome", &Welcome { user: 7 })?.throttle("mail").key("tenant-7").priority(0).max_attempts(3);
    /// assert_eq!((job.args, job.throttle.as_str()), (serde_json::json!({"user": 7}), "mail"));
    /// # Ok::<(), flyball::jobs::Error>(())
    /// ```
    pub fn of(kind: impl Into<String>, args: &impl Serialize) -> Result<Self, Error> {
        let args = serde_json::to_value(args).map_err(|error| Error::Refused {
            index: None,
            field: "args".to_owned(),
            message: format!("cannot be written as JSON: {error}"),
        })?;
        Ok(Self::new(kind, args))
    }

    /// The throttle it passes through.
    pub fn throttle(self, name: impl Into<String>) -> Self {
        Self { throttle: name.into(), ..self }
    }

    /// Its rate-limit key: a lane of its own in the throttle.
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: key.into(), ..self }
    }

    /// 0 runs first, 3 last.
    pub fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// Not before this time.
    pub fn run_at(self, at: Timestamp) -> Self {
        Self { run_at: Some(at), ..self }
    }

    /// Attempts before it is dead, 1 to 1000.
    pub fn max_attempts(self, attempts: i32) -> Self {
        Self { max_attempts: attempts, ..self }
    }

    /// Tokens that it takes from its throttle.
    pub fn cost(self, tokens: f64) -> Self {
        Self { cost: tokens, ..self }
    }

    /// Makes no second job while an unfinished one of its kind has this unique key.
    pub fn unique(self, key: impl Into<String>) -> Self {
        Self { unique_key: Some(key.into()), ..self }
    }

    /// With [`NewJob::unique`]: keeps the key for this long after enqueueing, finished or not.
    pub fn unique_for(self, window: Duration) -> Self {
        Self { unique_for: Some(window.as_secs_f64()), ..self }
    }

    /// With [`NewJob::unique`]: takes the place of the job that waits. A running one is left alone, and this one runs after.
    pub fn replace(self) -> Self {
        Self { replace: true, ..self }
    }

    /// With [`NewJob::unique`]: waits this long for a next such job, which takes its place and waits as long again; at the
    /// latest ten times as long after the first.
    pub fn debounce(self, quiet: Duration) -> Self {
        Self { debounce_s: Some(quiet.as_secs_f64()), ..self }
    }

    /// With [`NewJob::debounce`]: runs at the latest this long after the first of such a row of jobs.
    pub fn debounce_max(self, longest: Duration) -> Self {
        Self { debounce_max_s: Some(longest.as_secs_f64()), ..self }
    }

    /// How long one attempt may take, instead of the kind's own time-out.
    pub fn timeout(self, longest: Duration) -> Self {
        Self { timeout_s: Some(longest.as_secs_f64()), ..self }
    }

    /// The trace that the job belongs to, as a W3C `traceparent`.
    pub fn traceparent(self, trace: impl Into<String>) -> Self {
        Self { traceparent: Some(trace.into()), ..self }
    }

    /// Whether the text is a `traceparent` as W3C Trace Context writes it: version, trace, parent and flags in lowercase
    /// hexadecimal, neither trace nor parent all zeros.
    pub fn is_traceparent(text: &str) -> bool {
        let parts: Vec<&str> = text.split('-').collect();
        let [version, trace, parent, flags] = parts.as_slice() else { return false };
        let is_hex = |part: &str, digits: usize| {
            part.len() == digits && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_some = |part: &str| part.bytes().any(|byte| byte != b'0');
        is_hex(version, 2)
            && *version != "ff"
            && is_hex(trace, 32)
            && is_some(trace)
            && is_hex(parent, 16)
            && is_some(parent)
            && is_hex(flags, 2)
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
    /// 0 runs first, 3 last.
    pub priority: i32,
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
    /// Longest that an attempt may take, where the job has a bound of its own.
    pub timeout: Option<Duration>,
    /// The trace of whoever enqueued it, as W3C `traceparent`.
    pub traceparent: Option<String>,
}
