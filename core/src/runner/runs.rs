//! The kinds that this worker runs, each with its handler and its metrics, looked up once per job.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use super::WorkerMetrics;
use super::metrics::{AttemptLabels, KindLabels};
use crate::jobs::postgres::EndedAttempts;
use crate::jobs::{Handler, Kinds};

/// A kind that this worker runs.
pub(super) struct ServedKind {
    pub(super) handler: Arc<dyn Handler>,
    pub(super) duration: Histogram,
    pub(super) completed: Counter,
    cost: Histogram,
    /// Number and total cost of the attempts that ended since the last report.
    tally: Mutex<(u64, f64)>,
}

impl ServedKind {
    /// Records the cost of an attempt.
    pub(super) fn cost(&self, tokens: f64) {
        self.cost.observe(tokens);
        let mut tally = self.tally.lock();
        *tally = (tally.0 + 1, tally.1 + tokens);
    }
}

/// The kinds that this worker runs, by name.
pub(super) struct Runs {
    kinds: HashMap<String, Arc<ServedKind>>,
    names: Vec<String>,
}

impl Runs {
    pub(super) fn new(kinds: Kinds, metrics: &WorkerMetrics) -> Self {
        let one = |kind: String| {
            let handler = kinds.get(&kind)?.clone();
            let duration = metrics
                .duration
                .get_or_create_owned(&KindLabels { kind: kind.clone() });
            let completed = metrics.finished.get_or_create_owned(&AttemptLabels {
                kind: kind.clone(),
                outcome: "completed",
            });
            let cost = metrics
                .cost
                .get_or_create_owned(&KindLabels { kind: kind.clone() });
            Some((
                kind,
                Arc::new(ServedKind {
                    handler,
                    duration,
                    completed,
                    cost,
                    tally: Mutex::default(),
                }),
            ))
        };
        let names = kinds.names();
        Self {
            kinds: names.iter().cloned().filter_map(one).collect(),
            names,
        }
    }

    pub(super) fn get(&self, kind: &str) -> Option<&Arc<ServedKind>> {
        self.kinds.get(kind)
    }

    /// Returns the attempts of each kind that ended since the last call.
    pub(super) fn take_costs(&self) -> Vec<EndedAttempts> {
        let take = |(kind, of_run): (&String, &Arc<ServedKind>)| {
            let (attempts, tokens) = std::mem::take(&mut *of_run.tally.lock());
            (attempts > 0).then(|| EndedAttempts {
                kind: kind.clone(),
                attempts,
                tokens,
            })
        };
        self.kinds.iter().filter_map(take).collect()
    }

    /// Returns the kinds, each with a flag that is true if every producer may enqueue it.
    pub(super) fn public(&self) -> Vec<(String, bool)> {
        self.kinds
            .iter()
            .map(|(kind, of_run)| (kind.clone(), of_run.handler.public()))
            .collect()
    }

    /// Returns the kinds in the order of their names.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }
}
