//! What a handler says when it has ended: data, not errors.

use std::time::Duration;

/// Whom the other side asked to slow down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Jobs of the same throttle and key.
    #[default]
    Key,
    /// Everything that goes through the throttle above this one, such as the account's; the throttle itself where there is none.
    Account,
    /// Every key of the throttle.
    Throttle,
}

/// What the other side said is left of its quota, for whoever shares the job's key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    /// Requests that are left until then.
    pub remaining: f64,
    /// How long until the quota is full again.
    pub reset: Duration,
}

/// What becomes of a job whose attempt may have done its work or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnAmbiguous {
    /// It is tried again, and the other side must bear having it twice.
    #[default]
    Retry,
    /// It is kept as a dead letter, for a person to find out.
    Dead,
}

/// The end of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The job is done.
    Done,
    /// The attempt failed; try again, after `after` or by the kind's back-off.
    Retry {
        /// Wait this long instead of the usual back-off.
        after: Option<Duration>,
        /// What went wrong, without secrets; shown to operators.
        error: String,
    },
    /// The work was handed over and no answer came: nobody knows whether it was done. The attempt is used.
    Ambiguous {
        /// What becomes of the job.
        policy: OnAmbiguous,
        /// What went wrong, without secrets; shown to operators.
        error: String,
    },
    /// The other side asked us to slow down: whom it named is paused, the job is ready again and no attempt is used.
    Throttled {
        /// Whom it named.
        scope: Scope,
        /// How long, when the other side said so.
        delay: Option<Duration>,
        /// What it answered.
        error: String,
    },
    /// Run again later without using an attempt.
    Snooze {
        /// Wait this long.
        delay: Duration,
    },
    /// The job can never succeed: keep it as a dead letter.
    Dead {
        /// Why.
        error: String,
    },
    /// The handler stopped because it was cancelled.
    Cancelled,
    /// The worker is stopping and the handler gave up its work in an orderly way: ready again, no attempt used.
    HandedBack,
}
