//! Messages that are not sent now: their wait for an account or a recipient, and their deadline.

use std::time::Duration;

use super::run::DeliveryRun;
use crate::jobs::Outcome;
use crate::jobs::retry::Policy;
use crate::notify::record::NO_ACCOUNT;
use crate::notify::{DeliveryState, RecipientResult, recipient_backoff};

/// Grace period, in milliseconds: a message whose deadline passes within this time of the pool's
/// last account going away counts as *no account available*, not as *expired*.
const AWAY_MS: i64 = 3_000;

/// Back-off of a message that accounts failed or refused, long enough that an outage of some hours
/// does not use up its attempts.
const RETRY_POLICY: Policy = Policy {
    base: Duration::from_secs(5),
    factor: 4.0,
    max: Duration::from_secs(3600),
    max_attempts: None,
};

/// Returns the delay that a failing account asks for, as far as the message heeds it.
///
/// Nothing shows how long the account is really away, and it rests no longer than
/// [`MAX_QUEUE_WAIT`] itself. A message whose next attempt uses up one of a few may wait as long as
/// after any other failure. Beyond that it would miss its deadline with a single attempt.
pub(super) fn heeded_delay(delay: Option<Duration>, is_away: bool) -> Option<Duration> {
    let most = if is_away {
        MAX_QUEUE_WAIT
    } else {
        RETRY_POLICY.max
    };
    delay.map(|delay| delay.min(most))
}

/// Largest random share that is added to the wait of messages for one recipient.
const JITTER: f64 = 0.1;

/// Shortest wait in the queue for an account; the longest is [`MAX_QUEUE_WAIT`].
pub(super) const MIN_QUEUE_WAIT: Duration = Duration::from_millis(100);
const MAX_QUEUE_WAIT: Duration = Duration::from_secs(300);

impl DeliveryRun<'_> {
    /// Retries the message later, at the cost of an attempt, because accounts failed or refused it
    /// and nothing shows that they are at fault.
    pub(super) async fn again(&mut self, tried: &[usize]) -> Outcome {
        let accounts = if tried.len() == 1 {
            "1 account".to_owned()
        } else {
            format!("{} accounts", tried.len())
        };
        let error = format!(
            "{accounts} did not accept this message; the last: {}",
            self.last_reason()
        );
        self.write(DeliveryState::Queued, None, None).await;
        let wait = RETRY_POLICY
            .delay(self.job.attempt, rand::random())
            .max(self.requested_delay.unwrap_or_default());
        Outcome::Retry {
            after: Some(wait.min(self.left()).max(MIN_QUEUE_WAIT)),
            error,
        }
    }

    /// Returns the recipient's rest after a failure, and the record of it for its other messages.
    pub(super) fn rest(&self, requested: Option<Duration>) -> (Duration, RecipientResult) {
        let failures = self.failures.saturating_add(1);
        let rest = recipient_backoff::rest(self.notification.channel, failures, requested);
        (rest, RecipientResult::Unable { failures, rest })
    }

    /// Records that the recipient has answered, if it was resting before.
    pub(super) fn able(&self) -> Option<RecipientResult> {
        (self.failures > 0).then_some(RecipientResult::Able)
    }

    /// Postpones the message until shortly after its recipient's rest, but not beyond its deadline,
    /// because a longer wait would only hide the expiry.
    pub(super) fn later(&self, rest: Duration) -> Outcome {
        let wait = rest.mul_f64(1.0 + JITTER * rand::random::<f64>());
        Outcome::Snooze {
            delay: wait.min(self.left()).max(MIN_QUEUE_WAIT),
        }
    }

    /// Ends a message whose deadline passed: for lack of an account, because of its recipient, or
    /// before its turn came.
    pub(super) async fn expired(
        &mut self,
        last_outcome: Option<&str>,
        valid_for: Duration,
    ) -> Result<Outcome, Outcome> {
        let pool = self.handle.accounts.pool().name.clone();
        let is_refused = matches!(
            last_outcome,
            Some("account_failure" | "throttled" | "transient" | NO_ACCOUNT)
        );
        let seconds = valid_for.as_secs();
        // The pool checks its accounts once a second, and clocks differ a little.
        let was_away = self
            .handle
            .accounts
            .view()
            .unavailable_at_ms
            .is_some_and(|at_ms| self.ended_at_s * 1000 <= at_ms + AWAY_MS);
        let (outcome, error) = match is_refused || was_away {
            // The message found an account, but its recipient was unavailable.
            _ if self.failures > 0 && !was_away => (
                "expired",
                format!(
                    "its recipient did not accept it before its deadline, {seconds} s after it was \
                     queued"
                ),
            ),
            true => (
                NO_ACCOUNT,
                format!(
                    "no account of pool {pool} accepted it before its deadline, {seconds} s after \
                     it was queued"
                ),
            ),
            false => (
                "expired",
                format!("its deadline passed {seconds} s after it was queued, before it was sent"),
            ),
        };
        self.record(DeliveryState::Failed, None, outcome, &error, None)
            .await?;
        Ok(Outcome::Dead { error })
    }

    /// Postpones the message in the queue until an account is available; past its deadline it is
    /// dead.
    pub(super) async fn wait(&mut self, wait: Duration, why: &str) -> Result<Outcome, Outcome> {
        if self.left().is_zero() {
            let error = format!(
                "no account of pool {} was available before its deadline: {why}",
                self.handle.accounts.pool().name
            );
            self.record(DeliveryState::Failed, None, NO_ACCOUNT, &error, None)
                .await?;
            return Err(Outcome::Dead { error });
        }
        Ok(self
            .put_off(wait.clamp(MIN_QUEUE_WAIT, MAX_QUEUE_WAIT))
            .await)
    }

    /// Postpones this message alone without using an attempt, because the accounts do not hold it
    /// up or none is available.
    pub(super) async fn put_off(&mut self, delay: Duration) -> Outcome {
        if !self.attempts.is_empty() {
            self.write(DeliveryState::Queued, None, None).await;
        }
        Outcome::Snooze {
            delay: delay.min(self.left()).max(MIN_QUEUE_WAIT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_account_delays_a_message_no_longer_than_a_failure_may() {
        let seconds = |asked, is_away| {
            heeded_delay(Some(Duration::from_secs(asked)), is_away).map(|delay| delay.as_secs())
        };
        for (asked, alone, away) in [(9, 9, 9), (1800, 1800, 300), (86_400, 3600, 300)] {
            assert_eq!(
                (seconds(asked, false), seconds(asked, true)),
                (Some(alone), Some(away)),
                "{asked}"
            );
        }
        assert_eq!(heeded_delay(None, false), None);
    }
}
