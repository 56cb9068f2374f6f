//! The handler of the kind `notification`: sends one message through the next account that is
//! available.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use jiff::Timestamp;
use serde_json::Value;

use super::args::{NotificationArgs, Texts};
use super::record::NO_ACCOUNT;
use super::{
    Attempt, BeginRequest, Deliveries, DeliveryState, DeliveryUpdate, RecipientResult,
    recipient_backoff,
};
use crate::jobs::retry::Policy;
use crate::jobs::{Context, Handler, Issue, Job, OnAmbiguous, Outcome, PreparedJob};
use crate::outbound::apart::apart;
use crate::providers::pool::{AccountLease, AccountPool, Checkout};
use crate::providers::{
    Channel, Driver, Pool, PoolMetrics, Pools, ProviderResponse, Scope, SendContext, Sent, now_s,
};

/// Grace period, in milliseconds: a message whose deadline passes within this time of the pool's
/// last account going away counts as *no account available*, not as *expired*.
const AWAY_MS: i64 = 3_000;

/// The share of a job's timeout that is reserved for writes after its requests, up to
/// [`WRITING_MOST`].
const WRITING: f64 = 0.2;
const MAX_WRITE_RESERVE: Duration = Duration::from_secs(2);

/// Longest wait of a message for an account while it holds its job's slot; beyond it the message
/// waits in the queue.
const CHECKOUT_TIMEOUT: Duration = Duration::from_millis(500);

/// Most accounts that fail one message in an attempt. A message that fails at all of them is
/// probably at fault itself, not the accounts.
const FAILURES_MAX: usize = 3;

/// Most accounts that are tried in one attempt.
const HOPS_MAX: usize = 20;

/// Most accounts that refuse one message in an attempt, if nothing else is known against them.
const REFUSED_MAX: usize = 2;

/// Back-off of a message that accounts failed or refused, long enough that an outage of some hours
/// does not use up its attempts.
const RETRY_POLICY: Policy = Policy {
    base: Duration::from_secs(5),
    factor: 4.0,
    max: Duration::from_secs(3600),
    max_attempts: None,
};

/// Delay of a message whose sender was asked to slow down without a time.
const USUAL_DELAY: Duration = Duration::from_secs(5);

/// Delay of a message that this process could not try to send.
const UNABLE_DELAY: Duration = Duration::from_secs(2);

/// Interval between attempts to record a delivery.
const RECORD_EVERY: Duration = Duration::from_millis(500);

/// Most errors of a reachable Postgres before a record is given up.
///
/// Endless failures must not run the job into its timeout, or the message would be sent twice.
const REFUSALS_MAX: u32 = 20;

/// Largest random share that is added to the wait of messages for one recipient.
const JITTER: f64 = 0.1;

/// Timeout of an attempt whose job sets none.
///
/// Each account's answer has a timeout of its own; this one is for a driver that hangs
/// nevertheless.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Shortest wait in the queue for an account; the longest is [`LONGEST_WAIT`].
const MIN_QUEUE_WAIT: Duration = Duration::from_millis(100);
const MAX_QUEUE_WAIT: Duration = Duration::from_secs(300);

/// A running pool: its desk, and the drivers of its accounts in their order.
#[derive(Clone)]
pub struct PoolHandle {
    /// Hands out accounts.
    pub desk: AccountPool,
    /// The provider's drivers, one for each account.
    pub drivers: Arc<Vec<Box<dyn Driver>>>,
}

/// Resources for sending; checking arguments does not need them.
#[derive(Clone)]
pub struct DeliveryServices {
    /// The pools, by name.
    pub carriers: BTreeMap<String, PoolHandle>,
    /// The record of deliveries.
    pub deliveries: Deliveries,
    pub metrics: PoolMetrics,
}

/// The handler of the kind `notification`.
pub struct NotificationHandler {
    pools: Arc<Pools>,
    means: Option<DeliveryServices>,
}

impl NotificationHandler {
    /// Creates a handler that checks arguments, and sends messages if `means` is given.
    pub fn new(pools: Arc<Pools>, means: Option<DeliveryServices>) -> Self {
        Self { pools, means }
    }

    async fn deliver(
        &self,
        notification: NotificationArgs,
        job: &Job,
        context: &Context,
    ) -> Result<Outcome, Outcome> {
        let limit = job.timeout.unwrap_or(TIMEOUT);
        let until = Instant::now() + limit - limit.mul_f64(WRITING).min(MAX_WRITE_RESERVE);
        let dead = |error: String| Outcome::Dead { error };
        let means = self
            .means
            .as_ref()
            .ok_or_else(|| dead("this process has no pools".to_owned()))?;
        let pool = self
            .pools
            .route(notification.channel, notification.provider.as_deref());
        let carrier = pool
            .and_then(|pool| means.carriers.get(&pool.name))
            .ok_or_else(|| {
                dead(self.nowhere(notification.channel, notification.provider.as_deref()))
            })?;
        let asked = BeginRequest {
            job_id: job.id,
            channel: notification.channel,
            recipient: notification.to.clone(),
        };
        let begun = means
            .deliveries
            .begin(asked)
            .await
            .map_err(|_| unrecorded())?;
        let pool = carrier.desk.pool();
        let policy = notification
            .on_ambiguous
            .unwrap_or(match pool.retry_ambiguous {
                true => OnAmbiguous::Retry,
                false => OnAmbiguous::Dead,
            });
        // The record decides, because an attempt may have ended without its outcome being seen.
        if begun.is_settled() {
            return Ok(Outcome::Done);
        }
        if policy == OnAmbiguous::Dead && begun.is_doubtful() {
            let error =
                "a previous attempt got no response, so the message may have been sent".to_owned();
            return Err(Outcome::Ambiguous { policy, error });
        }
        let valid_for = notification.valid_for.unwrap_or(pool.valid_for);
        // Postgres measures how long the message has waited; only the time left is measured by the
        // local clock.
        let left = valid_for.saturating_sub(begun.waited);
        let since = begun.waits_since.unwrap_or(job.created_at);
        let mut run = DeliveryRun {
            job,
            context,
            notification: &notification,
            carrier,
            means,
            policy,
            failures: begun.failures,
            attempts: Vec::new(),
            deadline_s: now_s().saturating_add(left.as_secs_f64().ceil() as i64),
            ended_at_s: since.as_second().saturating_add(valid_for.as_secs() as i64),
            until,
            told_delay: None,
            doubts: 0,
            refused: 0,
        };
        if let Some(reason) = begun.suppressed {
            run.record(DeliveryState::Suppressed, None, "suppressed", &reason, None)
                .await?;
            return Ok(Outcome::Done);
        }
        if left.is_zero() {
            return Err(run
                .expired(begun.last_outcome.as_deref(), valid_for)
                .await?);
        }
        if let Some(rest) = begun.rest {
            // The message has not been tried, so it costs nothing.
            context.report_cost(0.0);
            context.discount_duration();
            return Ok(run.later(rest));
        }
        let texts = match fill(&notification).await {
            Ok(texts) => texts,
            Err(error) => {
                run.record(
                    DeliveryState::Failed,
                    None,
                    "permanent_request",
                    &error,
                    None,
                )
                .await?;
                return Err(dead(error));
            }
        };
        run.send(texts).await
    }

    /// Validates the named pool when other arguments are invalid, so that all issues are reported
    /// at once.
    fn stray(&self, args: &Value) -> Option<Issue> {
        let (word, provider) = (
            args.get("channel")?.as_str()?,
            args.get("provider")?.as_str()?,
        );
        let channel = Channel::WORDS
            .iter()
            .find(|(known, _)| *known == word)
            .map(|(_, channel)| *channel)?;
        let is_stray = self.pools.route(channel, Some(provider)).is_none();
        is_stray.then(|| Issue::new("/provider", self.nowhere(channel, Some(provider))))
    }

    fn nowhere(&self, channel: Channel, provider: Option<&str>) -> String {
        let channel = channel.as_str();
        match provider {
            Some(name) => format!(
                "there is no pool or provider {name:?} for the channel {channel}; pools are {}",
                self.names()
            ),
            None => format!(
                "there is no pool for the channel {channel}; pools are {}",
                self.names()
            ),
        }
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.pools.0.keys().map(String::as_str).collect();
        if names.is_empty() {
            "none: the settings have no [pools.<name>]".to_owned()
        } else {
            names.join(", ")
        }
    }
}

/// One attempt at one message.
struct DeliveryRun<'a> {
    job: &'a Job,
    context: &'a Context,
    notification: &'a NotificationArgs,
    carrier: &'a PoolHandle,
    means: &'a DeliveryServices,
    /// The treatment of an attempt whose outcome is unknown.
    policy: OnAmbiguous,
    /// Earlier failures in a row of which the recipient was the cause.
    failures: u32,
    attempts: Vec<Attempt>,
    /// The deadline by the local clock, in unix seconds.
    deadline_s: i64,
    /// The deadline by the clock of Postgres, in unix seconds.
    ended_at_s: i64,
    /// The end of this attempt's own time.
    ///
    /// No request is in flight after it, because a request that is dropped halfway may have been
    /// sent unnoticed.
    until: Instant,
    /// The shortest delay that an account asked for, either for one sender or connection or because
    /// it failed.
    told_delay: Option<Duration>,
    /// Accounts that failed or refused the message while nothing else is known against them; the
    /// message may be at fault.
    doubts: usize,
    /// The accounts among `doubts` that refused the message.
    refused: usize,
}

impl DeliveryRun<'_> {
    /// Tries one account after the other until one takes the message or none is left for now.
    async fn send(&mut self, texts: Texts) -> Result<Outcome, Outcome> {
        let message =
            self.notification
                .message(format!("job_{}", self.job.id), texts, Some(self.deadline_s));
        let desk = self.carrier.desk.clone();
        let mut not = Vec::new();
        let mut failures = 0;
        loop {
            let held = match desk.take(self.job.id, &not, CHECKOUT_TIMEOUT).await {
                Checkout::Held(held) => held,
                Checkout::Wait { .. } | Checkout::Nobody if self.doubts > 0 => {
                    return Err(self.again(&not).await);
                }
                Checkout::Wait { wait, why } => return self.wait(wait, &why).await,
                // Every available account was tried; the first of them is tried again later.
                Checkout::Nobody => {
                    return Ok(self.put_off(self.told_delay.unwrap_or(USUAL_DELAY)).await);
                }
            };
            let driver = &self.carrier.drivers[held.at];
            let issues = driver.check(&message);
            if !issues.is_empty() {
                desk.unused(&held).await;
                let error = listed(&issues);
                self.record(
                    DeliveryState::Failed,
                    Some(&held),
                    "permanent_request",
                    &error,
                    None,
                )
                .await?;
                return Err(Outcome::Dead { error });
            }
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                desk.unused(&held).await;
                self.write(DeliveryState::Queued, None, None).await;
                return Err(Outcome::Retry {
                    after: None,
                    error: "no account accepted it before its time-out".to_owned(),
                });
            }
            let timeout = desk.pool().timeout.min(left);
            let told = SendContext {
                now_s: now_s(),
                timeout,
                stop: self.context.cancelled.clone(),
            };
            let begun = Instant::now();
            self.context.hand_over(self.policy);
            let answer = driver.send(&message, &told).await;
            self.context.answered();
            self.note(&held, &answer, begun.elapsed());
            if self.context.cancelled.is_cancelled() && is_unsent(&answer.sent) {
                // The attempt was cancelled before anything was sent, which says nothing about the
                // account.
                desk.unused(&held).await;
                return Err(Outcome::HandedBack);
            }
            // A timeout shorter than the pool's own says nothing about the account's health.
            let is_cut = timeout < desk.pool().timeout && begun.elapsed() >= timeout;
            if let Some(outcome) = self.judge(&held, answer, is_cut, &mut failures).await {
                return outcome;
            }
            not.push(held.at);
            if failures == 0 && self.doubts == 0 && not.len() >= HOPS_MAX {
                // Accounts throttled or refused in turn, which is not the message's fault.
                return self
                    .wait(USUAL_DELAY, "too many accounts in a row did not accept it")
                    .await;
            }
            if failures >= FAILURES_MAX || self.refused >= REFUSED_MAX || not.len() >= HOPS_MAX {
                return Err(self.again(&not).await);
            }
        }
    }

    /// Retries the message later, at the cost of an attempt, because accounts failed or refused it
    /// and nothing shows that they are at fault.
    async fn again(&mut self, not: &[usize]) -> Outcome {
        let accounts = if not.len() == 1 {
            "1 account".to_owned()
        } else {
            format!("{} accounts", not.len())
        };
        let error = format!(
            "{accounts} did not accept this message; the last: {}",
            self.last_reason()
        );
        self.write(DeliveryState::Queued, None, None).await;
        let wait = RETRY_POLICY
            .delay(self.job.attempt, rand::random())
            .max(self.told_delay.unwrap_or_default());
        Outcome::Retry {
            after: Some(wait.min(self.left()).max(MIN_QUEUE_WAIT)),
            error,
        }
    }

    /// Handles one account's answer. Returns `None` if the message moves on to the next account.
    async fn judge(
        &mut self,
        held: &AccountLease,
        answer: ProviderResponse,
        is_cut: bool,
        failures: &mut usize,
    ) -> Option<Result<Outcome, Outcome>> {
        let desk = self.carrier.desk.clone();
        let quota = answer.quota;
        match answer.sent {
            Sent::Delivered { provider_id } => {
                desk.succeeded(held, quota).await;
                Some(self.done(DeliveryState::Delivered, held, provider_id).await)
            }
            Sent::Accepted { provider_id } => {
                desk.succeeded(held, quota).await;
                Some(self.done(DeliveryState::Sent, held, provider_id).await)
            }
            Sent::Throttled {
                scope: Scope::Account,
                delay,
                reason,
                ..
            } => {
                self.context.report_refusals(1);
                desk.throttled(held, delay, &reason).await;
                None
            }
            // Another connection, or another account's sender, may succeed.
            Sent::Throttled {
                scope: Scope::Connection | Scope::Sender,
                delay,
                ..
            } => {
                desk.succeeded(held, quota).await;
                self.told_delay = self.told_delay.into_iter().chain(delay).min();
                None
            }
            Sent::Throttled {
                scope: Scope::Recipient,
                delay,
                ..
            } => {
                desk.succeeded(held, quota).await;
                let (rest, met) = self.rest(delay);
                self.write(DeliveryState::Queued, None, Some(met)).await;
                Some(Ok(self.later(rest)))
            }
            Sent::Transient { reason } => {
                let is_away = self.failed(held, &reason, is_cut, answer.delay).await;
                self.told_delay = self.told_delay.into_iter().chain(answer.delay).min();
                self.doubts += usize::from(!is_away);
                *failures += 1;
                None
            }
            Sent::Unable { reason } => {
                tracing::warn!(job_id = self.job.id, %reason, "a message waits because this process has too many files open");
                desk.unused(held).await;
                Some(
                    self.wait(UNABLE_DELAY, "this process has too many files open")
                        .await,
                )
            }
            Sent::AccountFailure { reason } => {
                let is_doubted = usize::from(!desk.account_failed(held, &reason).await);
                self.doubts += is_doubted;
                self.refused += is_doubted;
                None
            }
            Sent::PermanentRecipient { suppress, reason } => {
                desk.succeeded(held, quota).await;
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
                // A retry would change nothing, so this is no dead letter: the delivery record
                // holds the outcome.
                Some(Ok(Outcome::Done))
            }
            Sent::PermanentRequest { reason } => {
                desk.succeeded(held, quota).await;
                let written = self.written(DeliveryState::Failed, Some(held), None);
                self.record_update(written).await;
                Some(Err(Outcome::Dead { error: reason }))
            }
            Sent::Ambiguous { reason } => {
                let mut met = None;
                if !self.context.cancelled.is_cancelled() {
                    if self.carrier.desk.pool().provider.is_recipients() {
                        desk.succeeded(held, quota).await;
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
            self.carrier.desk.unjudged(held);
            return false;
        }
        self.carrier.desk.failed(held, reason, delay).await
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

    /// Records the outcome of a delivery, and repeats until Postgres has it, the lease is lost or
    /// the time is over.
    ///
    /// The outcome holds even if it cannot be recorded. But if the worker died without a record,
    /// the message would be sent twice.
    async fn record_update(&self, written: DeliveryUpdate) {
        let mut refusals = 0;
        while let Err(error) = self.means.deliveries.record(written.clone()).await {
            refusals += u32::from(!matches!(error, crate::jobs::Error::Lost(_)));
            if refusals >= REFUSALS_MAX || Instant::now() >= self.until {
                tracing::error!(job_id = self.job.id, %error, "recording the outcome of a message failed; it is not sent again");
                break;
            }
            tokio::select! {
                () = self.context.cancelled.cancelled() => break,
                () = tokio::time::sleep(RECORD_EVERY) => {}
            }
        }
    }

    /// Returns the recipient's rest after a failure, and the record of it for its other messages.
    fn rest(&self, told: Option<Duration>) -> (Duration, RecipientResult) {
        let failures = self.failures.saturating_add(1);
        let rest = recipient_backoff::rest(self.notification.channel, failures, told);
        (rest, RecipientResult::Unable { failures, rest })
    }

    /// Records that the recipient has answered, if it was resting before.
    fn able(&self) -> Option<RecipientResult> {
        (self.failures > 0).then_some(RecipientResult::Able)
    }

    /// Postpones the message until shortly after its recipient's rest, but not beyond its deadline,
    /// because a longer wait would only hide the expiry.
    fn later(&self, rest: Duration) -> Outcome {
        let wait = rest.mul_f64(1.0 + JITTER * rand::random::<f64>());
        Outcome::Snooze {
            delay: wait.min(self.left()).max(MIN_QUEUE_WAIT),
        }
    }

    fn left(&self) -> Duration {
        Duration::from_secs((self.deadline_s - now_s()).max(0) as u64)
    }

    /// Ends a message whose deadline passed: for lack of an account, because of its recipient, or
    /// before its turn came.
    async fn expired(
        &mut self,
        last_outcome: Option<&str>,
        valid_for: Duration,
    ) -> Result<Outcome, Outcome> {
        let pool = self.carrier.desk.pool().name.clone();
        let is_refused = matches!(
            last_outcome,
            Some("account_failure" | "throttled" | "transient" | NO_ACCOUNT)
        );
        let seconds = valid_for.as_secs();
        // The desk checks its accounts once a second, and clocks differ a little.
        let was_away = self
            .carrier
            .desk
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
    async fn wait(&mut self, wait: Duration, why: &str) -> Result<Outcome, Outcome> {
        if self.left().is_zero() {
            let error = format!(
                "no account of pool {} was available before its deadline: {why}",
                self.carrier.desk.pool().name
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
    async fn put_off(&mut self, delay: Duration) -> Outcome {
        if !self.attempts.is_empty() {
            self.write(DeliveryState::Queued, None, None).await;
        }
        Outcome::Snooze {
            delay: delay.min(self.left()).max(MIN_QUEUE_WAIT),
        }
    }

    fn note(&mut self, held: &AccountLease, answer: &ProviderResponse, took: Duration) {
        let account = self.account(held);
        let pool = &self.carrier.desk.pool().name;
        self.means
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

    fn last_reason(&self) -> String {
        self.attempts
            .last()
            .map(|attempt| attempt.reason.clone())
            .unwrap_or_default()
    }

    fn account(&self, held: &AccountLease) -> String {
        let pool = self.carrier.desk.pool();
        pool.accounts
            .get(held.at)
            .map_or_else(String::new, |limited| limited.account.name.clone())
    }

    /// Records an outcome without a send, together with the attempts so far.
    async fn record(
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
        self.means
            .deliveries
            .record(written)
            .await
            .map_err(|_| unrecorded())
    }

    /// Records the state of a message that will be retried. A failure is only logged, because the
    /// retry happens either way.
    async fn write(
        &mut self,
        state: DeliveryState,
        held: Option<&AccountLease>,
        met: Option<RecipientResult>,
    ) {
        let written = self.written(state, held, met);
        if let Err(error) = self.means.deliveries.record(written).await {
            tracing::debug!(job_id = self.job.id, %error, "recording attempts of a message failed");
        }
    }

    /// Builds the record, with every attempt of this run.
    fn written(
        &mut self,
        state: DeliveryState,
        held: Option<&AccountLease>,
        met: Option<RecipientResult>,
    ) -> DeliveryUpdate {
        let pool = self.carrier.desk.pool();
        DeliveryUpdate {
            job_id: self.job.id,
            channel: self.notification.channel,
            pool: pool.name.clone(),
            provider: pool.provider.as_str(),
            account: held.map(|held| self.account(held)),
            state,
            provider_id: None,
            recipient: self.notification.to.clone(),
            category: self.notification.category.clone(),
            attempts: std::mem::take(&mut self.attempts),
            suppress: None,
            met,
        }
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

/// Returns the outcome if the delivery record cannot be read or written: a retry, because Postgres
/// is unreachable.
fn unrecorded() -> Outcome {
    Outcome::Retry {
        after: None,
        error: "reading the delivery record failed".to_owned(),
    }
}

/// The name of the service that a worker needs for such a message, as workers and jobs spell it.
fn service(channel: Channel, provider: Option<&str>) -> String {
    match provider {
        Some(name) => format!("channel {} by {name}", channel.as_str()),
        None => format!("channel {}", channel.as_str()),
    }
}

/// Returns a short digest of a pool's settings, to distinguish pools of the same name. Credentials
/// are not part of it.
fn print_of(pool: &Pool) -> String {
    digest(&SHA256, format!("{pool:?}").as_bytes())
        .as_ref()
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Returns the first driver's issues if every account refuses the message. Texts of a template are
/// not rendered yet, so their issues are ignored.
fn refused_by_all(notification: &NotificationArgs, drivers: &[Box<dyn Driver>]) -> Vec<Issue> {
    let message = notification.message(String::new(), notification.texts.clone(), None);
    let is_text = |issue: &Issue| ["/body", "/subject", "/html"].contains(&issue.pointer.as_str());
    let mut first = None;
    for driver in drivers {
        let mut issues = driver.check(&message);
        issues.retain(|issue| notification.data.is_none() || !is_text(issue));
        if issues.is_empty() {
            return issues;
        }
        first.get_or_insert(issues);
    }
    first.unwrap_or_default()
}

/// Renders templates on a separate thread, where they block no other task.
async fn fill(notification: &NotificationArgs) -> Result<Texts, String> {
    if notification.data.is_none() {
        return Ok(notification.texts.clone());
    }
    let notification = notification.clone();
    let filled = apart(move |until| notification.fill(move || until.is_over())).await;
    filled.unwrap_or_else(|| Err("/template cannot be filled in".to_owned()))
}

fn listed(issues: &[Issue]) -> String {
    let each: Vec<String> = issues
        .iter()
        .map(|issue| format!("{} {}", issue.pointer, issue.message))
        .collect();
    each.join("; ")
}

#[allow(
    clippy::disallowed_methods,
    reason = "the record says when an attempt was made"
)]
fn now() -> Timestamp {
    Timestamp::now()
}

impl Handler for NotificationHandler {
    fn lacks(&self, args: &Value) -> Option<String> {
        let word = args.get("channel")?.as_str()?;
        let channel = Channel::WORDS
            .iter()
            .find(|(known, _)| *known == word)
            .map(|(_, channel)| *channel)?;
        let provider = args.get("provider").and_then(Value::as_str);
        let pool = self.pools.route(channel, provider);
        let has_it = pool.is_some_and(|pool| {
            self.means
                .as_ref()
                .is_some_and(|means| means.carriers.contains_key(&pool.name))
        });
        (!has_it).then(|| service(channel, provider))
    }

    fn offers(&self) -> BTreeMap<String, String> {
        let mut offers = BTreeMap::new();
        for pool in self.pools.0.values() {
            let digest = print_of(pool);
            offers.insert(service(pool.channel(), Some(&pool.name)), digest.clone());
            // The first pool of a provider, or of a channel, takes messages that name no more than
            // that.
            offers
                .entry(service(pool.channel(), Some(pool.provider.as_str())))
                .or_insert_with(|| digest.clone());
            offers
                .entry(service(pool.channel(), None))
                .or_insert(digest);
        }
        offers
    }

    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        let notification = NotificationArgs::parse(args).map_err(|mut issues| {
            issues.extend(self.stray(args));
            issues
        })?;
        let Some(pool) = self
            .pools
            .route(notification.channel, notification.provider.as_deref())
        else {
            let pointer = if notification.provider.is_some() {
                "/provider"
            } else {
                "/channel"
            };
            let message = self.nowhere(notification.channel, notification.provider.as_deref());
            return Err(vec![Issue::new(pointer, message)]);
        };
        let carrier = self
            .means
            .as_ref()
            .and_then(|means| means.carriers.get(&pool.name));
        let issues = carrier
            .map(|carrier| refused_by_all(&notification, &carrier.drivers))
            .unwrap_or_default();
        if !issues.is_empty() {
            return Err(issues);
        }
        Ok(PreparedJob::new(move |job, context| async move {
            self.deliver(notification, &job, &context)
                .await
                .unwrap_or_else(|outcome| outcome)
        }))
    }

    fn timeout(&self) -> Option<Duration> {
        Some(TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::outbound::Guard;
    use crate::providers::{Account, AccountSecret, Http, Tools, twilio};

    #[test]
    fn what_every_account_refuses_is_told_before_a_job_is_made() {
        let http = || Arc::new(Http::new(Guard::open()).unwrap());
        let tools = Tools {
            http: http(),
            guarded: http(),
        };
        let driver = |from: Option<&str>| {
            let mut account = Account {
                name: "a".to_owned(),
                ..Account::default()
            };
            account.options.insert(
                "account_sid".to_owned(),
                "AC00000000000000000000000000000000".to_owned(),
            );
            account
                .options
                .extend(from.map(|from| ("from".to_owned(), from.to_owned())));
            account.secrets.insert(
                "auth_token".to_owned(),
                AccountSecret::new("0123456789abcdef0123456789abcdef"),
            );
            twilio::build(&account, &tools).unwrap()
        };
        let wrong = |drivers: &[Box<dyn Driver>], more: Value| -> Vec<String> {
            let mut args = json!({"channel": "sms", "to": "+15550100"});
            args.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let notification = NotificationArgs::parse(&args).ok().unwrap();
            refused_by_all(&notification, drivers)
                .into_iter()
                .map(|issue| issue.pointer)
                .collect()
        };
        let drivers = [driver(None), driver(Some("+15550199"))];

        assert_eq!(
            wrong(&drivers, json!({"body": "hello"})),
            Vec::<String>::new()
        );
        assert_eq!(wrong(&drivers[..1], json!({"body": "hello"})), ["/from"]);
        assert_eq!(
            wrong(
                &drivers[1..],
                json!({"from": "+0", "body": "hello", "extra": {"colour": 1}})
            ),
            ["/extra/colour", "/from"]
        );
        // The length of a template's text is not known yet.
        let long = "x".repeat(2000);
        assert_eq!(wrong(&drivers[1..], json!({ "body": long })), ["/body"]);
        assert_eq!(
            wrong(&drivers[1..], json!({ "template": long })),
            Vec::<String>::new()
        );
    }
}
