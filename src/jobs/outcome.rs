//! What a handler says when it has ended: data, not errors.

use std::time::Duration;

use crate::throttle::Scope;

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
    /// The other side sheds load, whoever asks: as [`Outcome::Throttled`], but nobody is taken to have asked for too much, and no
    /// rate is learned from it.
    Overloaded {
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

impl Outcome {
    /// True if the other side refused, whether it named us or sheds load from all.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Throttled { .. } | Self::Overloaded { .. })
    }
}
