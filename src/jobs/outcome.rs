//! What a handler says when it has ended: data, not errors.

use std::time::Duration;

use crate::throttle::Scope;

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
