//! Outcomes of an attempt: data, not errors.

use std::time::Duration;

use crate::throttle::Scope;

/// The policy for a job with an attempt of unknown outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnAmbiguous {
    /// Try again; the receiver must tolerate the work being done twice.
    #[default]
    Retry,
    /// Keep the job as a dead letter, for a person to investigate.
    Dead,
}

/// The end of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The job is done.
    Done,
    /// The attempt failed; the next one follows after `after` or the kind's back-off.
    Retry {
        /// The wait instead of the usual back-off.
        after: Option<Duration>,
        /// The error, without secrets; shown to operators.
        error: String,
    },
    /// The work was handed over and not answered, so it is unknown whether it was done; the attempt
    /// is used.
    Ambiguous {
        /// The policy for the job.
        policy: OnAmbiguous,
        /// The error, without secrets; shown to operators.
        error: String,
    },
    /// The receiver asked us to slow down: the scope it named is paused, the job is ready again,
    /// and no attempt is used.
    Throttled {
        /// The scope that the receiver named.
        scope: Scope,
        /// The delay that the receiver asked for, if any.
        delay: Option<Duration>,
        /// The answer of the receiver.
        error: String,
    },
    /// The receiver sheds load from every caller: like [`Outcome::Throttled`], but it is not
    /// evidence of too high a rate, and no rate is learned from it.
    Overloaded {
        /// The scope that the receiver named.
        scope: Scope,
        /// The delay that the receiver asked for, if any.
        delay: Option<Duration>,
        /// The answer of the receiver.
        error: String,
    },
    /// The job runs again later; no attempt is used.
    Snooze {
        /// The wait until the next run.
        delay: Duration,
    },
    /// The job can never succeed and becomes a dead letter.
    Dead {
        /// The reason, shown to operators.
        error: String,
    },
    /// The handler stopped because the job was cancelled.
    Cancelled,
    /// The worker is stopping and the handler gave up its work in an orderly way: the job is ready
    /// again, and no attempt is used.
    HandedBack,
}

impl Outcome {
    /// Returns the outcome without these texts in its error, which is kept and shown.
    #[cfg(feature = "runner")]
    pub(crate) fn without(mut self, secrets: &super::secret::SecretTexts) -> Self {
        match &mut self {
            Self::Retry { error, .. }
            | Self::Ambiguous { error, .. }
            | Self::Throttled { error, .. }
            | Self::Overloaded { error, .. }
            | Self::Dead { error } => secrets.remove_from(error),
            Self::Done | Self::Snooze { .. } | Self::Cancelled | Self::HandedBack => {}
        }
        self
    }

    /// Returns true if the receiver refused, whether it named us or sheds load from all.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Throttled { .. } | Self::Overloaded { .. })
    }
}
