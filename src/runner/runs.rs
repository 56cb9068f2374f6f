//! The kinds that this worker runs, each with its handler and what is counted of it, looked up once per job.

use std::collections::HashMap;
use std::sync::Arc;

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
}

/// The kinds.
pub(super) struct Runs(HashMap<String, Arc<OfRun>>);

impl Runs {
    pub(super) fn new(kinds: Kinds, metrics: &Metrics) -> Self {
        let one = |kind: String| {
            let handler = kinds.get(&kind)?.clone();
            let duration = metrics.duration.get_or_create_owned(&OfKind { kind: kind.clone() });
            let completed = metrics.finished.get_or_create_owned(&Ended { kind: kind.clone(), outcome: "completed" });
            Some((kind, Arc::new(OfRun { handler, duration, completed })))
        };
        Self(kinds.names().into_iter().filter_map(one).collect())
    }

    pub(super) fn get(&self, kind: &str) -> Option<&Arc<OfRun>> {
        self.0.get(kind)
    }

    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.0.keys().cloned().collect();
        names.sort();
        names
    }
}
