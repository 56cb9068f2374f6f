//! The kinds that this worker runs, each with its handler and what is counted of it, looked up once per job.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use super::Metrics;
use super::metrics::{Ended, OfKind};
use crate::jobs::{Handler, Kinds};

/// One kind.
pub(super) struct OfRun {
    pub(super) handler: Arc<dyn Handler>,
    pub(super) duration: Histogram,
    pub(super) completed: Counter,
    cost: Histogram,
    /// Attempts that ended since this was last asked, and what they cost together.
    tally: Mutex<(u64, f64)>,
}

impl OfRun {
    /// Takes note of what an attempt cost.
    pub(super) fn cost(&self, tokens: f64) {
        self.cost.observe(tokens);
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        *tally = (tally.0 + 1, tally.1 + tokens);
    }
}

/// The kinds.
pub(super) struct Runs(HashMap<String, Arc<OfRun>>);

impl Runs {
    pub(super) fn new(kinds: Kinds, metrics: &Metrics) -> Self {
        let one = |kind: String| {
            let handler = kinds.get(&kind)?.clone();
            let duration = metrics.duration.get_or_create_owned(&OfKind { kind: kind.clone() });
            let completed = metrics.finished.get_or_create_owned(&Ended { kind: kind.clone(), outcome: "completed" });
            let cost = metrics.cost.get_or_create_owned(&OfKind { kind: kind.clone() });
            Some((kind, Arc::new(OfRun { handler, duration, completed, cost, tally: Mutex::default() })))
        };
        Self(kinds.names().into_iter().filter_map(one).collect())
    }

    pub(super) fn get(&self, kind: &str) -> Option<&Arc<OfRun>> {
        self.0.get(kind)
    }

    /// The attempts that ended since this was last asked, by kind, and what they cost together.
    pub(super) fn take_costs(&self) -> Vec<(String, u64, f64)> {
        let take = |(kind, of_run): (&String, &Arc<OfRun>)| {
            let (attempts, tokens) = std::mem::take(&mut *of_run.tally.lock().unwrap_or_else(PoisonError::into_inner));
            (attempts > 0).then(|| (kind.clone(), attempts, tokens))
        };
        self.0.iter().filter_map(take).collect()
    }

    /// The kinds, and whether every producer may enqueue them.
    pub(super) fn public(&self) -> Vec<(String, bool)> {
        self.0.iter().map(|(kind, of_run)| (kind.clone(), of_run.handler.public())).collect()
    }

    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.0.keys().cloned().collect();
        names.sort();
        names
    }
}
