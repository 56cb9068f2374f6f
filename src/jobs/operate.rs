//! What people ask to be done to jobs that exist, and what the queue store answers.

use jiff::Timestamp;
use serde::Serialize;

use super::State;

/// The most jobs that one call about many takes; more are taken by calling again.
pub const BATCH_JOBS_MAX: i64 = 10_000;

/// A count that is not carried on beyond this: people want to know whether it is many.
pub const COUNT_MAX: i64 = 10_000;

/// Who asks, and why; for the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signed {
    /// Who; empty for whoever has logged in to Postgres.
    pub by: String,
    /// Why.
    pub why: String,
    /// What was shown at the door.
    pub via: Via,
}

/// A token of the HTTP API that was shown, as the audit log names it; nothing for other doors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Via {
    /// Its name in the settings.
    pub token: Option<String>,
    /// Whose it is.
    pub tenant: Option<String>,
}

impl Signed {
    /// All of it as `flyball.note` reads it: who, and behind separators that no name holds the token and its tenant.
    pub(crate) fn line(&self) -> String {
        let part = |text: &str| text.replace(SEPARATOR, "");
        match (&self.via.token, &self.via.tenant) {
            (None, None) => part(&self.by),
            (token, tenant) => {
                let part = |text: &Option<String>| part(text.as_deref().unwrap_or_default());
                format!("{}{SEPARATOR}{}{SEPARATOR}{}", self.by.replace(SEPARATOR, ""), part(token), part(tenant))
            }
        }
    }
}

/// Stands between the parts of a signature.
const SEPARATOR: char = '\u{1f}';

/// Which unfinished jobs to cancel. At least one of the fields must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CancelFilter {
    /// Only jobs of this kind.
    pub kind: Option<String>,
    /// Only jobs of this throttle.
    pub throttle: Option<String>,
    /// Only jobs with this key.
    pub key: Option<String>,
    /// Only jobs in this state: ready, scheduled, retryable or running; all of them if absent.
    pub state: Option<State>,
    /// Only jobs that were enqueued at this time or later.
    pub created_after: Option<Timestamp>,
    /// Only jobs that were enqueued before this time.
    pub created_before: Option<Timestamp>,
}

/// Which dead jobs to requeue or to discard. At least one of the fields must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadFilter {
    /// Only jobs of this kind.
    pub kind: Option<String>,
    /// Only jobs of this throttle.
    pub throttle: Option<String>,
    /// Only jobs with this key.
    pub key: Option<String>,
    /// Only jobs whose error is like this pattern of SQL's LIKE: `timeout%` begins with, `%timeout%` contains.
    pub error_like: Option<String>,
    /// Only jobs that died at this time or later.
    pub died_after: Option<Timestamp>,
    /// Only jobs that died before this time.
    pub died_before: Option<Timestamp>,
}

/// How far one call goes, and where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// At most so many jobs, 1 to [`BATCH_JOBS_MAX`].
    pub max_jobs: i64,
    /// Change nothing, count only.
    pub dry_run: bool,
    /// Where the call before ended; `None` to begin.
    pub start: Option<String>,
}

impl Walk {
    /// The first step of a walk that changes up to `max_jobs`.
    pub fn of(max_jobs: i64) -> Self {
        Self { max_jobs, dry_run: false, start: None }
    }

    /// The first step of a walk that only counts.
    pub fn count() -> Self {
        Self { max_jobs: BATCH_JOBS_MAX, dry_run: true, start: None }
    }
}

/// What one call about many jobs did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Walked {
    /// Jobs that were cancelled, requeued or discarded.
    pub jobs: i64,
    /// Running jobs that were asked to stop.
    pub requested: i64,
    /// Where to go on; `None` when everything was looked at.
    pub next: Option<String>,
}

/// A count that stopped early: how many there are at least, and whether there may be more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Count {
    /// At least so many.
    pub jobs: i64,
    /// True if there may be more.
    pub more: bool,
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.jobs, if self.more { "+" } else { "" })
    }
}

/// What became of a request to reschedule or to discard one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveAnswer {
    /// It is done.
    Moved,
    /// The job is in a state that forbids it.
    Refused(State),
    /// There is no such job.
    NotFound,
}

/// A pause of everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Pause {
    /// Since when.
    pub since: Timestamp,
    /// Who paused.
    pub by: String,
    /// Why.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_stopped_early_says_so() {
        assert_eq!(Count { jobs: 10_000, more: true }.to_string(), "10000+");
        assert_eq!(Count { jobs: 3, more: false }.to_string(), "3");
    }
}
