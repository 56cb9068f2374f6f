//! Runs jobs of the kind `notification`: one message, sent through the next account that may send it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use futures_util::future::{BoxFuture, FutureExt};
use jiff::Timestamp;
use serde_json::Value;

use super::args::{Notification, Texts};
use super::record::NO_ACCOUNT;
use super::{Asked, Attempt, Deliveries, DeliveryState, Met, Written, patience};
use crate::jobs::retry::Policy;
use crate::jobs::{Context, Handler, Issue, Job, OnAmbiguous, Outcome};
use crate::outbound::apart::apart;
use crate::providers::pool::{Desk, Held, Taken};
use crate::providers::{Answer, Channel, Driver, Metrics, Pool, Pools, Scope, Sent, Told, now_s};

/// Whose deadline passed no later than this after no account was there had none, in milliseconds.
const AWAY_MS: i64 = 3_000;

/// The part of a job's time-out that is left for what is written after its requests, and the most of it.
const WRITING: f64 = 0.2;
const WRITING_MOST: Duration = Duration::from_secs(2);

/// How long a message waits for an account with its slot in hand. Whoever has to wait longer waits in the queue.
const PATIENCE: Duration = Duration::from_millis(500);

/// Accounts that fail one message before it waits for its next attempt: what fails everywhere is not the accounts.
const FAILURES_MAX: usize = 3;

/// Accounts that are tried in one attempt, at most.
const HOPS_MAX: usize = 20;

/// Accounts that refuse one message before it waits for its next attempt, where nothing else is known against them.
const REFUSED_MAX: usize = 2;

/// How long a message waits that accounts failed or refused, so that an outage of some hours does not use its attempts up.
const AGAIN: Policy = Policy { base: Duration::from_secs(5), factor: 4.0, max: Duration::from_secs(3600), max_attempts: None };

/// How long the message alone waits where its sender was asked to slow down and nobody said for how long.
const USUAL_DELAY: Duration = Duration::from_secs(5);

/// How long a message waits where this process could not even try to send it.
const UNABLE_DELAY: Duration = Duration::from_secs(2);

/// How often it is tried to record what was sent.
const RECORD_EVERY: Duration = Duration::from_millis(500);

/// Errors of a Postgres that answers after which a record is given up: its message would end as one that took too long, and be sent twice.
const REFUSALS_MAX: u32 = 20;

/// What is added by chance to the wait of messages for one recipient, at most, as a share of it.
const JITTER: f64 = 0.1;

/// The time that a message's attempt may take where its job does not say: each account's answer has a time of its own, and this one is
/// for a driver that hangs in spite of it.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The shortest and the longest wait in the queue for an account.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// A pool at work: its desk, and the drivers of its accounts in their order.
#[derive(Clone)]
pub struct Carrier {
    /// Hands the accounts out.
    pub desk: Desk,
    /// Speak to the provider, one for each account.
    pub drivers: Arc<Vec<Box<dyn Driver>>>,
}

/// What is needed to send, and not to check.
#[derive(Clone)]
pub struct Means {
    /// The pools, by name.
    pub carriers: BTreeMap<String, Carrier>,
    /// Where deliveries are recorded.
    pub deliveries: Deliveries,
    /// What is counted.
    pub metrics: Metrics,
}

/// The handler of the kind `notification`.
pub struct NotificationHandler {
    pools: Arc<Pools>,
    means: Option<Means>,
}

impl NotificationHandler {
    /// A handler that checks arguments, and sends if it has the means.
    pub fn new(pools: Arc<Pools>, means: Option<Means>) -> Self {
        Self { pools, means }
    }

    async fn deliver(&self, job: &Job, context: &Context) -> Result<Outcome, Outcome> {
        let limit = job.timeout.unwrap_or(TIMEOUT);
        let until = Instant::now() + limit - limit.mul_f64(WRITING).min(WRITING_MOST);
        let dead = |error: String| Outcome::Dead { error };
        let notification = Notification::parse(&job.args).map_err(|issues| dead(listed(&issues)))?;
        let means = self.means.as_ref().ok_or_else(|| dead("this process has no pools".to_owned()))?;
        let pool = self.pools.route(notification.channel, notification.provider.as_deref());
        let carrier = pool
            .and_then(|pool| means.carriers.get(&pool.name))
            .ok_or_else(|| dead(self.nowhere(notification.channel, notification.provider.as_deref())))?;
        let asked = Asked { job_id: job.id, channel: notification.channel, recipient: notification.to.clone() };
        let begun = means.deliveries.begin(asked).await.map_err(|_| unrecorded())?;
        let pool = carrier.desk.pool();
        let policy = notification.on_ambiguous.unwrap_or(match pool.retry_ambiguous {
            true => OnAmbiguous::Retry,
            false => OnAmbiguous::Dead,
        });
        // What was written down decides: its attempt may have ended without anybody hearing of it.
        if begun.is_settled() {
            return Ok(Outcome::Done);
        }
        if policy == OnAmbiguous::Dead && begun.is_doubtful() {
            let error = "an attempt before this one got no answer, so it may have been sent".to_owned();
            return Err(Outcome::Ambiguous { policy, error });
        }
        let valid_for = notification.valid_for.unwrap_or(pool.valid_for);
        // How long it has waited is told by the clock that began to count; only what is left of its time is counted by ours.
        let left = valid_for.saturating_sub(begun.waited);
        let since = begun.waits_since.unwrap_or(job.created_at);
        let mut run = Run {
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
            run.record(DeliveryState::Suppressed, None, "suppressed", &reason, None).await?;
            return Ok(Outcome::Done);
        }
        if left.is_zero() {
            return Err(run.expired(begun.last_outcome.as_deref(), valid_for).await?);
        }
        if let Some(rest) = begun.rest {
            // It has not run, so it costs nothing either.
            context.report_cost(0.0);
            context.discount_duration();
            return Ok(run.later(rest));
        }
        let texts = match fill(&notification).await {
            Ok(texts) => texts,
            Err(error) => {
                run.record(DeliveryState::Failed, None, "permanent_request", &error, None).await?;
                return Err(dead(error));
            }
        };
        run.send(texts).await
    }

    /// What is wrong with the pool that arguments name which are wrong elsewhere.
    fn stray(&self, args: &Value) -> Option<Issue> {
        let (word, provider) = (args.get("channel")?.as_str()?, args.get("provider")?.as_str()?);
        let channel = Channel::WORDS.iter().find(|(known, _)| *known == word).map(|(_, channel)| *channel)?;
        let is_stray = self.pools.route(channel, Some(provider)).is_none();
        is_stray.then(|| Issue { pointer: "/provider".to_owned(), message: self.nowhere(channel, Some(provider)) })
    }

    fn nowhere(&self, channel: Channel, provider: Option<&str>) -> String {
        let channel = channel.word();
        match provider {
            Some(name) => format!("there is no pool or provider {name:?} for the channel {channel}; pools are {}", self.names()),
            None => format!("there is no pool for the channel {channel}; pools are {}", self.names()),
        }
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.pools.0.keys().map(String::as_str).collect();
        if names.is_empty() { "none: the settings have no [pools.<name>]".to_owned() } else { names.join(", ") }
    }
}

/// One attempt at one message.
struct Run<'a> {
    job: &'a Job,
    context: &'a Context,
    notification: &'a Notification,
    carrier: &'a Carrier,
    means: &'a Means,
    /// What becomes of it where nobody knows whether it was sent.
    policy: OnAmbiguous,
    /// Tries in a row that its recipient could not take before this one.
    failures: u32,
    attempts: Vec<Attempt>,
    /// Its deadline by our clock,
    deadline_s: i64,
    /// and by that of Postgres.
    ended_at_s: i64,
    /// When this attempt's own time is over. No request is under way then: one that is dropped in the middle may have been sent, and
    /// nobody would know.
    until: Instant,
    /// The shortest wait that an account asked for: for one sender or connection, or because it is in trouble.
    told_delay: Option<Duration>,
    /// Accounts that failed or refused it of which nothing else is known to be wrong: it may be the message.
    doubts: usize,
    /// Those of them that refused it.
    refused: usize,
}

impl Run<'_> {
    /// Sends through one account after the other until one has the message, or none is left for now.
    async fn send(&mut self, texts: Texts) -> Result<Outcome, Outcome> {
        let message = self.notification.message(format!("job_{}", self.job.id), texts, Some(self.deadline_s));
        let desk = self.carrier.desk.clone();
        let mut not = Vec::new();
        let mut failures = 0;
        loop {
            let held = match desk.take(self.job.id, &not, PATIENCE).await {
                Taken::Held(held) => held,
                Taken::Wait { .. } | Taken::Nobody if self.doubts > 0 => return Err(self.again(&not).await),
                Taken::Wait { wait, why } => return self.wait(wait, &why).await,
                // Every account there is has been tried: the first of them is tried again later.
                Taken::Nobody => return Ok(self.put_off(self.told_delay.unwrap_or(USUAL_DELAY)).await),
            };
            let driver = &self.carrier.drivers[held.at];
            let issues = driver.check(&message);
            if !issues.is_empty() {
                desk.unused(&held).await;
                let error = listed(&issues);
                self.record(DeliveryState::Failed, Some(&held), "permanent_request", &error, None).await?;
                return Err(Outcome::Dead { error });
            }
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                desk.unused(&held).await;
                self.write(DeliveryState::Queued, None, None).await;
                return Err(Outcome::Retry { after: None, error: "no account took it before its time-out".to_owned() });
            }
            let timeout = desk.pool().timeout.min(left);
            let told = Told { now_s: now_s(), timeout, stop: self.context.cancelled.clone() };
            let begun = Instant::now();
            self.context.hand_over(self.policy);
            let answer = driver.send(&message, &told).await;
            self.context.answered();
            self.note(&held, &answer, begun.elapsed());
            if self.context.cancelled.is_cancelled() && is_unsent(&answer.sent) {
                // It was stopped before anything was sent, which says nothing about the account.
                desk.unused(&held).await;
                return Err(Outcome::HandedBack);
            }
            // Who waits less than the pool would has not seen the account fail.
            let is_cut = timeout < desk.pool().timeout && begun.elapsed() >= timeout;
            if let Some(outcome) = self.judge(&held, answer, is_cut, &mut failures).await {
                return outcome;
            }
            not.push(held.at);
            if failures == 0 && self.doubts == 0 && not.len() >= HOPS_MAX {
                // They were slowed down or refused one after the other, which is not the message's doing.
                return self.wait(USUAL_DELAY, "many accounts in a row did not take it").await;
            }
            if failures >= FAILURES_MAX || self.refused >= REFUSED_MAX || not.len() >= HOPS_MAX {
                return Err(self.again(&not).await);
            }
        }
    }

    /// Accounts failed or refused it, and nothing tells that it was them: it has used an attempt, and comes again later.
    async fn again(&mut self, not: &[usize]) -> Outcome {
        let accounts = if not.len() == 1 { "1 account".to_owned() } else { format!("{} accounts", not.len()) };
        let error = format!("{accounts} did not take this message; the last: {}", self.last_reason());
        self.write(DeliveryState::Queued, None, None).await;
        let wait = AGAIN.delay(self.job.attempt, rand::random()).max(self.told_delay.unwrap_or_default());
        Outcome::Retry { after: Some(wait.min(self.left()).max(SHORTEST_WAIT)), error }
    }

    /// What one account's answer means; `None` where the message moves on to the next.
    async fn judge(
        &mut self,
        held: &Held,
        answer: Answer,
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
            Sent::Throttled { scope: Scope::Account, delay, reason, .. } => {
                self.context.report_refusals(1);
                desk.throttled(held, delay, &reason).await;
                None
            }
            // Another connection, or another account's sender, may do.
            Sent::Throttled { scope: Scope::Connection | Scope::Sender, delay, .. } => {
                desk.succeeded(held, quota).await;
                self.told_delay = self.told_delay.into_iter().chain(delay).min();
                None
            }
            Sent::Throttled { scope: Scope::Recipient, delay, .. } => {
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
                Some(self.wait(UNABLE_DELAY, "this process has too many files open").await)
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
                let state = if suppress.is_some() { DeliveryState::Bounced } else { DeliveryState::Failed };
                let written = Written { suppress, ..self.written(state, Some(held), self.able()) };
                self.keep(written).await;
                // Running it again would change nothing, so it is no dead letter: its delivery says what became of it.
                Some(Ok(Outcome::Done))
            }
            Sent::PermanentRequest { reason } => {
                desk.succeeded(held, quota).await;
                let written = self.written(DeliveryState::Failed, Some(held), None);
                self.keep(written).await;
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
                        self.keep(written).await;
                    }
                    OnAmbiguous::Retry => self.write(DeliveryState::Queued, Some(held), met).await,
                }
                Some(Err(Outcome::Ambiguous { policy: self.policy, error: reason }))
            }
        }
    }

    /// A message failed at an account; answers whether the account is known to be away.
    async fn failed(&self, held: &Held, reason: &str, is_cut: bool, delay: Option<Duration>) -> bool {
        if is_cut {
            self.carrier.desk.unjudged(held);
            return false;
        }
        self.carrier.desk.failed(held, reason, delay).await
    }

    /// The provider has it.
    async fn done(&mut self, state: DeliveryState, held: &Held, provider_id: Option<String>) -> Result<Outcome, Outcome> {
        let written = Written { provider_id, ..self.written(state, Some(held), self.able()) };
        self.keep(written).await;
        Ok(Outcome::Done)
    }

    /// What the wire said holds, whatever becomes of its record; but a message would be sent twice if its worker died and this were not
    /// written down, so it is tried until it is, or the lease is lost, or the time is over.
    async fn keep(&self, written: Written) {
        let mut refusals = 0;
        while let Err(error) = self.means.deliveries.record(written.clone()).await {
            refusals += u32::from(!matches!(error, crate::jobs::Error::Lost(_)));
            if refusals >= REFUSALS_MAX || Instant::now() >= self.until {
                tracing::error!(job_id = self.job.id, %error, "what became of a message could not be written down; it is not sent again");
                break;
            }
            tokio::select! {
                () = self.context.cancelled.cancelled() => break,
                () = tokio::time::sleep(RECORD_EVERY) => {}
            }
        }
    }

    /// How long the recipient is left alone that could not take it, and what others are told of it.
    fn rest(&self, told: Option<Duration>) -> (Duration, Met) {
        let failures = self.failures.saturating_add(1);
        let rest = patience::rest(self.notification.channel, failures, told);
        (rest, Met::Unable { failures, rest })
    }

    /// The recipient has answered; only one that was left alone is told of.
    fn able(&self) -> Option<Met> {
        (self.failures > 0).then_some(Met::Able)
    }

    /// This message waits for its recipient, a little longer than that rests, as others do. Past its deadline it ends; to wait longer
    /// would only hide that.
    fn later(&self, rest: Duration) -> Outcome {
        let wait = rest.mul_f64(1.0 + JITTER * rand::random::<f64>());
        Outcome::Snooze { delay: wait.min(self.left()).max(SHORTEST_WAIT) }
    }

    fn left(&self) -> Duration {
        Duration::from_secs((self.deadline_s - now_s()).max(0) as u64)
    }

    /// Its deadline passed while it waited: for an account, if none took it or none is there, or else for its turn.
    async fn expired(&mut self, last_outcome: Option<&str>, valid_for: Duration) -> Result<Outcome, Outcome> {
        let pool = self.carrier.desk.pool().name.clone();
        let is_refused = matches!(last_outcome, Some("account_failure" | "throttled" | "transient" | NO_ACCOUNT));
        let seconds = valid_for.as_secs();
        // Pools are looked at each second, and clocks differ a little.
        let was_away = self.carrier.desk.view().away_at_ms.is_some_and(|at_ms| self.ended_at_s * 1000 <= at_ms + AWAY_MS);
        let (outcome, error) = match is_refused || was_away {
            // It found an account, and nobody at the other end.
            _ if self.failures > 0 && !was_away => {
                ("expired", format!("its recipient could not take it until its deadline, {seconds} s after it was queued"))
            }
            true => {
                (NO_ACCOUNT, format!("no account of pool {pool} took it until its deadline, {seconds} s after it was queued"))
            }
            false => ("expired", format!("its deadline passed {seconds} s after it was queued, before its turn came")),
        };
        self.record(DeliveryState::Failed, None, outcome, &error, None).await?;
        Ok(Outcome::Dead { error })
    }

    /// It waits in the queue for an account; past its deadline it is dead.
    async fn wait(&mut self, wait: Duration, why: &str) -> Result<Outcome, Outcome> {
        if self.left().is_zero() {
            let error = format!("no account of pool {} was available until its deadline: {why}", self.carrier.desk.pool().name);
            self.record(DeliveryState::Failed, None, NO_ACCOUNT, &error, None).await?;
            return Err(Outcome::Dead { error });
        }
        Ok(self.put_off(wait.clamp(SHORTEST_WAIT, LONGEST_WAIT)).await)
    }

    /// It is not the accounts that keep it, or none is there: this message alone waits, without using an attempt.
    async fn put_off(&mut self, delay: Duration) -> Outcome {
        if !self.attempts.is_empty() {
            self.write(DeliveryState::Queued, None, None).await;
        }
        Outcome::Snooze { delay: delay.min(self.left()).max(SHORTEST_WAIT) }
    }

    fn note(&mut self, held: &Held, answer: &Answer, took: Duration) {
        let account = self.account(held);
        let pool = &self.carrier.desk.pool().name;
        self.means.metrics.sent(pool, &account, answer.sent.word(), took.as_secs_f64());
        self.context.report_duration(took);
        if answer.is_untimed {
            self.context.discount_duration();
        }
        let ended = now();
        self.attempts.push(Attempt {
            at: ended.checked_sub(took).unwrap_or(ended),
            account,
            outcome: answer.sent.word(),
            status: answer.status.clone(),
            reason: answer.sent.reason().to_owned(),
            took,
        });
    }

    fn last_reason(&self) -> String {
        self.attempts.last().map(|attempt| attempt.reason.clone()).unwrap_or_default()
    }

    fn account(&self, held: &Held) -> String {
        let pool = self.carrier.desk.pool();
        pool.accounts.get(held.at).map_or_else(String::new, |limited| limited.account.name.clone())
    }

    /// Records what no account had a part in, beside the attempts so far.
    async fn record(
        &mut self,
        state: DeliveryState,
        held: Option<&Held>,
        outcome: &'static str,
        reason: &str,
        suppress: Option<String>,
    ) -> Result<(), Outcome> {
        if !outcome.is_empty() {
            let account = held.map(|held| self.account(held)).unwrap_or_default();
            let (status, reason) = (String::new(), reason.to_owned());
            self.attempts.push(Attempt { at: now(), account, outcome, status, reason, took: Duration::ZERO });
        }
        let written = Written { suppress, ..self.written(state, held, None) };
        self.means.deliveries.record(written).await.map_err(|_| unrecorded())
    }

    /// Records where a message stands that will be tried again. Where that fails it is tried again all the same.
    async fn write(&mut self, state: DeliveryState, held: Option<&Held>, met: Option<Met>) {
        let written = self.written(state, held, met);
        if let Err(error) = self.means.deliveries.record(written).await {
            tracing::debug!(job_id = self.job.id, %error, "attempts at a message could not be written down");
        }
    }

    /// What is to be recorded, with every attempt of this run.
    fn written(&mut self, state: DeliveryState, held: Option<&Held>, met: Option<Met>) -> Written {
        let pool = self.carrier.desk.pool();
        Written {
            job_id: self.job.id,
            channel: self.notification.channel,
            pool: pool.name.clone(),
            provider: pool.provider.word(),
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

/// It was stopped before anything was sent.
fn is_unsent(sent: &Sent) -> bool {
    matches!(sent, Sent::Transient { .. } | Sent::Throttled { scope: Scope::Recipient, delay: Some(Duration::ZERO), .. })
}

/// The delivery could not be recorded, or looked up. Postgres is away, so the attempt is given back when it is there again.
fn unrecorded() -> Outcome {
    Outcome::Retry { after: None, error: "the delivery record could not be reached".to_owned() }
}

/// What a worker must have for such a message, as workers and jobs say it.
fn service(channel: Channel, provider: Option<&str>) -> String {
    match provider {
        Some(name) => format!("channel {} by {name}", channel.word()),
        None => format!("channel {}", channel.word()),
    }
}

/// Tells settings of a pool from others of the same name. Credentials have no part in it.
fn print_of(pool: &Pool) -> String {
    digest(&SHA256, format!("{pool:?}").as_bytes()).as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// What is wrong with a message in the eyes of every account, by the first one's words. Of a template the texts are not known yet.
fn refused_by_all(notification: &Notification, drivers: &[Box<dyn Driver>]) -> Vec<Issue> {
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

/// Fills templates in on a thread where it holds nobody up.
async fn fill(notification: &Notification) -> Result<Texts, String> {
    if notification.data.is_none() {
        return Ok(notification.texts.clone());
    }
    let notification = notification.clone();
    let filled = apart(move |until| notification.fill(move || until.is_over())).await;
    filled.unwrap_or_else(|| Err("/template cannot be filled in".to_owned()))
}

fn listed(issues: &[Issue]) -> String {
    let each: Vec<String> = issues.iter().map(|issue| format!("{} {}", issue.pointer, issue.message)).collect();
    each.join("; ")
}

#[allow(clippy::disallowed_methods, reason = "the record says when an attempt was made")]
fn now() -> Timestamp {
    Timestamp::now()
}

impl Handler for NotificationHandler {
    fn lacks(&self, args: &Value) -> Option<String> {
        let word = args.get("channel")?.as_str()?;
        let channel = Channel::WORDS.iter().find(|(known, _)| *known == word).map(|(_, channel)| *channel)?;
        let provider = args.get("provider").and_then(Value::as_str);
        let pool = self.pools.route(channel, provider);
        let has_it = pool.is_some_and(|pool| self.means.as_ref().is_some_and(|means| means.carriers.contains_key(&pool.name)));
        (!has_it).then(|| service(channel, provider))
    }

    fn offers(&self) -> BTreeMap<String, String> {
        let mut offers = BTreeMap::new();
        for pool in self.pools.0.values() {
            let digest = print_of(pool);
            offers.insert(service(pool.channel(), Some(&pool.name)), digest.clone());
            // The first of a provider, or of a channel, is the one that messages go to which name no more than that.
            offers.entry(service(pool.channel(), Some(pool.provider.word()))).or_insert_with(|| digest.clone());
            offers.entry(service(pool.channel(), None)).or_insert(digest);
        }
        offers
    }

    fn check(&self, args: &Value) -> Vec<Issue> {
        let notification = match Notification::parse(args) {
            Ok(notification) => notification,
            Err(mut issues) => {
                issues.extend(self.stray(args));
                return issues;
            }
        };
        let Some(pool) = self.pools.route(notification.channel, notification.provider.as_deref()) else {
            let pointer = if notification.provider.is_some() { "/provider" } else { "/channel" };
            return vec![Issue {
                pointer: pointer.to_owned(),
                message: self.nowhere(notification.channel, notification.provider.as_deref()),
            }];
        };
        let carrier = self.means.as_ref().and_then(|means| means.carriers.get(&pool.name));
        carrier.map(|carrier| refused_by_all(&notification, &carrier.drivers)).unwrap_or_default()
    }

    fn run(&self, job: Job, context: Context) -> BoxFuture<'_, Outcome> {
        async move { self.deliver(&job, &context).await.unwrap_or_else(|outcome| outcome) }.boxed()
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
    use crate::providers::{Account, Http, Secret, Tools, twilio};

    #[test]
    fn what_every_account_refuses_is_told_before_a_job_is_made() {
        let http = || Arc::new(Http::new(Guard::open()).unwrap());
        let tools = Tools { http: http(), guarded: http() };
        let driver = |from: Option<&str>| {
            let mut account = Account { name: "a".to_owned(), ..Account::default() };
            account.options.insert("account_sid".to_owned(), "AC00000000000000000000000000000000".to_owned());
            account.options.extend(from.map(|from| ("from".to_owned(), from.to_owned())));
            account.secrets.insert("auth_token".to_owned(), Secret::new("0123456789abcdef0123456789abcdef"));
            twilio::build(&account, &tools).unwrap()
        };
        let wrong = |drivers: &[Box<dyn Driver>], more: Value| -> Vec<String> {
            let mut args = json!({"channel": "sms", "to": "+15550100"});
            args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let notification = Notification::parse(&args).ok().unwrap();
            refused_by_all(&notification, drivers).into_iter().map(|issue| issue.pointer).collect()
        };
        let drivers = [driver(None), driver(Some("+15550199"))];

        assert_eq!(wrong(&drivers, json!({"body": "hello"})), Vec::<String>::new());
        assert_eq!(wrong(&drivers[..1], json!({"body": "hello"})), ["/from"]);
        assert_eq!(
            wrong(&drivers[1..], json!({"from": "+0", "body": "hello", "extra": {"colour": 1}})),
            ["/extra/colour", "/from"]
        );
        // How long a text will be that is a template, nobody knows yet.
        let long = "x".repeat(2000);
        assert_eq!(wrong(&drivers[1..], json!({ "body": long })), ["/body"]);
        assert_eq!(wrong(&drivers[1..], json!({ "template": long })), Vec::<String>::new());
    }
}
