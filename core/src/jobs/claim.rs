//! A claim on a lane, and a job that was claimed.

use super::Job;

/// A position in a lane, just behind the job `job_id` of a priority.
///
/// A claim that begins behind the last job it took need not walk over the dead rows of jobs that
/// were taken before, which a long transaction elsewhere keeps from being vacuumed. Jobs that
/// commit late, or come back, lie before the position, so its user must begin at the head again now
/// and then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneCursor {
    /// The priority, 0 to 3.
    pub priority: i16,
    /// The id of the last job taken, 0 for none.
    pub job_id: i64,
}

/// A claim on the jobs of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneClaim {
    /// The id of the lane.
    pub lane_id: i64,
    /// The most jobs to take, oldest first within a priority.
    pub jobs: i32,
    /// The position behind which the claim begins.
    pub after: LaneCursor,
    /// True to check for another job behind those taken; for lanes from which few are taken.
    pub look: bool,
}

impl LaneClaim {
    /// Returns a claim on the first `jobs` of a lane.
    pub fn first(lane_id: i64, jobs: i32) -> Self {
        Self {
            lane_id,
            jobs,
            after: LaneCursor::default(),
            look: false,
        }
    }
}

/// A job that this worker holds under a lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// The id of the lane from which the job came.
    pub lane_id: i64,
    /// The job, as passed to its handler.
    pub job: Job,
    /// The reason why the job cannot be read, and so cannot run, if that is so; its unreadable
    /// fields hold defaults.
    pub unreadable: Option<String>,
    /// True if cancellation was requested while the job ran before, and it came back nevertheless.
    pub cancelled: bool,
}
