//! The service that hands jobs to workers in other programs.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::kinds::tuning;
use crate::config::Settings;
use crate::jobs::{Kinds, Queue};
use crate::runner::{Brokers, Config, WorkerMetrics};
use crate::throttle::Store;

/// Builds the service, with the settings of the kinds that other programs run.
pub(super) fn brokers(
    settings: &Settings,
    config: Config,
    (queue, throttles): (&Queue, &Arc<dyn Store>),
    metrics: &WorkerMetrics,
    own: &Kinds,
    cancel: &CancellationToken,
) -> Arc<Brokers> {
    let tunings = settings
        .kinds
        .iter()
        .map(|(kind, set)| (kind.clone(), tuning(set)));
    Brokers::new(
        config,
        (queue.clone(), throttles.clone()),
        metrics.clone(),
        tunings.collect(),
        own.names(),
        cancel.child_token(),
    )
}
