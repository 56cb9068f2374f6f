//! The handler of the kind `notification`: checks arguments, and sends one message through the next
//! account that is available.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::check::refused_by_all;
use super::run::{DeliveryRun, GateStop, unrecorded};
use super::services::DeliveryServices;
use super::shared_settings::shared_settings;
use crate::input::wording::clipped;
use crate::jobs::serving::{self, SharedSettings};
use crate::jobs::{Context, Handler, Issue, Job, OnAmbiguous, Outcome, PreparedJob, secret};
use crate::notify::args::{NotificationArgs, Texts};
use crate::notify::recipient::KIND;
use crate::notify::{BatchStatus, BeginRequest, BegunDelivery, DeliveryState};
use crate::outbound::apart::apart;
use crate::outbound::signature::digest_of;
use crate::providers::{Channel, Pool, Pools, Recipient, now_s};
use crate::recipient::gate::{AttemptEnd, MessageGate, UnsentReason};
use crate::recipient::gates::MessagePlan;
use crate::recipient::postgres::{ClaimKey, GateVerdict};

/// The share of a job's timeout that is reserved for writes after its requests, up to
/// [`WRITE_RESERVE_MAX`].
const WRITE_RESERVE_SHARE: f64 = 0.2;
const WRITE_RESERVE_MAX: Duration = Duration::from_secs(2);

/// Wait of a message whose batch was paused after the message had been claimed.
const PAUSED_WAIT: Duration = Duration::from_secs(5);

/// Timeout of an attempt whose job sets none.
///
/// Each account's answer has a timeout of its own; this one is for a driver that hangs
/// nevertheless.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(600);

/// The handler of the kind `notification`.
pub struct NotificationHandler {
    pools: Arc<Pools>,
    services: Option<DeliveryServices>,
    /// The pools that this process was told to serve, as patterns; empty for all.
    served: Vec<String>,
}

impl NotificationHandler {
    /// Creates a handler that checks arguments, and sends messages if `services` is given.
    pub fn new(pools: Arc<Pools>, services: Option<DeliveryServices>) -> Self {
        Self {
            pools,
            services,
            served: Vec::new(),
        }
    }

    /// Leaves messages of other pools than those for which one of the patterns stands to other
    /// processes; without a pattern it leaves none.
    pub fn serving(mut self, served: Vec<String>) -> Self {
        self.served = served;
        self
    }

    fn is_served(&self, pool: &Pool) -> bool {
        let has_it = self
            .services
            .as_ref()
            .is_some_and(|services| services.handles.contains_key(&pool.name));
        has_it && serving::is_served(&self.served, &pool.name)
    }

    async fn deliver(
        &self,
        notification: NotificationArgs,
        job: &Job,
        context: &Context,
    ) -> Result<Outcome, Outcome> {
        let limit = job.timeout.unwrap_or(ATTEMPT_TIMEOUT);
        let until =
            Instant::now() + limit - limit.mul_f64(WRITE_RESERVE_SHARE).min(WRITE_RESERVE_MAX);
        let dead = |error: String| Outcome::Dead { error };
        let services = self
            .services
            .as_ref()
            .ok_or_else(|| dead("this process has no pools".to_owned()))?;
        let pool = self
            .pools
            .route(notification.channel, notification.provider.as_deref());
        let handle = pool
            .and_then(|pool| services.handles.get(&pool.name))
            .ok_or_else(|| {
                dead(self.nowhere(notification.channel, notification.provider.as_deref()))
            })?;
        let verdict = if notification.is_gated {
            let verified = services.gates.verify(job.id).await;
            verified.map_err(|_| unrecorded())?
        } else {
            None
        };
        let claim = verdict.as_ref().map(|verdict| verdict.claim);
        let is_paused = verdict.as_ref().is_some_and(|verdict| verdict.is_paused);
        let to = match &verdict {
            Some(verdict) => verdict.to.clone(),
            None => notification.to.clone(),
        };
        let request = BeginRequest {
            job_id: job.id,
            channel: notification.channel,
            recipient: to.clone(),
        };
        let mut begun = services
            .deliveries
            .begin(request)
            .await
            .map_err(|_| unrecorded())?;
        if is_paused && begun.batch == BatchStatus::Running {
            // Its batch was resumed a moment ago; the message has taken no slots yet.
            begun.batch = BatchStatus::Paused;
        }
        let pool = handle.accounts.pool();
        let policy = notification
            .on_ambiguous
            .unwrap_or(match pool.retry_ambiguous {
                true => OnAmbiguous::Retry,
                false => OnAmbiguous::Dead,
            });
        if let Some(outcome) = ended_by_record(services, claim, &begun, policy).await {
            return outcome;
        }
        let valid_for = notification.valid_for.unwrap_or(pool.valid_for);
        let deadline = MessageDeadline::of(verdict.as_ref(), &begun, job, valid_for);
        let was_ambiguous = begun.was_ambiguous;
        let mut run = DeliveryRun {
            job,
            context,
            notification: &notification,
            to,
            handle,
            services,
            end: AttemptEnd::Retried,
            policy,
            failures: begun.failures,
            attempts: Vec::new(),
            deadline_s: now_s().saturating_add(deadline.left.as_secs_f64().ceil() as i64),
            deadline: Instant::now() + deadline.left,
            ended_at_s: deadline.at_s,
            until,
            requested_delay: None,
            uncertain_failures: 0,
            refused: 0,
        };
        let stop = verdict.and_then(|verdict| stops(verdict, context));
        let outcome = match (stop, run.to.clone()) {
            (None, Some(to)) => attempt(&mut run, to, begun, valid_for).await,
            (stop, _) => {
                // Without a stop its job is gone, or only the profile had the address.
                let stop = stop.unwrap_or_else(unreachable);
                let last_outcome = begun.last_outcome.as_deref();
                run.stop(stop, last_outcome, valid_for).await
            }
        };
        // No other attempt follows the last one, unless it was stopped.
        let is_last = self.retry().is_last(job.attempt, job.max_attempts)
            && !context.cancelled.is_cancelled();
        let end = end_of(&outcome, is_last).unwrap_or(run.end);
        settle(services, claim, after(was_ambiguous, end)).await;
        outcome
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
                "there is no pool or provider {:?} for the channel {channel}; pools are {}",
                clipped(name),
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

/// The deadline of a message.
struct MessageDeadline {
    /// The time until then.
    left: Duration,
    /// The same in unix seconds, by the clock of Postgres.
    at_s: i64,
}

impl MessageDeadline {
    /// Returns the deadline of a message that is valid for this time.
    fn of(
        verdict: Option<&GateVerdict>,
        begun: &BegunDelivery,
        job: &Job,
        valid_for: Duration,
    ) -> Self {
        // The gates know the deadline that the sender set, which may count from a local time. Else
        // Postgres measures how long the message has waited; only the time left is measured by the
        // local clock.
        let own = verdict.and_then(|found| Some((found.deadline?, found.now)));
        match own {
            Some((deadline, now)) => Self {
                left: Duration::try_from(deadline.duration_since(now)).unwrap_or_default(),
                at_s: deadline.as_second(),
            },
            None => {
                let since = begun.waits_since.unwrap_or(job.created_at);
                Self {
                    left: valid_for.saturating_sub(begun.waited),
                    at_s: since.as_second().saturating_add(valid_for.as_secs() as i64),
                }
            }
        }
    }
}

/// Returns the outcome of an attempt that must not send, by its record. The record decides, because
/// an earlier attempt may have ended without its outcome being seen.
async fn ended_by_record(
    services: &DeliveryServices,
    claim: Option<ClaimKey>,
    begun: &BegunDelivery,
    policy: OnAmbiguous,
) -> Option<Result<Outcome, Outcome>> {
    if begun.is_settled() {
        let was_sent = matches!(
            begun.state,
            Some(DeliveryState::Sent | DeliveryState::Delivered)
        );
        let end = after(begun.was_ambiguous, AttemptEnd::settled(was_sent));
        settle(services, claim, end).await;
        return Some(Ok(Outcome::Done));
    }
    if begun.batch == BatchStatus::Cancelled {
        let end = after(begun.was_ambiguous, AttemptEnd::Unsent);
        settle(services, claim, end).await;
        return Some(Ok(Outcome::Cancelled));
    }
    if policy == OnAmbiguous::Dead && begun.is_doubtful() {
        let error =
            "a previous attempt got no response, so the message may have been sent".to_owned();
        return Some(Err(Outcome::Ambiguous { policy, error }));
    }
    None
}

/// Returns the end of an attempt where its outcome decides it.
fn end_of(outcome: &Result<Outcome, Outcome>, is_last: bool) -> Option<AttemptEnd> {
    match outcome {
        Err(Outcome::Ambiguous { policy, .. }) if is_last || *policy == OnAmbiguous::Dead => {
            Some(AttemptEnd::Ambiguous)
        }
        Err(Outcome::Retry { .. }) if !is_last => Some(AttemptEnd::Retried),
        Err(Outcome::Retry { .. } | Outcome::Dead { .. }) => Some(AttemptEnd::Unsent),
        _ => None,
    }
}

/// Sends a message that the gates let pass, unless its record says otherwise.
async fn attempt(
    run: &mut DeliveryRun<'_>,
    to: Recipient,
    begun: BegunDelivery,
    valid_for: Duration,
) -> Result<Outcome, Outcome> {
    if let Some(reason) = begun.suppressed {
        run.record(DeliveryState::Suppressed, None, "suppressed", &reason, None)
            .await?;
        return Ok(Outcome::Done);
    }
    if run.left().is_zero() {
        return Err(run
            .expired(begun.last_outcome.as_deref(), valid_for)
            .await?);
    }
    let rest = match begun.batch {
        BatchStatus::Paused => Some(PAUSED_WAIT),
        _ => begun.rest,
    };
    if let Some(rest) = rest {
        // The message has not been tried, so it costs nothing.
        run.context.report_cost(0.0);
        run.context.discount_duration();
        return Ok(run.later(rest));
    }
    let texts = match fill(run.notification).await {
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
            return Err(Outcome::Dead { error });
        }
    };
    run.send(to, texts).await
}

/// Returns the end of an attempt after others, of which one may have sent the message.
fn after(was_ambiguous: bool, end: AttemptEnd) -> AttemptEnd {
    match end {
        AttemptEnd::Unsent if was_ambiguous => AttemptEnd::Ambiguous,
        end => end,
    }
}

/// Settles what the gates took for a message. A failure leaves the claim to its job, which ends.
async fn settle(services: &DeliveryServices, claim: Option<ClaimKey>, end: AttemptEnd) {
    let Some(claim) = claim else {
        return;
    };
    if let Err(error) = services.gates.end(claim, end).await {
        tracing::debug!(?claim, %error, "settling what the gates took for a message failed");
    }
}

/// Returns what keeps a message from going now; `None` if all gates let it pass.
fn stops(verdict: GateVerdict, context: &Context) -> Option<GateStop> {
    let now = verdict.now;
    match verdict.plan {
        MessagePlan::Held { holds, .. } => {
            // The message has not been tried, so it costs nothing.
            context.report_cost(0.0);
            context.discount_duration();
            let until = holds.last()?.until;
            Some(GateStop::Wait(
                Duration::try_from(until.duration_since(now)).unwrap_or_default(),
            ))
        }
        MessagePlan::Ended { gate, reason, rule } => {
            context.report_cost(0.0);
            context.discount_duration();
            Some(match (gate, reason) {
                (MessageGate::Deadline, UnsentReason::Expired) => GateStop::Late,
                _ => GateStop::End(reason, rule),
            })
        }
        _ => None,
    }
}

/// Returns the end of a message without an address.
fn unreachable() -> GateStop {
    GateStop::End(UnsentReason::Unreachable, String::new())
}

/// The name of the service that a worker needs for such a message, as workers and jobs spell it.
fn service(channel: Channel, provider: Option<&str>) -> String {
    match provider {
        Some(name) => format!("channel {} by {name}", channel.as_str()),
        None => format!("channel {}", channel.as_str()),
    }
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

impl Handler for NotificationHandler {
    fn needs(&self, args: &Value) -> Vec<String> {
        let channel = args.get("channel").and_then(Value::as_str);
        let provider = args.get("provider").and_then(Value::as_str);
        channel
            .and_then(|word| Channel::WORDS.iter().find(|(known, _)| *known == word))
            .map(|(_, channel)| service(*channel, provider))
            .into_iter()
            .collect()
    }

    fn capabilities(&self) -> BTreeMap<String, String> {
        let mut capabilities = BTreeMap::new();
        for pool in self.pools.0.values() {
            let (channel, digest) = (pool.channel(), digest_of(pool));
            // The first pool of a provider, or of a channel, takes messages that name no more than
            // that.
            for provider in [Some(pool.name.as_str()), Some(pool.provider.as_str()), None] {
                let first = self.pools.route(channel, provider);
                if self.is_served(pool) && first.is_some_and(|first| first.name == pool.name) {
                    capabilities.insert(service(channel, provider), digest.clone());
                }
            }
        }
        capabilities
    }

    fn settings(&self) -> SharedSettings {
        let pools = self.pools.0.values();
        pools
            .map(|pool| (format!("pool {}", pool.name), shared_settings(pool)))
            .collect()
    }

    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        // The messages of every interface pass here, also those for which no job is stored at once.
        if let Some(issue) = secret::not_encryptable_in(args, KIND) {
            return Err(vec![issue]);
        }
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
        let handle = self
            .services
            .as_ref()
            .and_then(|services| services.handles.get(&pool.name));
        let issues = handle
            .map(|handle| refused_by_all(&notification, &handle.drivers))
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
        Some(ATTEMPT_TIMEOUT)
    }
}
