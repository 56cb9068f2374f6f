//! A job: a row with a kind and arguments that a handler will run.

use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Error, JobRetry};
use crate::trace::TraceParent;

/// The state of a job, as shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Waiting for a later time.
    Scheduled,
    /// Free to run as soon as its throttle grants tokens; waiting for them uses no attempt.
    Ready,
    /// Held by a worker under a lease.
    Running,
    /// Waiting for the next attempt after a failed one.
    Retryable,
    /// Finished successfully.
    Completed,
    /// Ended without completing: cancelled, discarded or dropped.
    Cancelled,
    /// A dead letter: it runs again only if it is requeued.
    Dead,
}

impl State {
    /// All states, in the order in which a job may pass through them.
    pub const ALL: [Self; 7] = [
        Self::Scheduled,
        Self::Ready,
        Self::Running,
        Self::Retryable,
        Self::Completed,
        Self::Cancelled,
        Self::Dead,
    ];

    /// Returns the name of the state in SQL, HTTP and the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Retryable => "retryable",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Dead => "dead",
        }
    }
}

/// A text that names no state of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a state of a job")]
pub struct UnknownState(pub String);

impl FromStr for State {
    type Err = UnknownState;

    fn from_str(name: &str) -> Result<Self, UnknownState> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == name);
        found.ok_or_else(|| UnknownState(name.to_owned()))
    }
}

/// The fate of a job if one of those after which it runs does not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum AfterFailure {
    /// It is cancelled if one of them is cancelled or discarded, and waits for a dead one, which may
    /// be requeued.
    Cancel,
    /// It runs when all have ended, in whatever way; a dead one has ended.
    Run,
}

impl AfterFailure {
    /// All fates, by their names in SQL, HTTP and the command line.
    pub const WORDS: [(&'static str, Self); 2] = [("cancel", Self::Cancel), ("run", Self::Run)];

    /// Returns the name of the fate.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Run => "run",
        }
    }
}

impl FromStr for AfterFailure {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::WORDS.into_iter().find(|(word, _)| *word == name);
        let found = found.map(|(_, fate)| fate);
        found.ok_or_else(|| format!("{name:?} is not known; allowed are cancel and run"))
    }
}

/// The most jobs after which a job runs.
pub const AFTER_MAX: usize = 100;

/// The throttle of the calls of webhooks.
pub const WEBHOOKS: &str = "webhooks";

/// The most tags of a job.
pub const TAGS_MAX: usize = 16;

/// The longest tag, in bytes.
pub const TAG_BYTES_MAX: usize = 64;

/// A job to be enqueued.
///
/// Field names and defaults are the same in SQL, HTTP, CLI and Rust.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    /// The registered kind whose handler runs the job, such as `http` or `reindex`.
    pub kind: String,
    /// The arguments for the handler, at most 256 KiB as JSON text.
    #[serde(default = "NewJob::empty_args")]
    pub args: Value,
    /// The name of the throttle that limits the job.
    #[serde(default = "NewJob::default_throttle")]
    pub throttle: String,
    /// The rate-limit key (customer, account, token); empty for none.
    #[serde(default)]
    pub key: String,
    /// The priority: 0 runs first, 3 last.
    #[serde(default = "NewJob::default_priority")]
    pub priority: i32,
    /// The earliest start; absent means now.
    #[serde(default)]
    pub run_at: Option<Timestamp>,
    /// Attempts before the job is dead, 1 to 1000.
    #[serde(default = "NewJob::default_max_attempts")]
    pub max_attempts: i32,
    /// The unique key: no second job of this kind with this key is created while the first is
    /// unfinished.
    #[serde(default)]
    pub unique_key: Option<String>,
    /// Seconds after enqueueing for which the unique key stays taken, whether or not the job has
    /// finished.
    #[serde(default)]
    pub unique_for: Option<f64>,
    /// Tokens that the job takes from its throttle, above 0 and at most 1e9.
    #[serde(default = "NewJob::default_cost")]
    pub cost: f64,
    /// The caller's trace, as a W3C `traceparent`; passed to the handler.
    #[serde(default)]
    pub traceparent: Option<String>,
    /// The timeout of one attempt, in seconds; absent for the timeout of the kind.
    #[serde(default, rename = "timeout")]
    pub timeout_s: Option<f64>,
    /// The debounce, in seconds: the job waits this long for the next job with its unique key,
    /// which replaces it and waits as long again.
    #[serde(default, rename = "debounce")]
    pub debounce_s: Option<f64>,
    /// The latest start, in seconds after the first of a series of debounced jobs; absent for ten
    /// times `debounce`.
    #[serde(default, rename = "debounce_max")]
    pub debounce_max_s: Option<f64>,
    /// True to replace the waiting job with the same unique key; a running job is left alone, and
    /// this one runs after it.
    #[serde(default)]
    pub replace: bool,
    /// The number of the group that the job joins; absent for none.
    #[serde(default)]
    pub group: Option<i64>,
    /// Short texts by which people find the job: up to 16, each of 1 to 64 bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The jobs after whose end this one runs, by their numbers; at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<i64>,
    /// The fate of the job if one of those does not complete; absent means cancel.
    #[serde(default)]
    pub after_failure: Option<AfterFailure>,
    /// The URL that is called when the job has completed.
    #[serde(default)]
    pub on_complete: Option<String>,
    /// The URL that is called when the job is dead.
    #[serde(default)]
    pub on_dead: Option<String>,
    /// The name of the secret that signs these calls.
    #[serde(default)]
    pub webhook_secret: Option<String>,
    /// The waits after failed attempts; absent for those of the kind.
    #[serde(default)]
    pub retry: Option<JobRetry>,
}

impl NewJob {
    /// Returns a job of `kind` with every default.
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
            group: None,
            tags: Vec::new(),
            after: Vec::new(),
            after_failure: None,
            on_complete: None,
            on_dead: None,
            webhook_secret: None,
            retry: None,
        }
    }

    /// Returns a job of `kind` with these arguments and every other default.
    ///
    /// Fails, naming `args`, if they cannot be written as JSON.
    ///
    /// ```
    /// # use flyball_core as flyball;
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

    /// Sets the name of the throttle that limits the job.
    pub fn throttle(self, name: impl Into<String>) -> Self {
        Self {
            throttle: name.into(),
            ..self
        }
    }

    /// Sets the rate-limit key; each key has its own lane in the throttle.
    pub fn key(self, key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            ..self
        }
    }

    /// Sets the priority: 0 runs first, 3 last.
    pub fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// Sets the earliest start.
    pub fn run_at(self, at: Timestamp) -> Self {
        Self {
            run_at: Some(at),
            ..self
        }
    }

    /// Sets the number of attempts before the job is dead, 1 to 1000.
    pub fn max_attempts(self, attempts: i32) -> Self {
        Self {
            max_attempts: attempts,
            ..self
        }
    }

    /// Sets the tokens that the job takes from its throttle.
    pub fn cost(self, tokens: f64) -> Self {
        Self {
            cost: tokens,
            ..self
        }
    }

    /// Sets the unique key: no second job of this kind with this key is created while the first is
    /// unfinished.
    pub fn unique(self, key: impl Into<String>) -> Self {
        Self {
            unique_key: Some(key.into()),
            ..self
        }
    }

    /// Keeps the key of [`NewJob::unique`] taken for this long after enqueueing, whether or not the
    /// job has finished.
    pub fn unique_for(self, window: Duration) -> Self {
        Self {
            unique_for: Some(window.as_secs_f64()),
            ..self
        }
    }

    /// Replaces the waiting job with the same key of [`NewJob::unique`]; a running job is left
    /// alone, and this one runs after it.
    pub fn replace(self) -> Self {
        Self {
            replace: true,
            ..self
        }
    }

    /// Waits this long for the next job with the same key of [`NewJob::unique`], which replaces
    /// this one and waits as long again.
    ///
    /// The last job of such a series starts at the latest ten times as long after the first, unless
    /// [`NewJob::debounce_max`] sets another bound.
    pub fn debounce(self, quiet: Duration) -> Self {
        Self {
            debounce_s: Some(quiet.as_secs_f64()),
            ..self
        }
    }

    /// Sets the latest start of a series of jobs with [`NewJob::debounce`], counted from the first
    /// of them.
    pub fn debounce_max(self, longest: Duration) -> Self {
        Self {
            debounce_max_s: Some(longest.as_secs_f64()),
            ..self
        }
    }

    /// Adds the job to a group, which counts it and waits for its end.
    pub fn group(self, id: i64) -> Self {
        Self {
            group: Some(id),
            ..self
        }
    }

    /// Adds a tag, by which people find the job; a job has up to 16.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Lets the job begin when these others have ended; at most 100.
    ///
    /// If one of them is cancelled or discarded, this job is cancelled, and a dead one is waited
    /// for, unless [`NewJob::after_failure`] says otherwise.
    pub fn after(mut self, jobs: impl IntoIterator<Item = i64>) -> Self {
        self.after.extend(jobs);
        self
    }

    /// Sets the fate of the job if one of those of [`NewJob::after`] does not complete.
    pub fn after_failure(self, fate: AfterFailure) -> Self {
        Self {
            after_failure: Some(fate),
            ..self
        }
    }

    /// Sets the URL that is called when the job has completed, with an event of the type
    /// `job.completed`.
    pub fn on_complete(self, url: impl Into<String>) -> Self {
        Self {
            on_complete: Some(url.into()),
            ..self
        }
    }

    /// Sets the URL that is called when the job is dead, with an event of the type `job.dead`.
    pub fn on_dead(self, url: impl Into<String>) -> Self {
        Self {
            on_dead: Some(url.into()),
            ..self
        }
    }

    /// Sets the name of the secret that signs the calls of [`NewJob::on_complete`] and
    /// [`NewJob::on_dead`]; the workers hold the secret itself.
    pub fn webhook_secret(self, name: impl Into<String>) -> Self {
        Self {
            webhook_secret: Some(name.into()),
            ..self
        }
    }

    /// Sets the waits after failed attempts, instead of those of the kind.
    pub fn retry(self, waits: JobRetry) -> Self {
        Self {
            retry: Some(waits),
            ..self
        }
    }

    /// Returns true if a webhook is called at an end of the job.
    pub fn has_webhooks(&self) -> bool {
        self.on_complete.is_some() || self.on_dead.is_some()
    }

    /// Sets the timeout of one attempt, instead of the timeout of the kind.
    pub fn timeout(self, longest: Duration) -> Self {
        Self {
            timeout_s: Some(longest.as_secs_f64()),
            ..self
        }
    }

    /// Sets the trace that the job belongs to, as a W3C `traceparent`.
    pub fn traceparent(self, trace: impl Into<String>) -> Self {
        Self {
            traceparent: Some(trace.into()),
            ..self
        }
    }

    /// Returns true if the text is a W3C `traceparent`: version, trace, parent and flags in
    /// lowercase hexadecimal, with neither trace nor parent all zeros.
    pub fn is_traceparent(text: &str) -> bool {
        TraceParent::parse(text).is_some()
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

/// A job as passed to its handler.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The id of the job: 53 bits, ascending by day.
    pub id: i64,
    /// The kind of the job, which selects its handler.
    pub kind: String,
    /// The arguments for the handler.
    pub args: Value,
    /// The name of the throttle that limits the job.
    pub throttle: String,
    /// The rate-limit key; empty for none.
    pub key: String,
    /// The priority: 0 runs first, 3 last.
    pub priority: i32,
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
    /// The timeout of one attempt, if the job has its own.
    pub timeout: Option<Duration>,
    /// The producer's trace, as a W3C `traceparent`.
    pub traceparent: Option<String>,
    /// The waits after failed attempts, if the job has its own.
    pub retry: Option<JobRetry>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_read_as_it_is_written_and_another_text_is_no_state() {
        for state in State::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
            let json = serde_json::to_value(state).unwrap();
            assert_eq!(json, state.as_str(), "the same name on the wire");
        }
        assert_eq!(
            "finished".parse::<State>(),
            Err(UnknownState("finished".to_owned()))
        );
    }
}
