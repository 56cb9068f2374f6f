//! The governor of all throttles that have a policy.
//!
//! The leader calls [`Governor::tick`] every second and [`Governor::fast`] twice as often, with its
//! term; a tick acts on a throttle when its policy's `tick_s` has passed. Nothing is retried here:
//! the next call reads the complete state again.
//!
//! The clock is the throttle store's, so a wrong local clock does no harm.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::governed::{GovernedThrottle, ThrottleRuntime};
use super::postgres::Journal;
use super::reconciler::Reconciler;
use super::records::Records;
use super::report::RoundReport;
use super::sources::{self, Sources};
use super::{fast_path, tick};
use crate::governor::decision::Decision;
use crate::governor::explain::view::GovernorView;
use crate::governor::policy::Policy;
use crate::governor::watchdogs::Sharing;
use crate::signals::{self, DepthSource, FeedbackSource, Prometheus};
use crate::throttle::{Name, Store};

/// The governor of all throttles that have a policy.
pub struct Governor {
    parts: Reconciler,
    throttles: Vec<GovernedThrottle>,
}

impl Governor {
    /// Creates a governor of `policies` with signals from the Prometheus at `prometheus_url`, from
    /// `depth` and from `feedback`.
    pub fn new(
        store: Arc<dyn Store>,
        journal: Journal,
        prometheus_url: &str,
        depth: DepthSource,
        policies: Vec<(Name, Policy)>,
        feedback: FeedbackSource,
    ) -> Result<Self, signals::Error> {
        let sources = Sources::new(Prometheus::new(prometheus_url)?)
            .with_depth(depth)
            .with_feedback(feedback);
        Self::with(store, journal, sources, policies)
    }

    /// Creates a governor of `policies` with all its sources; fails if a policy names one that is
    /// not among them.
    pub fn with(
        store: Arc<dyn Store>,
        journal: Journal,
        sources: Sources,
        policies: Vec<(Name, Policy)>,
    ) -> Result<Self, signals::Error> {
        let sharing = Sharing::of(
            policies
                .iter()
                .map(|(name, policy)| (name.as_str(), policy)),
        );
        for (throttle, signal, with) in sharing.shared_signals() {
            let with = with.join(", ");
            tracing::warn!(
                throttle.name = throttle,
                signal,
                with,
                "a signal has several governors; one follows"
            );
        }
        let governed = |(name, policy): (Name, Policy)| {
            let direct = sources.direct_sources(&policy)?;
            Ok(GovernedThrottle::new(name, policy, direct))
        };
        let throttles = policies
            .into_iter()
            .map(governed)
            .collect::<Result<_, signals::Error>>()?;
        let parts = Reconciler {
            store,
            sources,
            records: Records::new(journal),
            sharing: Mutex::new(sharing),
        };
        Ok(Self { parts, throttles })
    }

    /// Subscribes to the decisions as they are made.
    pub fn decisions(&self) -> broadcast::Receiver<Decision> {
        self.parts.records.decisions.subscribe()
    }

    /// Returns the governed throttles and their policies.
    pub fn policies(&self) -> impl Iterator<Item = (&Name, &Policy)> {
        self.throttles.iter().map(|t| (&t.name, &t.policy))
    }

    /// Returns a view of every governor as of `now` (unix seconds); empty in a process that does
    /// not lead.
    pub fn snapshot(&self, now: f64) -> BTreeMap<Name, GovernorView> {
        let view = |t: &GovernedThrottle| {
            let mut view = t.view.lock().clone()?;
            view.age(now);
            Some((t.name.clone(), view))
        };
        self.throttles.iter().filter_map(view).collect()
    }

    /// Returns the latest term above ours found in a knob without a valid lease; 0 for none.
    pub fn seen_term(&self) -> u64 {
        self.parts.records.seen_term()
    }

    /// Returns true if the knobs can be reached, which a leader must write.
    ///
    /// One throttle that answers suffices: on a Redis Cluster a server that is away takes its own
    /// throttles with it, and the others must be governed all the same.
    pub async fn reaches_knobs(&self) -> bool {
        let Some((first, others)) = self.throttles.split_first() else {
            return true;
        };
        let is_reached = async |throttle: &GovernedThrottle| {
            self.parts.store.status(&throttle.name).await.is_ok()
        };
        is_reached(first).await
            || join_all(others.iter().map(is_reached))
                .await
                .contains(&true)
    }

    /// Discards this process's state when it no longer leads; the stored state is the next
    /// leader's.
    pub async fn rest(&self) {
        for throttle in &self.throttles {
            *throttle.runtime.lock().await = ThrottleRuntime::default();
            *throttle.view.lock() = None;
        }
    }

    /// Decides for every throttle whose tick is due.
    ///
    /// Call it every second.
    pub async fn tick(&self, term: u64) -> RoundReport {
        let one = async |throttle: &GovernedThrottle| tick::tick(&self.parts, throttle, term).await;
        let outcomes = join_all(self.throttles.iter().map(one)).await;
        let (mut report, now) = (RoundReport::default(), Instant::now());
        for (one, outcome) in self.throttles.iter().zip(outcomes) {
            report.add(&one.name, &one.failures, outcome, "tick", now);
        }
        report
    }

    /// Runs the breaker's fast path: one direct look at every signal that does not pass through
    /// Prometheus.
    ///
    /// Call it every half second, and sooner after an alarm.
    pub async fn fast(&self, term: u64) -> RoundReport {
        let one =
            async |throttle: &GovernedThrottle| fast_path::look(&self.parts, throttle, term).await;
        let can_look = |t: &&GovernedThrottle| sources::can_look(&t.policy);
        let looked: Vec<&GovernedThrottle> = self.throttles.iter().filter(can_look).collect();
        let outcomes = join_all(looked.iter().copied().map(one)).await;
        let (mut report, now) = (RoundReport::default(), Instant::now());
        for (one, outcome) in looked.into_iter().zip(outcomes) {
            report.add(&one.name, &one.failures, outcome, "fast path", now);
        }
        report
    }
}
