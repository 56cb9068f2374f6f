//! One send: tries one account after the other, and turns the answer of each into an outcome.

use std::time::{Duration, Instant};

use super::check::listed;
use super::postpone::MIN_QUEUE_WAIT;
use super::run::DeliveryRun;
use crate::jobs::{OnAmbiguous, Outcome};
use crate::notify::args::Texts;
use crate::notify::{DeliveryState, DeliveryUpdate};
use crate::providers::pool::{AccountLease, Checkout};
use crate::providers::{Message, ProviderResponse, Recipient, Scope, SendContext, Sent, now_s};

/// Longest wait of a message for an account while it holds its job's slot; a message whose turn
/// comes later waits in the queue, where no wait is shorter.
const CHECKOUT_TIMEOUT: Duration = MIN_QUEUE_WAIT;

/// Most accounts that fail one message in an attempt. A message that fails at all of them is
/// probably at fault itself, not the accounts.
const FAILURES_MAX: usize = 3;

/// Most accounts that are tried in one attempt.
const HOPS_MAX: usize = 20;

/// Most accounts that refuse one message in an attempt, if nothing else is known against them.
const REFUSED_MAX: usize = 2;

/// Delay of a message whose sender was asked to slow down without a time.
const USUAL_DELAY: Duration = Duration::from_secs(5);

/// Delay of a message that this process could not try to send.
const UNABLE_DELAY: Duration = Duration::from_secs(2);

/// The answer of one account.
struct AccountAnswer {
    answer: ProviderResponse,
    /// True if the timeout of the job ended the wait, which is shorter than the pool's own and says
    /// nothing about the account's health.
    is_cut: bool,
}

impl DeliveryRun<'_> {
    /// Tries one account after the other until one takes the message or none is left for now.
    pub(super) async fn send(&mut self, to: Recipient, texts: Texts) -> Result<Outcome, Outcome> {
        let message = self.notification.message(
            format!("job_{}", self.job.id),
            to,
            texts,
            Some(self.deadline_s),
        );
        let accounts = self.handle.accounts.clone();
        let mut tried = Vec::new();
        let mut failures = 0;
        loop {
            let held = match accounts.take(self.job.id, &tried, CHECKOUT_TIMEOUT).await {
                Checkout::Held(held) => held,
                Checkout::Wait { .. } | Checkout::NoAccount if self.uncertain_failures > 0 => {
                    return Err(self.again(&tried).await);
                }
                Checkout::Wait { wait, why } => return self.wait(wait, &why).await,
                // Every available account was tried; the first of them is tried again later.
                Checkout::NoAccount => {
                    return Ok(self
                        .put_off(self.requested_delay.unwrap_or(USUAL_DELAY))
                        .await);
                }
            };
            let AccountAnswer { answer, is_cut } = self.send_with(&held, &message).await?;
            if let Some(outcome) = self.judge(&held, answer, is_cut, &mut failures).await {
                return outcome;
            }
            tried.push(held.at);
            if failures == 0 && self.uncertain_failures == 0 && tried.len() >= HOPS_MAX {
                // Accounts throttled or refused in turn, which is not the message's fault.
                return self
                    .wait(USUAL_DELAY, "too many accounts in a row did not accept it")
                    .await;
            }
            if failures >= FAILURES_MAX || self.refused >= REFUSED_MAX || tried.len() >= HOPS_MAX {
                return Err(self.again(&tried).await);
            }
        }
    }

    /// Sends the message with one account. `Err` ends the attempt, before anything was sent.
    async fn send_with(
        &mut self,
        held: &AccountLease,
        message: &Message,
    ) -> Result<AccountAnswer, Outcome> {
        let accounts = self.handle.accounts.clone();
        let driver = &self.handle.drivers[held.at];
        let issues = driver.check(message);
        if !issues.is_empty() {
            accounts.unused(held).await;
            let error = listed(&issues);
            self.record(
                DeliveryState::Failed,
                Some(held),
                "permanent_request",
                &error,
                None,
            )
            .await?;
            return Err(Outcome::Dead { error });
        }
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            accounts.unused(held).await;
            self.write(DeliveryState::Queued, None, None).await;
            return Err(Outcome::Retry {
                after: None,
                error: "no account accepted it before its time-out".to_owned(),
            });
        }
        let timeout = accounts.pool().timeout.min(left);
        let context = SendContext {
            now_s: now_s(),
            timeout,
            stop: self.context.cancelled.clone(),
        };
        let begun = Instant::now();
        self.context.hand_over(self.policy);
        let answer = driver.send(message, &context).await;
        self.context.answered();
        self.note(held, &answer, begun.elapsed());
        if self.context.cancelled.is_cancelled() && is_unsent(&answer.sent) {
            // The attempt was cancelled before anything was sent, which says nothing about the
            // account.
            accounts.unused(held).await;
            return Err(Outcome::HandedBack);
        }
        let is_cut = timeout < accounts.pool().timeout && begun.elapsed() >= timeout;
        Ok(AccountAnswer { answer, is_cut })
    }

    /// Handles one account's answer. Returns `None` if the message moves on to the next account.
    async fn judge(
        &mut self,
        held: &AccountLease,
        answer: ProviderResponse,
        is_cut: bool,
        failures: &mut usize,
    ) -> Option<Result<Outcome, Outcome>> {
        let accounts = self.handle.accounts.clone();
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
                self.requested_delay = self.requested_delay.into_iter().chain(delay).min();
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
                self.requested_delay = self.requested_delay.into_iter().chain(answer.delay).min();
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
                let suppress = suppress.then(|| reason.clone());
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
                // A retry would change nothing, so this is not a dead letter: the delivery record
                // holds the outcome.
                Some(Ok(Outcome::Done))
            }
            Sent::PermanentRequest { reason } => {
                accounts.succeeded(held, quota).await;
                let written = self.written(DeliveryState::Failed, Some(held), None);
                self.record_update(written).await;
                Some(Err(Outcome::Dead { error: reason }))
            }
            Sent::Ambiguous { reason } => {
                let mut met = None;
                if !self.context.cancelled.is_cancelled() {
                    if self.handle.accounts.pool().provider.is_recipients() {
                        accounts.succeeded(held, quota).await;
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
                Some(Err(Outcome::Ambiguous {
                    policy: self.policy,
                    error: reason,
                }))
            }
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

/// Returns true if the send was cancelled before anything was sent.
fn is_unsent(sent: &Sent) -> bool {
    matches!(
        sent,
        Sent::Transient { .. }
            | Sent::Throttled {
                scope: Scope::Recipient,
                delay: Some(Duration::ZERO),
                ..
            }
    )
}
