//! Runs jobs of the kind `notification`: one message, sent through the next account that may send it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt};
use jiff::Timestamp;
use serde_json::Value;

use super::args::{Notification, Texts};
use super::record::NO_ACCOUNT;
use super::{Asked, Attempt, Deliveries, DeliveryState, Written};
use crate::jobs::{Context, Handler, Issue, Job, OnAmbiguous, Outcome};
use crate::providers::pool::{Desk, Held, Taken};
use crate::providers::{Answer, Channel, Driver, Metrics, Pools, Scope, Sent, Told, now_s};

/// Longest that a template may take. Its steps are bounded, so this is for a machine that does nothing else.
const TEMPLATE_TIMEOUT: Duration = Duration::from_secs(5);

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

/// How long the message alone waits where its recipient or sender was asked to slow down and nobody said for how long.
const USUAL_DELAY: Duration = Duration::from_secs(5);

/// How long a message waits where this process could not even try to send it.
const UNABLE_DELAY: Duration = Duration::from_secs(2);

/// How often it is tried to record what was sent.
const RECORD_EVERY: Duration = Duration::from_millis(500);

/// Errors of a Postgres that answers after which a record is given up: its message would end as one that took too long, and be sent twice.
const REFUSALS_MAX: u32 = 20;

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
        let until = job.timeout.map(|timeout| Instant::now() + timeout - timeout.mul_f64(WRITING).min(WRITING_MOST));
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
        let since = begun.waits_since.unwrap_or(job.created_at);
        let valid_for = notification.valid_for.unwrap_or(pool.valid_for);
        let deadline_s = since.as_second().saturating_add(valid_for.as_secs() as i64);
        let mut run = Run {
            job,
            context,
            notification: &notification,
            carrier,
            means,
            attempts: Vec::new(),
            deadline_s,
            until,
            told_delay: None,
        };
        if let Some(reason) = begun.suppressed {
            run.record(DeliveryState::Suppressed, None, "suppressed", &reason, None).await?;
            return Ok(Outcome::Done);
        }
        if now_s() >= deadline_s {
            return Err(run.expired(begun.last_outcome.as_deref(), valid_for).await?);
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
    attempts: Vec<Attempt>,
    deadline_s: i64,
    /// When this attempt's own time is over, if its job has a time-out. No request is under way then: one that is dropped in the middle
    /// may have been sent, and nobody would know.
    until: Option<Instant>,
    /// The shortest wait that was asked for on behalf of one sender or connection of an account.
    told_delay: Option<Duration>,
}

impl Run<'_> {
    /// Sends through one account after the other until one has the message, or none is left for now.
    async fn send(&mut self, texts: Texts) -> Result<Outcome, Outcome> {
        let message = self.notification.message(format!("job_{}", self.job.id), texts, Some(self.deadline_s));
        let desk = self.carrier.desk.clone();
        let mut not = Vec::new();
        let mut failures = 0;
        loop {
            let held = match desk.take(&not, PATIENCE).await {
                Taken::Held(held) => held,
                Taken::Wait { wait, why } => return self.wait(wait, &why).await,
                // Every account there is has been tried: the first of them is tried again later.
                Taken::Nobody => {
                    return self.wait(self.told_delay.unwrap_or(USUAL_DELAY), "every account has been tried").await;
                }
            };
            let driver = &self.carrier.drivers[held.at];
            let issues = driver.check(&message);
            if !issues.is_empty() {
                desk.unused(&held).await;
                let error = listed(&issues);
                self.record(DeliveryState::Failed, Some(&held), "permanent_request", &error, None).await?;
                return Err(Outcome::Dead { error });
            }
            let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                desk.unused(&held).await;
                self.record(DeliveryState::Queued, None, "", "", None).await?;
                return Err(Outcome::Retry { after: None, error: "no account took it before its time-out".to_owned() });
            }
            let timeout = desk.pool().timeout.min(left.unwrap_or(Duration::MAX));
            let told = Told { now_s: now_s(), timeout, stop: self.context.cancelled.clone() };
            let begun = Instant::now();
            let answer = driver.send(&message, &told).await;
            self.note(&held, &answer, begun.elapsed());
            if self.context.cancelled.is_cancelled() && matches!(answer.sent, Sent::Transient { .. }) {
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
            if failures == 0 && not.len() >= HOPS_MAX {
                // They were slowed down or refused one after the other, which is not the message's doing.
                return self.wait(USUAL_DELAY, "many accounts in a row did not take it").await;
            }
            if failures >= FAILURES_MAX || not.len() >= HOPS_MAX {
                let error = format!("{} accounts did not take it; the last: {}", not.len(), self.last_reason());
                self.record(DeliveryState::Queued, None, "", "", None).await?;
                return Err(Outcome::Retry { after: None, error });
            }
        }
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
                // Past its deadline it ends; to wait longer would only hide that.
                let left = Duration::from_secs((self.deadline_s - now_s()).max(0) as u64);
                Some(self.put_off(delay.unwrap_or(USUAL_DELAY).min(left)).await)
            }
            Sent::Transient { reason } => {
                self.failed(held, &reason, is_cut).await;
                *failures += 1;
                None
            }
            Sent::Unable { reason } => {
                tracing::warn!(job_id = self.job.id, %reason, "a message waits because this process has too many files open");
                desk.unused(held).await;
                Some(self.wait(UNABLE_DELAY, "this process has too many files open").await)
            }
            Sent::AccountFailure { reason } => {
                desk.account_failed(held, &reason).await;
                None
            }
            Sent::PermanentRecipient { suppress, reason } => {
                desk.succeeded(held, quota).await;
                let suppress = suppress.then(|| reason.clone());
                let state = if suppress.is_some() { DeliveryState::Bounced } else { DeliveryState::Failed };
                // Running it again would change nothing, so it is no dead letter: its delivery says what became of it.
                Some(self.write(state, Some(held), None, suppress).await.map(|()| Outcome::Done))
            }
            Sent::PermanentRequest { reason } => {
                desk.succeeded(held, quota).await;
                Some(self.write(DeliveryState::Failed, Some(held), None, None).await.and(Err(Outcome::Dead { error: reason })))
            }
            Sent::Ambiguous { reason } => {
                if !self.context.cancelled.is_cancelled() {
                    self.failed(held, &reason, is_cut).await;
                }
                let usual = if desk.pool().retry_ambiguous { OnAmbiguous::Retry } else { OnAmbiguous::Dead };
                let policy = self.notification.on_ambiguous.unwrap_or(usual);
                let state = if policy == OnAmbiguous::Dead { DeliveryState::Failed } else { DeliveryState::Queued };
                let ended = Err(Outcome::Ambiguous { policy, error: reason });
                Some(self.write(state, Some(held), None, None).await.and(ended))
            }
        }
    }

    async fn failed(&self, held: &Held, reason: &str, is_cut: bool) {
        match is_cut {
            true => self.carrier.desk.unjudged(held),
            false => self.carrier.desk.failed(held, reason).await,
        }
    }

    /// The provider has it. It would be sent twice if this were not recorded, so it is tried until it is, or the lease is lost.
    async fn done(&mut self, state: DeliveryState, held: &Held, provider_id: Option<String>) -> Result<Outcome, Outcome> {
        let written = self.written(state, Some(held), provider_id, None);
        let mut refusals = 0;
        while let Err(error) = self.means.deliveries.record(written.clone()).await {
            refusals += u32::from(!matches!(error, crate::jobs::Error::Lost(_)));
            if refusals >= REFUSALS_MAX {
                tracing::error!(job_id = self.job.id, %error, "a message was sent and its record could not be written; it is not sent again");
                break;
            }
            tokio::select! {
                () = self.context.cancelled.cancelled() => break,
                () = tokio::time::sleep(RECORD_EVERY) => {}
            }
        }
        Ok(Outcome::Done)
    }

    /// Its deadline passed while it waited: for an account, if none took it or none is there, or else for its turn.
    async fn expired(&mut self, last_outcome: Option<&str>, valid_for: Duration) -> Result<Outcome, Outcome> {
        let pool = self.carrier.desk.pool().name.clone();
        let is_refused = matches!(last_outcome, Some("account_failure" | "throttled" | "transient" | NO_ACCOUNT));
        let seconds = valid_for.as_secs();
        // Pools are looked at each second, and clocks differ a little.
        let was_away = self.carrier.desk.view().away_at_ms.is_some_and(|at_ms| self.deadline_s * 1000 <= at_ms + AWAY_MS);
        let (outcome, error) = match is_refused || was_away {
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
        let left = Duration::from_secs((self.deadline_s - now_s()).max(0) as u64);
        if left.is_zero() {
            let error = format!("no account of pool {} was available until its deadline: {why}", self.carrier.desk.pool().name);
            self.record(DeliveryState::Failed, None, NO_ACCOUNT, &error, None).await?;
            return Err(Outcome::Dead { error });
        }
        self.put_off(wait.clamp(SHORTEST_WAIT, LONGEST_WAIT).min(left)).await
    }

    /// It is not the accounts that keep it, or none is there: this message alone waits, without using an attempt.
    async fn put_off(&mut self, delay: Duration) -> Result<Outcome, Outcome> {
        if !self.attempts.is_empty() {
            self.write(DeliveryState::Queued, None, None, None).await?;
        }
        Ok(Outcome::Snooze { delay: delay.max(SHORTEST_WAIT) })
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
        self.write(state, held, None, suppress).await
    }

    /// Records where the message stands, with every attempt of this run.
    async fn write(
        &mut self,
        state: DeliveryState,
        held: Option<&Held>,
        provider_id: Option<String>,
        suppress: Option<String>,
    ) -> Result<(), Outcome> {
        let written = self.written(state, held, provider_id, suppress);
        self.means.deliveries.record(written).await.map_err(|_| unrecorded())
    }

    fn written(
        &mut self,
        state: DeliveryState,
        held: Option<&Held>,
        provider_id: Option<String>,
        suppress: Option<String>,
    ) -> Written {
        let pool = self.carrier.desk.pool();
        Written {
            job_id: self.job.id,
            channel: self.notification.channel,
            pool: pool.name.clone(),
            provider: pool.provider.word(),
            account: held.map(|held| self.account(held)),
            state,
            provider_id,
            recipient: self.notification.to.clone(),
            category: self.notification.category.clone(),
            attempts: std::mem::take(&mut self.attempts),
            suppress,
        }
    }
}

/// The delivery could not be recorded, or looked up. Postgres is away, so the attempt is given back when it is there again.
fn unrecorded() -> Outcome {
    Outcome::Retry { after: None, error: "the delivery record could not be reached".to_owned() }
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
    let filling = tokio::task::spawn_blocking(move || notification.fill());
    match tokio::time::timeout(TEMPLATE_TIMEOUT, filling).await {
        Ok(Ok(filled)) => filled,
        Ok(Err(_)) => Err("/template cannot be filled in".to_owned()),
        Err(_) => Err(format!("/template takes more than {} s", TEMPLATE_TIMEOUT.as_secs())),
    }
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
        // Each account's answer has a time of its own; this one is for a driver that hangs in spite of it.
        Some(Duration::from_secs(600))
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
        assert_eq!(wrong(&drivers[1..], json!({"to": "Ann", "body": "hello", "extra": {"colour": 1}})), ["/extra/colour", "/to"]);
        // How long a text will be that is a template, nobody knows yet.
        let long = "x".repeat(2000);
        assert_eq!(wrong(&drivers[1..], json!({ "body": long })), ["/body"]);
        assert_eq!(wrong(&drivers[1..], json!({ "template": long })), Vec::<String>::new());
    }
}
