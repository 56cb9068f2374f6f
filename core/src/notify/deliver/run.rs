//! One attempt at one message: its state, and the record of its outcome.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::services::{DeliveryServices, PoolHandle};
use crate::jobs::{Context, Job, OnAmbiguous, Outcome};
use crate::notify::args::NotificationArgs;
use crate::notify::{Attempt, DeliveryState, DeliveryUpdate, RecipientResult};
use crate::providers::pool::AccountLease;
use crate::providers::{ProviderResponse, Recipient};
use crate::recipient::gate::{AttemptEnd, UnsentReason};

/// Interval between attempts to record a delivery.
const RECORD_EVERY: Duration = Duration::from_millis(500);

/// Time for which an outcome is still recorded after its attempt was asked to stop; much less than
/// the time after which the attempt is dropped, and the message would be sent again.
const STOPPING: Duration = Duration::from_secs(2);

/// Shortest wait of a message that a gate holds.
const SHORTEST_HOLD: Duration = Duration::from_millis(100);

/// Most errors of a reachable Postgres before a record is given up.
///
/// Endless failures must not run the job into its timeout, or the message would be sent twice.
const REFUSALS_MAX: u32 = 20;

/// One attempt at one message.
pub(super) struct DeliveryRun<'a> {
    pub(super) job: &'a Job,
    pub(super) context: &'a Context,
    pub(super) notification: &'a NotificationArgs,
    /// The address, of the message or of the recipient's profile; `None` if there is none any more.
    pub(super) to: Option<Recipient>,
    pub(super) handle: &'a PoolHandle,
    pub(super) services: &'a DeliveryServices,
    /// The end of the attempt, as far as it is recorded.
    pub(super) end: AttemptEnd,
    /// The treatment of an attempt whose outcome is unknown.
    pub(super) policy: OnAmbiguous,
    /// Earlier consecutive failures caused by the recipient.
    pub(super) failures: u32,
    pub(super) attempts: Vec<Attempt>,
    /// The deadline by the local clock, in unix seconds, for providers.
    pub(super) deadline_s: i64,
    /// The deadline, whatever happens to the local clock.
    pub(super) deadline: Instant,
    /// The deadline by the clock of Postgres, in unix seconds.
    pub(super) ended_at_s: i64,
    /// The end of this attempt's own time.
    ///
    /// No request is in flight after it, because a request that is dropped halfway may have been
    /// sent unnoticed.
    pub(super) until: Instant,
    /// The shortest delay that an account asked for, either for one sender or connection or because
    /// it failed.
    pub(super) requested_delay: Option<Duration>,
    /// Accounts that failed or refused the message while nothing else is known against them; the
    /// message may be at fault.
    pub(super) uncertain_failures: usize,
    /// The accounts among `uncertain_failures` that refused the message.
    pub(super) refused: usize,
}

/// The finding of the gates for a message that does not go now.
pub(super) enum GateStop {
    /// It goes later.
    Wait(Duration),
    /// Its deadline has passed, perhaps because no account was available.
    Late,
    /// It ends unsent, by this rule.
    End(UnsentReason, String),
}

impl DeliveryRun<'_> {
    /// Puts off a message that a gate holds, or ends it. `last_outcome` is that of the attempt
    /// before.
    pub(super) async fn stop(
        &mut self,
        stop: GateStop,
        last_outcome: Option<&str>,
        valid_for: Duration,
    ) -> Result<Outcome, Outcome> {
        let (reason, rule) = match stop {
            GateStop::Wait(delay) => {
                return Ok(Outcome::Snooze {
                    delay: delay.max(SHORTEST_HOLD),
                });
            }
            GateStop::Late => return Err(self.expired(last_outcome, valid_for).await?),
            GateStop::End(reason, rule) => (reason, rule),
        };
        if reason == UnsentReason::Cancelled {
            self.end = AttemptEnd::Unsent;
            return Ok(Outcome::Cancelled);
        }
        let state = DeliveryState::of_unsent(reason);
        self.record(state, None, reason.as_str(), &rule, None)
            .await?;
        match reason {
            UnsentReason::Expired => Ok(Outcome::Dead {
                error: "its deadline passed before the gates let it go".to_owned(),
            }),
            _ => Ok(Outcome::Done),
        }
    }

    /// Records the outcome of a delivery, and repeats until Postgres has it, the time is over, or
    /// the attempt was asked to stop a moment ago.
    ///
    /// The outcome holds even if it cannot be recorded. But if the worker died without a record,
    /// the message would be sent twice.
    pub(super) async fn record_update(&self, written: DeliveryUpdate) {
        let stopped = async {
            self.context.cancelled.cancelled().await;
            tokio::time::sleep(STOPPING).await;
        };
        tokio::select! {
            biased;
            () = self.record_in_time(written) => {}
            () = stopped => {
                tracing::error!(job_id = self.job.id, "an attempt was stopped before the outcome of its message was recorded; it is not sent again");
            }
        }
    }

    async fn record_in_time(&self, written: DeliveryUpdate) {
        let mut refusals = 0;
        while let Err(error) = self.services.deliveries.record(written.clone()).await {
            refusals += u32::from(!matches!(error, crate::jobs::Error::Lost(_)));
            if refusals >= REFUSALS_MAX || Instant::now() >= self.until {
                tracing::error!(job_id = self.job.id, %error, "recording the outcome of a message failed; it is not sent again");
                return;
            }
            tokio::time::sleep(RECORD_EVERY).await;
        }
    }

    /// Returns the time until the message's deadline.
    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Notes one account's answer, for the metrics and the record.
    pub(super) fn note(&mut self, held: &AccountLease, answer: &ProviderResponse, took: Duration) {
        let account = self.account(held);
        let pool = &self.handle.accounts.pool().name;
        self.services
            .metrics
            .sent(pool, &account, answer.sent.as_str(), took.as_secs_f64());
        self.context.report_duration(took);
        if answer.is_untimed {
            self.context.discount_duration();
        }
        let ended = now();
        self.attempts.push(Attempt {
            at: ended.checked_sub(took).unwrap_or(ended),
            account,
            outcome: answer.sent.as_str(),
            status: answer.status.clone(),
            reason: answer.sent.reason().to_owned(),
            took,
        });
    }

    /// Returns the reason of the latest attempt.
    pub(super) fn last_reason(&self) -> String {
        self.attempts
            .last()
            .map(|attempt| attempt.reason.clone())
            .unwrap_or_default()
    }

    fn account(&self, held: &AccountLease) -> String {
        let pool = self.handle.accounts.pool();
        pool.accounts
            .get(held.at)
            .map_or_else(String::new, |limited| limited.account.name.clone())
    }

    /// Records an outcome without a send, together with the attempts so far.
    pub(super) async fn record(
        &mut self,
        state: DeliveryState,
        held: Option<&AccountLease>,
        outcome: &'static str,
        reason: &str,
        suppress: Option<String>,
    ) -> Result<(), Outcome> {
        if !outcome.is_empty() {
            let account = held.map(|held| self.account(held)).unwrap_or_default();
            let (status, reason) = (String::new(), reason.to_owned());
            self.attempts.push(Attempt {
                at: now(),
                account,
                outcome,
                status,
                reason,
                took: Duration::ZERO,
            });
        }
        let written = DeliveryUpdate {
            suppress,
            ..self.written(state, held, None)
        };
        self.services
            .deliveries
            .record(written)
            .await
            .map_err(|_| unrecorded())
    }

    /// Records the state of a message that will be retried. A failure is only logged, because the
    /// retry happens either way.
    pub(super) async fn write(
        &mut self,
        state: DeliveryState,
        held: Option<&AccountLease>,
        met: Option<RecipientResult>,
    ) {
        let written = self.written(state, held, met);
        if let Err(error) = self.services.deliveries.record(written).await {
            tracing::debug!(job_id = self.job.id, %error, "recording attempts of a message failed");
        }
    }

    /// Builds the record, with every attempt of this run.
    pub(super) fn written(
        &mut self,
        state: DeliveryState,
        held: Option<&AccountLease>,
        met: Option<RecipientResult>,
    ) -> DeliveryUpdate {
        self.end = match state {
            DeliveryState::Queued => AttemptEnd::Retried,
            DeliveryState::Sent | DeliveryState::Delivered => AttemptEnd::Accepted,
            _ => AttemptEnd::Unsent,
        };
        let pool = self.handle.accounts.pool();
        DeliveryUpdate {
            job_id: self.job.id,
            channel: self.notification.channel,
            pool: pool.name.clone(),
            provider: pool.provider.as_str(),
            account: held.map(|held| self.account(held)),
            state,
            provider_id: None,
            recipient: self.to.clone(),
            category: self.notification.category.clone(),
            attempts: std::mem::take(&mut self.attempts),
            suppress: None,
            met,
        }
    }
}

/// Returns the outcome if the delivery record cannot be read or written: a retry, because Postgres
/// is unreachable.
pub(super) fn unrecorded() -> Outcome {
    Outcome::Retry {
        after: None,
        error: "reading the delivery record failed".to_owned(),
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the record says when an attempt was made"
)]
fn now() -> Timestamp {
    Timestamp::now()
}
