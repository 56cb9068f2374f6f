//! Operations by people on existing jobs, and their results.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::{JobRetry, State};

/// The most jobs that one bulk call takes; repeated calls take more.
pub const BATCH_JOBS_MAX: i64 = 10_000;

/// The bound of a count, which stops there because people only need to know that there are many.
pub const COUNT_MAX: i64 = 10_000;

/// The author of an operation and the reason for it, for the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribution {
    /// The author; empty for the Postgres login.
    pub by: String,
    /// The reason given for the operation.
    pub why: String,
    /// The API token that authenticated the author. With a tenant, the operation reaches the jobs
    /// of that tenant only, and those of others are not found.
    pub identity: TokenIdentity,
}

/// A token of the HTTP API, as recorded in the audit log; empty for other ways in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenIdentity {
    /// The name of the token in the settings.
    pub token: Option<String>,
    /// The tenant to which the token is bound; `None` for operators.
    pub tenant: Option<String>,
}

impl Attribution {
    /// Returns the signature in the format of `flyball.write_audit`: the author, then the token and
    /// its tenant behind separators that no name contains.
    pub(crate) fn line(&self) -> String {
        let part = |text: &str| text.replace(SEPARATOR, "");
        match (&self.identity.token, &self.identity.tenant) {
            (None, None) => part(&self.by),
            (token, tenant) => {
                let part = |text: &Option<String>| part(text.as_deref().unwrap_or_default());
                format!(
                    "{}{SEPARATOR}{}{SEPARATOR}{}",
                    self.by.replace(SEPARATOR, ""),
                    part(token),
                    part(tenant)
                )
            }
        }
    }
}

/// The separator between the parts of a signature.
const SEPARATOR: char = '\u{1f}';

/// A search for jobs by more than their place, state and time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSearch {
    /// Only jobs of this trace: its id, or a whole `traceparent`.
    pub trace: Option<String>,
    /// Only jobs that hold or held this unique key.
    pub unique_key: Option<String>,
    /// Owners of that key besides operators, schedules and roles, such as `token:billing`. The keys
    /// of a tenant's jobs are always the tenant's.
    pub key_owners: Vec<String>,
    /// Only jobs whose arguments contain this object, as `@>` of Postgres defines it.
    pub args: Option<Value>,
    /// Only jobs whose arguments fit this SQL/JSON path, such as `$.customer.id == 17`.
    pub args_path: Option<String>,
    /// Only jobs that have all of these tags.
    pub tags: Vec<String>,
}

impl JobSearch {
    /// Returns the tags, or nothing if none is asked for.
    pub(crate) fn given_tags(&self) -> Option<&[String]> {
        Some(self.tags.as_slice()).filter(|tags| !tags.is_empty())
    }
}

/// The state of the queue that can keep every job from running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStatus {
    /// True if everything is paused.
    pub is_paused: bool,
    /// True if Postgres accepts no writes: a standby, or a server or role that is set to read only.
    pub is_read_only: bool,
}

/// A filter of the unfinished jobs to cancel; at least one field must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CancelFilter {
    /// Only jobs of this kind.
    pub kind: Option<String>,
    /// Only jobs of this throttle.
    pub throttle: Option<String>,
    /// Only jobs with this key.
    pub key: Option<String>,
    /// Only jobs in this state: ready, scheduled, retryable or running; absent for all of them.
    pub state: Option<State>,
    /// Only jobs enqueued at this time or later.
    pub created_after: Option<Timestamp>,
    /// Only jobs enqueued before this time.
    pub created_before: Option<Timestamp>,
    /// Only jobs of this tenant; an operation for a tenant has that tenant's in any case.
    pub tenant: Option<String>,
    /// Only jobs of this group.
    pub group: Option<i64>,
    /// Only jobs that failed before, with a last error that matches this pattern of SQL's `LIKE`.
    pub error_like: Option<String>,
    /// Only jobs that fit this search.
    pub search: JobSearch,
}

/// A filter of the dead jobs to requeue or discard; at least one field must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadFilter {
    /// Only jobs of this kind.
    pub kind: Option<String>,
    /// Only jobs of this throttle.
    pub throttle: Option<String>,
    /// Only jobs with this key.
    pub key: Option<String>,
    /// Only jobs whose error matches this pattern of SQL's `LIKE`: `timeout%` for a prefix,
    /// `%timeout%` for a substring.
    pub error_like: Option<String>,
    /// Only jobs that died at this time or later.
    pub died_after: Option<Timestamp>,
    /// Only jobs that died before this time.
    pub died_before: Option<Timestamp>,
    /// Only jobs of this tenant; an operation for a tenant has that tenant's in any case.
    pub tenant: Option<String>,
    /// Only jobs of this group.
    pub group: Option<i64>,
    /// Only jobs that fit this search.
    pub search: JobSearch,
}

/// The extent and the starting point of one bulk call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkCursor {
    /// The most jobs to take, 1 to [`BATCH_JOBS_MAX`].
    pub max_jobs: i64,
    /// True to change nothing and count only.
    pub dry_run: bool,
    /// The position at which the previous call ended; `None` to begin.
    pub start: Option<String>,
}

impl BulkCursor {
    /// Returns the first step of a walk that changes up to `max_jobs`.
    pub fn of(max_jobs: i64) -> Self {
        Self {
            max_jobs,
            dry_run: false,
            start: None,
        }
    }

    /// Returns the first step of a walk that only counts.
    pub fn count() -> Self {
        Self {
            max_jobs: BATCH_JOBS_MAX,
            dry_run: true,
            start: None,
        }
    }
}

/// The result of one bulk call, or of its dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BulkResult {
    /// Jobs that were cancelled, requeued or discarded.
    pub jobs: i64,
    /// Running jobs that were asked to stop.
    pub requested: i64,
    /// The position of the next call; `None` after the last.
    pub next: Option<String>,
}

/// A count that may have stopped early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct Count {
    /// The jobs counted; a lower bound if `more` is true.
    pub jobs: i64,
    /// True if there may be more.
    pub more: bool,
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.jobs, if self.more { "+" } else { "" })
    }
}

/// Changes of one waiting job: fields that are `None` stay as they are.
///
/// ```
/// # use flyball_core as flyball;
/// use flyball::jobs::JobUpdate;
///
/// let urgent = JobUpdate { priority: Some(0), ..JobUpdate::default() };
/// # assert_eq!(urgent.args, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobUpdate {
    /// The arguments, as a whole; a cursor of the old ones is forgotten.
    pub args: Option<Value>,
    /// The name of the throttle.
    pub throttle: Option<String>,
    /// The rate-limit key; empty for none.
    pub key: Option<String>,
    /// The priority: 0 runs first, 3 last.
    pub priority: Option<i32>,
    /// Attempts before the job is dead, 1 to 1000.
    pub max_attempts: Option<i32>,
    /// Tokens that the job takes from its throttle.
    pub cost: Option<f64>,
    /// The timeout of one attempt, in seconds.
    pub timeout_s: Option<f64>,
    /// All tags of the job; empty for none.
    pub tags: Option<Vec<String>>,
    /// The waits after failed attempts.
    pub retry: Option<JobRetry>,
    /// Fields that go back to those of the kind, by their names: `timeout`, `retry`.
    pub clear: Vec<String>,
}

/// The result of a request to update, reschedule or discard one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveAnswer {
    /// The request was carried out.
    Moved,
    /// The job is in this state, which forbids it.
    Refused(State),
    /// The job does not exist.
    NotFound,
}

/// An index over jobs that an operator has added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobIndex {
    /// The path of the value in the arguments; `None` for the index by trace.
    pub path: Option<Vec<String>>,
    /// The time at which it was added.
    pub created_at: Timestamp,
    /// True if it is complete and searches use it.
    pub is_ready: bool,
    /// Its size.
    pub bytes: i64,
}

/// A pause of all claiming, in all processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct Pause {
    /// The time at which the pause began.
    pub since: Timestamp,
    /// The author of the pause.
    pub by: String,
    /// The reason given for the pause.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_stopped_early_says_so() {
        assert_eq!(
            Count {
                jobs: 10_000,
                more: true
            }
            .to_string(),
            "10000+"
        );
        assert_eq!(
            Count {
                jobs: 3,
                more: false
            }
            .to_string(),
            "3"
        );
    }
}
