//! The governor's journal as the API reads it, valid in every process, whether or not it leads.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::clock;
use crate::api::{
    Decision, Decisions, FindingState, GovernorState, ManualOverrideState, Obstacles, QuotaState,
    ReadError, ShadowState, SignalState, Trip, closed_above, held_keys,
};
use crate::governor::decision::timestamp;
use crate::governor::postgres::Error;
use crate::governor::why::{self, WhyInput};
use crate::governor::{self, Journal, Policy, View};
use crate::jobs::Queue;
use crate::throttle::{Name, Status, Store};

/// Decisions that explain the rate's recent changes: one every five seconds for five minutes.
const TREND_DECISIONS: i64 = 60;

/// The journal, read with the policies of this process.
pub struct JournalReader {
    journal: Journal,
    queue: Queue,
    throttles: Arc<dyn Store>,
    policies: Arc<BTreeMap<Name, Policy>>,
}

impl JournalReader {
    /// Creates a reader of the journal in the queue's database.
    pub fn new(queue: &Queue, throttles: &Arc<dyn Store>, policies: &[(Name, Policy)]) -> Self {
        Self {
            journal: Journal::new(queue.pool.clone()),
            queue: queue.clone(),
            throttles: throttles.clone(),
            policies: Arc::new(policies.iter().cloned().collect()),
        }
    }

    /// Returns the state of a throttle's governor at `now` (unix seconds); `None` if the throttle
    /// has no governor or it has not decided yet.
    pub async fn view(&self, name: &Name, now: f64) -> Result<Option<View>, ReadError> {
        let Some(policy) = self.policies.get(name) else {
            return Ok(None);
        };
        let stored = self.journal.load(name.as_str()).await.map_err(read_error)?;
        Ok(stored.and_then(|(_, state)| View::of_stored(state, policy, now)))
    }

    /// Returns one sentence that explains the current rate of a throttle. `status` is `None` if
    /// there is no such throttle.
    pub async fn sentence(
        &self,
        name: &Name,
        status: Option<&Status>,
    ) -> Result<String, ReadError> {
        let now = status.map_or_else(clock::unix_s, |status| status.at_us as f64 / 1e6);
        let view = self.view(name, now).await?;
        let decisions = self
            .journal
            .recent(Some(name.as_str()), TREND_DECISIONS)
            .await
            .map_err(read_error)?;
        let depths = self
            .queue
            .depths()
            .await
            .map_err(|error| ReadError::Failed(error.to_string()))?;
        let ready = depths
            .throttles
            .iter()
            .find(|depth| depth.throttle == name.as_str())
            .map(|depth| depth.ready as u64);
        let asked = WhyInput {
            name: name.as_str(),
            status,
            view: view.as_ref(),
            decisions: &decisions,
            ready,
            now,
        };
        let mut sentence = why::sentence(asked);
        let told = view.as_ref().map_or("rps", |view| view.actuator.field());
        // The sentence covers a problem of the governed knob itself; problems of other knobs are
        // added here.
        for problem in status
            .iter()
            .flat_map(|status| &status.problems)
            .filter(|problem| problem.field != told)
        {
            sentence += &format!(" Its knob {}: {}.", problem.field, problem.message);
        }
        match status {
            Some(status) => {
                self.with_obstacles(&sentence, status, ready.unwrap_or(0), now)
                    .await
            }
            None => Ok(sentence),
        }
    }

    /// Adds the other obstacles of the throttle's jobs to the sentence.
    async fn with_obstacles(
        &self,
        sentence: &str,
        status: &Status,
        ready: u64,
        now: f64,
    ) -> Result<String, ReadError> {
        let (name, throttles) = (&status.name, &*self.throttles);
        let failing = self
            .queue
            .failing_of(name.as_str())
            .await
            .map_err(|error| ReadError::Failed(error.to_string()))?;
        let held = if ready > 0 {
            held_keys(&self.queue, throttles, name).await?
        } else {
            None
        };
        let above = closed_above(throttles, status).await;
        let obstacles = Obstacles {
            status,
            above: above.as_ref(),
            held: held.as_ref(),
            failing: failing.as_ref(),
            now,
        };
        Ok(obstacles.around(sentence))
    }
}

impl Decisions for JournalReader {
    fn recent<'a>(
        &'a self,
        throttle: Option<&'a str>,
        limit: i64,
    ) -> BoxFuture<'a, Result<Vec<Decision>, ReadError>> {
        Box::pin(async move {
            let decisions = self
                .journal
                .recent(throttle, limit)
                .await
                .map_err(read_error)?;
            Ok(decisions.into_iter().map(decision_view).collect())
        })
    }

    fn governors(&self) -> BoxFuture<'_, Result<BTreeMap<String, GovernorState>, ReadError>> {
        Box::pin(async move {
            let now = clock::unix_s();
            let stored = self.journal.load_all().await.map_err(read_error)?;
            let view = |(name, state): (String, serde_json::Value)| {
                let policy = self.policies.get(&Name::new(name.clone()).ok()?)?;
                Some((name, governor_state(View::of_stored(state, policy, now)?)))
            };
            Ok(stored.into_iter().filter_map(view).collect())
        })
    }

    fn why<'a>(&'a self, status: &'a Status) -> BoxFuture<'a, Result<Option<String>, ReadError>> {
        Box::pin(async move { self.sentence(&status.name, Some(status)).await.map(Some) })
    }
}

fn read_error(error: Error) -> ReadError {
    ReadError::Failed(error.to_string())
}

fn decision_view(decision: governor::Decision) -> Decision {
    Decision {
        id: decision.id,
        throttle: decision.throttle,
        at: decision.at,
        rps: Some(decision.rps),
        previous_rps: Some(decision.previous_rps),
        breaker: variant_name(&decision.breaker),
        mode: variant_name(&decision.mode),
        limiting: Some(decision.limiting),
        reason: Some(decision.reason),
        terms: decision.terms,
    }
}

fn governor_state(view: View) -> GovernorState {
    let signals = view.signals.into_iter().map(|signal| SignalState {
        name: signal.name,
        kind: variant_name(&signal.kind).unwrap_or_default(),
        value: signal.value,
        setpoint: signal.setpoint,
        trip: Some(signal.trip),
        at: signal.at,
        age_s: signal.age_s,
        stale: signal.stale,
        ask_rps: signal.ask_rps,
        learned_quota: signal.learned_quota.map(|quota| QuotaState {
            rps: quota.rps,
            at: quota.at,
            refused_share: quota.refused_share,
        }),
    });
    let shadow = view.shadow.map(|score| ShadowState {
        since: timestamp(score.since),
        seconds: score.seconds,
        jobs: score.real.jobs,
        own_jobs: score.own.jobs,
        overload_s: score.real.overload_s,
        own_overload_s: score.own.overload_s,
        peak: score.real.peak,
        own_peak: score.own.peak,
        load: score.real.load,
        own_load: score.own.load,
        lower_s: score.lower_s,
        higher_s: score.higher_s,
        stopped_s: score.stopped_s,
        braked_share: score.braked_share(),
        sentence: score.sentence(),
    });
    let last_trip = view.last_trip.map(|trip| Trip {
        at: trip.at,
        by: trip.by,
        height: trip.height,
    });
    let hand = view.hand.map(|hand| ManualOverrideState {
        what: hand.what,
        by: hand.by,
        at: timestamp(hand.at),
        why: hand.why,
    });
    let findings = view.findings.into_iter().map(|found| FindingState {
        finding: found.finding.as_str().to_owned(),
        since: found.since,
        sentence: found.sentence,
    });
    GovernorState {
        actuator: view.actuator.field().to_owned(),
        unit: view.actuator.unit().to_owned(),
        rps: view.rps,
        breaker: variant_name(&view.breaker).unwrap_or_default(),
        limiting: Some(view.limiting),
        last_trip,
        hand,
        shadow,
        reason: view.reason,
        at: view.at,
        findings: findings.collect(),
        gain_factor: view.gain_factor,
        signals: signals.collect(),
    }
}

/// Returns the name of a unit variant in JSON.
fn variant_name(value: &impl serde::Serialize) -> Option<String> {
    serde_json::to_value(value)
        .ok()?
        .as_str()
        .map(str::to_owned)
}
