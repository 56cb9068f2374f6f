//! The judgement of one account's answer: the outcome of the attempt, or the next account.

use std::time::Duration;

use super::postpone::heeded_delay;
use super::run::DeliveryRun;
use crate::jobs::{OnAmbiguous, Outcome, Quota};
use crate::notify::{DeliveryState, DeliveryUpdate};
use crate::providers::pool::AccountLease;
use crate::providers::{ProviderResponse, Scope, Sent};

/// Delay of a message that this process could not try to send.
const UNABLE_DELAY: Duration = Duration::from_secs(2);

impl DeliveryRun<'_> {
    /// Handles one account's answer. Returns `None` if the message moves on to the next account.
    pub(super) async fn judge(
        &mut self,
        held: &AccountLease,
        answer: ProviderResponse,
        is_cut: bool,
        failures: &mut usize,
    ) -> Option<Result<Outcome, Outcome>> {
        let accounts = &self.handle.accounts;
        let quota = answer.quota;
        match answer.sent {
            Sent::Delivered { provider_id } => {
                accounts.succeeded(held, quota).await;
                Some(self.done(DeliveryState::Delivered, held, provider_id).await)
            }
            Sent::Accepted { provider_id } => {
                accounts.succeeded(held, quota).await;
                Some(self.done(DeliveryState::Sent, held, provider_id).await)
            }
            Sent::Throttled {
                scope: Scope::Account,
                delay,
                reason,
                ..
            } => {
                self.context.report_refusals(1);
                accounts.throttled(held, delay, &reason).await;
                None
            }
            // Another connection, or another account's sender, may succeed.
            Sent::Throttled {
                scope: Scope::Connection | Scope::Sender,
                delay,
                ..
            } => {
                accounts.succeeded(held, quota).await;
                self.note_delay(delay);
                None
            }
            Sent::Throttled {
                scope: Scope::Recipient,
                delay,
                ..
            } => {
                accounts.succeeded(held, quota).await;
                let (rest, met) = self.rest(delay);
                self.write(DeliveryState::Queued, None, Some(met)).await;
                Some(Ok(self.later(rest)))
            }
            Sent::Transient { reason } => {
                let is_away = self.failed(held, &reason, is_cut, answer.delay).await;
                self.note_delay(heeded_delay(answer.delay, is_away));
                self.uncertain_failures += usize::from(!is_away);
                *failures += 1;
                None
            }
            Sent::Unable { reason } => {
                tracing::warn!(job_id = self.job.id, %reason, "a message waits because this process has too many files open");
                accounts.unused(held).await;
                Some(
                    self.wait(UNABLE_DELAY, "this process has too many files open")
                        .await,
                )
            }
            Sent::AccountFailure { reason } => {
                let uncertain = usize::from(!accounts.account_failed(held, &reason).await);
                self.uncertain_failures += uncertain;
                self.refused += uncertain;
                None
            }
            Sent::PermanentRecipient { suppress, reason } => {
                accounts.succeeded(held, quota).await;
                let suppress = suppress.then_some(reason);
                Some(Ok(self.bounced(held, suppress).await))
            }
            Sent::PermanentRequest { reason } => {
                accounts.succeeded(held, quota).await;
                let written = self.written(DeliveryState::Failed, Some(held), None);
                self.record_update(written).await;
                Some(Err(Outcome::Dead { error: reason }))
            }
            Sent::Ambiguous { reason } => Some(Err(self.unsure(held, reason, quota, is_cut).await)),
        }
    }

    /// Notes a delay that an account asked for.
    fn note_delay(&mut self, delay: Option<Duration>) {
        self.requested_delay = self.requested_delay.into_iter().chain(delay).min();
    }

    /// Records that the message never reaches its recipient, and suppresses the recipient if there
    /// is a reason for it.
    async fn bounced(&mut self, held: &AccountLease, suppress: Option<String>) -> Outcome {
        let state = if suppress.is_some() {
            DeliveryState::Bounced
        } else {
            DeliveryState::Failed
        };
        let written = DeliveryUpdate {
            suppress,
            ..self.written(state, Some(held), self.able())
        };
        self.record_update(written).await;
        // A retry would change nothing, so this is not a dead letter: the delivery record holds the
        // outcome.
        Outcome::Done
    }

    /// Records that the message may have been sent.
    async fn unsure(
        &mut self,
        held: &AccountLease,
        reason: String,
        quota: Option<Quota>,
        is_cut: bool,
    ) -> Outcome {
        let mut met = None;
        if !self.context.cancelled.is_cancelled() {
            if self.handle.accounts.pool().provider.is_recipients() {
                self.handle.accounts.succeeded(held, quota).await;
                met = Some(self.rest(None).1);
            } else {
                self.failed(held, &reason, is_cut, None).await;
            }
        }
        match self.policy {
            OnAmbiguous::Dead => {
                let written = self.written(DeliveryState::Failed, Some(held), met);
                self.record_update(written).await;
            }
            OnAmbiguous::Retry => self.write(DeliveryState::Queued, Some(held), met).await,
        }
        Outcome::Ambiguous {
            policy: self.policy,
            error: reason,
        }
    }

    /// Records a failure at an account. Returns true if the account is known to be unavailable.
    async fn failed(
        &self,
        held: &AccountLease,
        reason: &str,
        is_cut: bool,
        delay: Option<Duration>,
    ) -> bool {
        if is_cut {
            self.handle.accounts.unjudged(held);
            return false;
        }
        self.handle.accounts.failed(held, reason, delay).await
    }

    /// Records that the provider accepted or delivered the message.
    async fn done(
        &mut self,
        state: DeliveryState,
        held: &AccountLease,
        provider_id: Option<String>,
    ) -> Result<Outcome, Outcome> {
        let written = DeliveryUpdate {
            provider_id,
            ..self.written(state, Some(held), self.able())
        };
        self.record_update(written).await;
        Ok(Outcome::Done)
    }
}
