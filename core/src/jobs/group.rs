//! Groups: jobs that are counted together, with a callback for when all of them have ended.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{BATCH_JOBS_MAX, NewJob};

/// The longest name of a group, in bytes.
pub const GROUP_NAME_BYTES_MAX: usize = 200;

/// The most jobs that a group can be created with; more can join it before it is sealed.
pub const GROUP_JOBS_MAX: usize = BATCH_JOBS_MAX as usize;

/// A group to be created.
///
/// With [`NewGroup::jobs`] it is sealed at once. Without, jobs join it by [`NewJob::group`] until
/// [`Client::seal_group`](super::Client::seal_group).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewGroup {
    /// The name for people, at most 200 bytes; it need not be unique.
    #[serde(default)]
    pub name: String,
    /// The job that is enqueued when all jobs of the group have ended.
    #[serde(default)]
    pub callback: Option<NewJob>,
    /// The jobs of the group, at most 10,000: the group is sealed with them.
    #[serde(default)]
    pub jobs: Option<Vec<NewJob>>,
}

impl NewGroup {
    /// Returns a group without jobs, whose callback is enqueued when all that will have joined it
    /// have ended.
    pub fn then(callback: NewJob) -> Self {
        Self {
            callback: Some(callback),
            ..Self::default()
        }
    }

    /// Sets the name for people.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..self
        }
    }

    /// Sets all jobs of the group, which seals it.
    pub fn jobs(self, jobs: Vec<NewJob>) -> Self {
        Self {
            jobs: Some(jobs),
            ..self
        }
    }
}

/// A group that was created, with its jobs in order, if it was created with some.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CreatedGroup {
    /// The number of the group, for the field `group` of its jobs.
    pub id: i64,
    /// The jobs.
    pub jobs: Vec<GroupJob>,
}

/// A job with which a group was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct GroupJob {
    /// The number of the new job, or of the one that already holds the unique key.
    pub id: i64,
    /// True if no new job was created: the one that holds the unique key is not in the group.
    pub duplicate: bool,
}

/// The state of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum GroupState {
    /// Jobs can join.
    Open,
    /// It is sealed, and some of its jobs have not ended.
    Running,
    /// All its jobs have ended, and its callback is enqueued.
    Ended,
}

impl GroupState {
    /// The states by their names.
    pub const WORDS: [(&str, Self); 3] = [
        (Self::Open.as_str(), Self::Open),
        (Self::Running.as_str(), Self::Running),
        (Self::Ended.as_str(), Self::Ended),
    ];

    /// Returns the name of the state in SQL, HTTP and the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Running => "running",
            Self::Ended => "ended",
        }
    }
}

/// A group of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct JobGroup {
    /// The number of the group.
    pub id: i64,
    /// The name for people.
    pub name: String,
    /// The tenant that owns the group and its jobs; empty for the operators' own.
    pub tenant: String,
    /// The state.
    pub state: GroupState,
    /// Jobs that joined.
    pub jobs: i64,
    /// Jobs that have not ended.
    pub pending: i64,
    /// Jobs that completed.
    pub completed: i64,
    /// Jobs that are dead letters now; they have ended, and count as pending again once they are
    /// requeued.
    pub dead: i64,
    /// Jobs that were cancelled, discarded or dropped.
    pub cancelled: i64,
    /// The time at which it was created.
    pub created_at: Timestamp,
    /// The time from which no job can join.
    pub sealed_at: Option<Timestamp>,
    /// The time at which it was cancelled.
    pub cancelled_at: Option<Timestamp>,
    /// The time at which all its jobs had ended.
    pub ended_at: Option<Timestamp>,
    /// The job that is enqueued at its end, as it was given.
    #[cfg_attr(feature = "api", schema(value_type = Option<Object>))]
    pub callback: Option<Value>,
    /// The number of the callback's job, once it is enqueued.
    pub callback_job_id: Option<i64>,
    /// The reason for which the callback cannot be enqueued; it is tried again every ten seconds.
    pub callback_problem: Option<String>,
}

/// The groups that a list shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupFilter {
    /// Only groups of this tenant; all groups if absent.
    pub tenant: Option<String>,
    /// Only groups in this state.
    pub state: Option<GroupState>,
    /// Only groups that were created before this time.
    pub created_before: Option<Timestamp>,
    /// Only groups with a smaller number: the cursor.
    pub before: Option<i64>,
    /// The most groups to return, 1 to 1000.
    pub limit: i64,
}

/// Groups that nobody has sealed for a long time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OpenGroups {
    /// Their number, counted up to 1000.
    pub groups: i64,
    /// The time at which the oldest was created.
    pub oldest_at: Option<Timestamp>,
}

/// The result of a request to seal a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealAnswer {
    /// It is sealed now, and some of its jobs have not ended.
    Sealed,
    /// It is sealed now and has ended, because all its jobs had.
    Ended,
    /// It was sealed before.
    Already,
    /// The group does not exist.
    NotFound,
}

/// The result of a request to cancel a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct CancelledGroup {
    /// Waiting jobs that were cancelled.
    pub cancelled: i64,
    /// Running jobs that were asked to stop.
    pub requested: i64,
    /// True if there are more: ask again.
    pub more: bool,
}
