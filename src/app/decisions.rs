//! The governor's journal as the API reads it: true in every process, whether or not it leads.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::clock;
use crate::api::{Decision, Decisions, FindingState, GovernorState, ReadError, SignalState};
use crate::governor::postgres::Error;
use crate::governor::why::{self, Asked};
use crate::governor::{self, Journal, Policy, View};
use crate::jobs::Queue;
use crate::throttle::{Name, Status};

/// The journal, read with the policies that this process knows.
pub struct Journalled {
    journal: Journal,
    queue: Queue,
    policies: Arc<BTreeMap<Name, Policy>>,
}

impl Journalled {
    /// Reads the journal in the queue's database.
    pub fn new(queue: &Queue, policies: &[(Name, Policy)]) -> Self {
        Self {
            journal: Journal::new(queue.pool.clone()),
            queue: queue.clone(),
            policies: Arc::new(policies.iter().cloned().collect()),
        }
    }

    /// One sentence on why a throttle runs as it does; `None` for `status` if there is no such throttle.
    pub async fn sentence(&self, name: &Name, status: Option<&Status>) -> Result<String, ReadError> {
        let now = status.map_or_else(clock::unix_s, |status| status.at_us as f64 / 1e6);
        let view = match self.policies.get(name) {
            Some(policy) => {
                let stored = self.journal.load(name.as_str()).await.map_err(unread)?;
                stored.and_then(|(_, state)| View::of_stored(state, policy, now))
            }
            None => None,
        };
        let decision = self.journal.recent(Some(name.as_str()), 1).await.map_err(unread)?.pop();
        let depths = self.queue.depths().await.map_err(|error| ReadError::Failed(error.to_string()))?;
        let ready = depths.throttles.iter().find(|depth| depth.throttle == name.as_str()).map(|depth| depth.ready as u64);
        let asked = Asked { name: name.as_str(), status, view: view.as_ref(), decision: decision.as_ref(), ready, now };
        let mut sentence = why::sentence(asked);
        // The sentence tells of a wrong rps by itself; whatever else is wrong with the knobs must not stay untold.
        for problem in status.iter().flat_map(|status| &status.problems).filter(|problem| problem.field != "rps") {
            sentence += &format!(" Its knob {}: {}.", problem.field, problem.message);
        }
        Ok(sentence)
    }
}

impl Decisions for Journalled {
    fn recent<'a>(&'a self, throttle: Option<&'a str>, limit: i64) -> BoxFuture<'a, Result<Vec<Decision>, ReadError>> {
        Box::pin(async move {
            let decisions = self.journal.recent(throttle, limit).await.map_err(unread)?;
            Ok(decisions.into_iter().map(shown).collect())
        })
    }

    fn governors(&self) -> BoxFuture<'_, Result<BTreeMap<String, GovernorState>, ReadError>> {
        Box::pin(async move {
            let now = clock::unix_s();
            let stored = self.journal.load_all().await.map_err(unread)?;
            let view = |(name, state): (String, serde_json::Value)| {
                let policy = self.policies.get(&Name::new(name.clone()).ok()?)?;
                Some((name, standing(View::of_stored(state, policy, now)?)))
            };
            Ok(stored.into_iter().filter_map(view).collect())
        })
    }

    fn why<'a>(&'a self, status: &'a Status) -> BoxFuture<'a, Result<Option<String>, ReadError>> {
        Box::pin(async move { self.sentence(&status.name, Some(status)).await.map(Some) })
    }
}

fn unread(error: Error) -> ReadError {
    ReadError::Failed(error.to_string())
}

fn shown(decision: governor::Decision) -> Decision {
    Decision {
        id: decision.id,
        throttle: decision.throttle,
        at: decision.at,
        rps: Some(decision.rps),
        previous_rps: Some(decision.previous_rps),
        breaker: word(&decision.breaker),
        mode: word(&decision.mode),
        limiting: Some(decision.limiting),
        reason: Some(decision.reason),
        terms: decision.terms,
    }
}

fn standing(view: View) -> GovernorState {
    let signals = view.signals.into_iter().map(|signal| SignalState {
        name: signal.name,
        kind: word(&signal.kind).unwrap_or_default(),
        value: signal.value,
        setpoint: signal.setpoint,
        trip: Some(signal.trip),
        at: signal.at,
        age_s: signal.age_s,
        stale: signal.stale,
    });
    let findings = view.findings.into_iter().map(|found| FindingState {
        finding: found.finding.word().to_owned(),
        since: found.since,
        sentence: found.sentence,
    });
    GovernorState {
        breaker: word(&view.breaker).unwrap_or_default(),
        limiting: Some(view.limiting),
        reason: view.reason,
        at: view.at,
        findings: findings.collect(),
        gain_factor: view.gain_factor,
        signals: signals.collect(),
    }
}

/// The word that stands for a plain enum in JSON.
fn word(value: &impl serde::Serialize) -> Option<String> {
    serde_json::to_value(value).ok()?.as_str().map(str::to_owned)
}
