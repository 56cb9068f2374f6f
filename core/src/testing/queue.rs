//! The queue of a test: runs due jobs inline, and inspects waiting ones.

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::backing::Backing;
use super::error::Error;
use super::keys::test_keys;
use super::memory::Memory;
use super::postgres::PostgresBackend;
use super::{JobRun, Report, clock};
use crate::input;
use crate::jobs::{
    Context, Ending, Handler, Issue, Job, JobInfo, Kinds, NewJob, OnAmbiguous, Outcome,
    PreparedJob, State, typed,
};
use crate::throttle::{Change, MemoryStore, Name, Store};

/// Attempts after which a test fails because its jobs do not end.
const MAX_RUNS: usize = 10_000;

/// Fields that only control the enqueueing and are not kept.
const FORGOTTEN: [&str; 4] = ["unique_for", "debounce", "debounce_max", "replace"];

/// A queue for tests.
pub struct TestQueue {
    kinds: Kinds,
    throttles: Arc<MemoryStore>,
    backing: Backing,
}

impl TestQueue {
    /// Returns a queue in memory.
    ///
    /// It needs no server, and holds only jobs enqueued through [`TestQueue::enqueue`].
    pub fn in_memory(kinds: Kinds) -> Self {
        let backing = Backing::Memory(Memory::new(kinds.names()));
        Self::with(kinds, backing)
    }

    /// Returns a queue on a database of the test's own, for instance the pool of `#[sqlx::test]`.
    ///
    /// It brings the schema up to date and registers the kinds; no worker may run on the database.
    pub async fn on(pool: sqlx::PgPool, kinds: Kinds) -> Result<Self, Error> {
        let backing = Backing::Postgres(PostgresBackend::new(pool, &kinds.names()).await?);
        Ok(Self::with(kinds, backing))
    }

    fn with(kinds: Kinds, backing: Backing) -> Self {
        let throttles = Arc::new(MemoryStore::new(Arc::new(|| clock::now().as_microsecond())));
        Self {
            kinds,
            throttles,
            backing,
        }
    }

    /// Enqueues a job; returns its id, or that of the job that holds its unique key.
    pub async fn enqueue(&self, job: NewJob) -> Result<i64, Error> {
        self.backing.enqueue(job).await
    }

    /// Runs the due jobs, and the due jobs that these enqueue, each in this task through its
    /// handler.
    ///
    /// A job that gives up its attempt (throttled, handed back) waits for the next call. A panic of
    /// a handler is a panic of the test.
    pub async fn run_due(&self) -> Result<Report, Error> {
        let mut report = Report::default();
        let mut given_back = Vec::new();
        loop {
            let due = self.backing.take_due().await?;
            if due.is_empty() {
                break;
            }
            for job in due {
                if report.runs.len() >= MAX_RUNS {
                    return Err(Error::Endless(MAX_RUNS));
                }
                let (outcome, ending) = self.run(&job).await;
                report.runs.push(JobRun::new(&job, outcome, state(&ending)));
                match ending {
                    Ending::Throttled { .. } | Ending::HandedBack => given_back.push((job, ending)),
                    _ => self.backing.finish(&job, ending).await?,
                }
            }
        }
        for (job, ending) in given_back {
            self.backing.finish(&job, ending).await?;
        }
        Ok(report)
    }

    /// Runs all jobs to their end: those that are due, then on to the time of the next retry or
    /// scheduled job, until none waits.
    pub async fn drain(&self) -> Result<Report, Error> {
        let mut report = Report::default();
        while let Some(wait) = self.backing.next_due().await? {
            if !wait.is_zero() {
                // A little further, because the time that passes between two reads of a clock is
                // not counted here.
                self.advance(wait + Duration::from_millis(1)).await?;
            }
            report.runs.extend(self.run_due().await?.runs);
            if report.runs.len() >= MAX_RUNS {
                return Err(Error::Endless(report.runs.len()));
            }
        }
        Ok(report)
    }

    /// Advances time: retries and scheduled jobs come closer, unique keys expire.
    pub async fn advance(&self, by: Duration) -> Result<(), Error> {
        self.backing.advance(by).await
    }

    /// Returns the arguments of the waiting jobs of a kind, oldest first.
    pub async fn enqueued<A: DeserializeOwned>(&self, kind: &str) -> Result<Vec<A>, Error> {
        let waiting = self.backing.waiting(kind, None).await?;
        let read = |job: NewJob| {
            typed::read(&job.args).map_err(|issue| Error::Type {
                args: job.args,
                pointer: issue.pointer,
                message: issue.message,
            })
        };
        waiting.into_iter().map(read).collect()
    }

    /// Panics unless a waiting job of this kind has everything that `like` has.
    ///
    /// `json!({"args": {"to": "ada"}, "key": "a"})` asks for a field of the arguments and the key,
    /// `json!({})` for any job of the kind. A queue keeps no `unique_for`, `debounce`,
    /// `debounce_max` and `replace`, so a test cannot ask for those; `run_at` is the time that a
    /// debounced job waits for.
    pub async fn assert_enqueued(&self, kind: &str, like: Value) {
        let waiting = self.waiting(kind, &like).await;
        assert!(
            matching(&waiting, &like) > 0,
            "no job of the kind {kind} like {like} waits; these wait: {}",
            listed(&waiting)
        );
    }

    /// Panics if a waiting job of this kind has everything that `like` has.
    pub async fn refute_enqueued(&self, kind: &str, like: Value) {
        let waiting = self.waiting(kind, &like).await;
        assert!(
            matching(&waiting, &like) == 0,
            "a job of the kind {kind} like {like} waits: {}",
            listed(&waiting)
        );
    }

    async fn waiting(&self, kind: &str, like: &Value) -> Vec<NewJob> {
        if let Some(field) = FORGOTTEN.iter().find(|field| like.get(field).is_some()) {
            panic!("a queue does not store {field} of a job; match its unique_key or its run_at");
        }
        let unique_key = like.get("unique_key").and_then(Value::as_str);
        self.backing
            .waiting(kind, unique_key)
            .await
            .unwrap_or_else(|error| panic!("{error}"))
    }

    async fn run(&self, job: &Job) -> (Outcome, Ending) {
        let Some(handler) = self.kinds.get(&job.kind).cloned() else {
            let delay = Duration::from_secs(5);
            let why = format!("this queue does not run the kind {}", job.kind);
            return (Outcome::Snooze { delay }, Ending::Snoozed { delay, why });
        };
        let mut job = job.clone();
        let dead = |issues: &[Issue]| Outcome::Dead {
            error: input::listed("args", issues),
        };
        let outcome = match test_keys().decrypt(&job.kind, "", &mut job.args) {
            Err(issue) => dead(&[issue]),
            Ok(_) => match handler.prepare(&job.args) {
                Ok(prepared) => self.attempt(prepared, handler.timeout(), &job).await,
                Err(issues) => dead(&issues),
            },
        };
        let ending = judge(&*handler, &job, outcome.clone());
        (outcome, ending)
    }

    async fn attempt(
        &self,
        prepared: PreparedJob<'_>,
        timeout: Option<Duration>,
        job: &Job,
    ) -> Outcome {
        self.open(&job.throttle).await;
        let cancelled = CancellationToken::new();
        let _over = cancelled.clone().drop_guard();
        let info = Arc::new(JobInfo::from(job));
        let context = Context::new(
            info.clone(),
            cancelled,
            self.throttles.clone(),
            self.backing.checkpoints(),
        );
        let work = prepared.run(job.clone(), context);
        let Some(limit) = job.timeout.or(timeout) else {
            return work.await;
        };
        let late = |_| {
            info.cut_off(Outcome::Retry {
                after: None,
                error: format!("timed out after {} s", limit.as_secs_f64()),
            })
        };
        tokio::time::timeout(limit, work).await.unwrap_or_else(late)
    }

    /// Creates the throttle without a rate limit, if it is absent, so that handlers that ask it
    /// themselves are not held up.
    async fn open(&self, throttle: &str) {
        let Ok(name) = Name::new(throttle) else {
            return;
        };
        let fields = [("rps".to_owned(), Some("-1".to_owned()))].into();
        let change = Change {
            fields,
            by: "test".to_owned(),
            create: true,
            absent_only: true,
            ..Change::default()
        };
        let _ = self.throttles.set(&name, &change).await;
    }
}

/// Returns the ending of an attempt with this outcome, as in the runner.
fn judge(handler: &dyn Handler, job: &Job, outcome: Outcome) -> Ending {
    let kind = handler.retry();
    let policy = job.retry.map_or(kind, |own| own.policy(kind));
    match outcome {
        Outcome::Done => Ending::Completed,
        Outcome::Dead { error } => Ending::Dead { error },
        Outcome::Cancelled => Ending::Cancelled,
        Outcome::HandedBack => Ending::HandedBack,
        Outcome::Snooze { delay } => Ending::Snoozed {
            delay,
            why: String::new(),
        },
        Outcome::Throttled { error, .. } | Outcome::Overloaded { error, .. } => {
            Ending::Throttled { alone: None, error }
        }
        Outcome::Retry { error, .. } if policy.is_last(job.attempt, job.max_attempts) => {
            Ending::Dead { error }
        }
        Outcome::Ambiguous { policy: on, error } => {
            let again = on == OnAmbiguous::Retry && !policy.is_last(job.attempt, job.max_attempts);
            Ending::Ambiguous {
                delay: again.then(|| policy.longest(job.attempt)),
                error,
            }
        }
        // The longest wait, not a random one, because tests need the same wait each time.
        Outcome::Retry { after, error } => Ending::Failed {
            delay: after.unwrap_or_else(|| policy.longest(job.attempt)),
            error,
        },
    }
}

fn state(ending: &Ending) -> State {
    match ending {
        Ending::Completed => State::Completed,
        Ending::Failed { .. } | Ending::Ambiguous { delay: Some(_), .. } => State::Retryable,
        Ending::Throttled { .. } | Ending::HandedBack => State::Ready,
        Ending::Snoozed { .. } => State::Scheduled,
        Ending::Dead { .. } | Ending::Ambiguous { delay: None, .. } => State::Dead,
        Ending::Cancelled => State::Cancelled,
    }
}

fn matching(waiting: &[NewJob], like: &Value) -> usize {
    waiting
        .iter()
        .filter(|job| serde_json::to_value(job).is_ok_and(|job| contains(&job, like)))
        .count()
}

/// Returns true if `whole` has everything that `part` has; objects may have more fields, everything
/// else must be equal.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(field, value)| whole.get(field).is_some_and(|found| contains(found, value))),
        (whole, part) => whole == part,
    }
}

fn listed(waiting: &[NewJob]) -> String {
    let each: Vec<String> = waiting
        .iter()
        .filter_map(|job| serde_json::to_string(job).ok())
        .collect();
    if each.is_empty() {
        "none".to_owned()
    } else {
        format!("\n  {}", each.join("\n  "))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_part_is_contained_if_everything_it_has_is_there() {
        let whole = json!({"args": {"to": "ada", "n": [1, 2]}, "key": "a"});
        for part in [
            json!({}),
            json!({"key": "a"}),
            json!({"args": {"to": "ada"}}),
            json!({"args": {"n": [1, 2]}}),
        ] {
            assert!(contains(&whole, &part), "{part}");
        }
        for part in [
            json!({"key": "b"}),
            json!({"args": {"n": [1]}}),
            json!({"args": {"from": null}}),
            json!([]),
        ] {
            assert!(!contains(&whole, &part), "{part}");
        }
    }
}
