//! Metrics of the jobs that are handed to remote workers.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The metrics. Cheap to clone.
#[derive(Clone, Default)]
pub struct RemoteMetrics {
    /// Jobs that remote workers hold and that this process counts.
    pub jobs: Gauge,
    /// Claims that wait for jobs in this process.
    pub waiting: Gauge,
    /// Jobs that this process handed to remote workers.
    pub handed: Counter,
    /// Calls that this process refused because the lease was lost.
    pub lost: Counter,
}

impl RemoteMetrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "flyball_remote_jobs",
            "Jobs that remote workers hold and that this process counts",
            metrics.jobs.clone(),
        );
        registry.register(
            "flyball_remote_claims_waiting",
            "Claims of remote workers that wait for jobs in this process",
            metrics.waiting.clone(),
        );
        registry.register(
            "flyball_remote_jobs_handed",
            "Jobs that this process handed to remote workers",
            metrics.handed.clone(),
        );
        registry.register(
            "flyball_remote_calls_fenced",
            "Calls of remote workers that this process refused because the lease was lost",
            metrics.lost.clone(),
        );
        metrics
    }
}
