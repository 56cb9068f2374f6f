//! Results of a handler other than success, made for `?`.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use super::{CheckpointError, OnAmbiguous, Outcome, Scope};

/// An attempt that did not succeed.
///
/// Any error becomes one by `?`, and means: try again later.
///
/// ```
/// # use flyball_core as flyball;
/// use flyball::jobs::HandlerError;
///
/// fn send(address: &str) -> Result<(), HandlerError> {
///     if address.is_empty() {
///         return Err(HandlerError::dead("the address is empty"));
///     }
///     let port: u16 = address.rsplit(':').next().unwrap_or_default().parse()?; // tried again
///     let _ = port;
///     Ok(())
/// }
/// # assert!(send("a:80").is_ok() && send("a").is_err());
/// ```
pub struct HandlerError(Outcome);

impl HandlerError {
    /// Returns a fault that a retry cannot cure: the job becomes a dead letter.
    pub fn dead(error: impl fmt::Display) -> Self {
        Self(Outcome::Dead {
            error: error.to_string(),
        })
    }

    /// Returns a fault that is retried after the usual back-off; the same as `?` on an error.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self(Outcome::Retry {
            after: None,
            error: error.to_string(),
        })
    }

    /// Returns a fault that is retried after `after` instead of the usual back-off.
    pub fn retry_after(after: Duration, error: impl fmt::Display) -> Self {
        Self(Outcome::Retry {
            after: Some(after),
            error: error.to_string(),
        })
    }

    /// Returns a fault of work that was handed over and not answered, so it is unknown whether it
    /// was done.
    pub fn ambiguous(policy: OnAmbiguous, error: impl fmt::Display) -> Self {
        Self(Outcome::Ambiguous {
            policy,
            error: error.to_string(),
        })
    }

    /// Returns a refusal by the receiver, which pauses the job's key for `delay`, or for the usual
    /// time; no attempt is used.
    pub fn throttled(delay: Option<Duration>, error: impl fmt::Display) -> Self {
        Self(Outcome::Throttled {
            scope: Scope::Key,
            delay,
            error: error.to_string(),
        })
    }

    /// Returns a fault that runs the job again after `delay`; no attempt is used.
    pub fn snooze(delay: Duration) -> Self {
        Self(Outcome::Snooze { delay })
    }

    /// Returns a fault of a handler that stopped because it was asked to; no attempt is used.
    pub fn handed_back() -> Self {
        Self(Outcome::HandedBack)
    }

    /// Returns the outcome of the attempt.
    pub fn outcome(self) -> Outcome {
        self.0
    }
}

/// Converts any error, with its causes, into a retry, except for a lost lease, which hands the job
/// back.
impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let error = error.into();
        // A handler that lost its lease must stop, because its results would be refused anyway.
        if matches!(error.downcast_ref(), Some(CheckpointError::LeaseLost(_))) {
            return Self::handed_back();
        }
        let mut answer = error.to_string();
        let mut cause = error.source();
        while let Some(deeper) = cause {
            let text = deeper.to_string();
            // Many errors repeat their cause in their own message.
            if !answer.contains(&text) {
                answer = format!("{answer}: {text}");
            }
            cause = deeper.source();
        }
        Self::retry(answer)
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A value that a handler may return.
pub trait IntoOutcome {
    /// Returns the outcome that the value means.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Done
    }
}

impl<T: IntoOutcome, E: Into<HandlerError>> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(done) => done.into_outcome(),
            Err(error) => error.into().outcome(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(error: &str) -> Outcome {
        Outcome::Retry {
            after: None,
            error: error.to_owned(),
        }
    }

    #[test]
    fn any_error_is_tried_again_and_reported_with_its_causes() {
        let plain: Result<(), _> = "x".parse::<u8>().map(drop);
        assert_eq!(plain.into_outcome(), retry("invalid digit found in string"));
        let of_anyhow: anyhow::Result<()> = Err(anyhow::anyhow!("the root")
            .context("the middle")
            .context("the top"));
        assert_eq!(
            of_anyhow.into_outcome(),
            retry("the top: the middle: the root")
        );
        assert_eq!(Err::<(), _>("a text").into_outcome(), retry("a text"));
        let by_question_mark = || -> Result<(), HandlerError> {
            let _: u8 = "x".parse()?;
            Ok(())
        };
        assert_eq!(
            by_question_mark().into_outcome(),
            retry("invalid digit found in string")
        );
    }

    #[test]
    fn what_is_no_plain_error_keeps_its_meaning() {
        assert_eq!(Ok::<(), HandlerError>(()).into_outcome(), Outcome::Done);
        assert_eq!(
            Err::<(), _>(HandlerError::dead("no")).into_outcome(),
            Outcome::Dead { error: "no".into() }
        );
        assert_eq!(
            Ok::<_, HandlerError>(Outcome::Cancelled).into_outcome(),
            Outcome::Cancelled
        );
        assert_eq!(
            Err::<(), _>(CheckpointError::LeaseLost(1)).into_outcome(),
            Outcome::HandedBack
        );
    }
}
