//! One send: tries one account after the other.

use std::time::{Duration, Instant};

use super::check::listed;
use super::postpone::MIN_QUEUE_WAIT;
use super::run::DeliveryRun;
use crate::jobs::Outcome;
use crate::notify::DeliveryState;
use crate::notify::args::Texts;
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
        let accounts = &self.handle.accounts;
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
        let accounts = &self.handle.accounts;
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
