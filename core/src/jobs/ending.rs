//! The end of an attempt, as it is recorded.

use std::time::Duration;

/// The end of an attempt, as the store records it.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// The job completed.
    Completed,
    /// The attempt failed; the next one is due after this delay.
    Failed {
        /// The delay, from now.
        delay: Duration,
        /// The error message.
        error: String,
    },
    /// The work was handed over and not answered; the next attempt is due after this delay, or
    /// there is none and the job is dead.
    Ambiguous {
        /// The delay, from now; `None` if the job is dead.
        delay: Option<Duration>,
        /// The error message.
        error: String,
    },
    /// The receiver asked to slow down: the job is ready again, and no attempt is used.
    Throttled {
        /// The wait of this job alone; `None` if its lane waits.
        alone: Option<Duration>,
        /// The answer of the receiver.
        error: String,
    },
    /// The job runs again after this delay; no attempt is used.
    Snoozed {
        /// The delay, from now.
        delay: Duration,
        /// The reason, for people; empty if the handler just asked for it.
        why: String,
    },
    /// The job failed for good and is dead.
    Dead {
        /// The reason, for people.
        error: String,
    },
    /// The job was cancelled while it ran.
    Cancelled,
    /// The job was handed back unfinished: it is ready again, no attempt is used, and the history
    /// has no entry.
    HandedBack,
}

/// The end of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// The id of the job.
    pub job_id: i64,
    /// The fence of the lease under which the attempt ran.
    pub fence: i64,
    /// The ending to record.
    pub ending: Ending,
}
