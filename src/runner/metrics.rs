//! Metrics of the runner. Labels are kinds and outcomes: both are few and named by developers, not
//! by users. Those of throttles are bounded.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::throttle_metrics::ThrottleMetrics;

/// Kind and outcome of an attempt.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct AttemptLabels {
    /// The job's kind.
    pub kind: String,
    /// The outcome of the attempt, such as `completed`.
    pub outcome: &'static str,
}

/// A job's kind.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct KindLabels {
    /// The job's kind.
    pub kind: String,
}

/// The runner's metrics. Cheap to clone.
#[derive(Clone)]
pub struct WorkerMetrics {
    /// Attempts that ended, by kind and outcome.
    pub finished: Family<AttemptLabels, Counter>,
    /// Durations of attempts, by kind, in seconds.
    pub duration: Family<KindLabels, Histogram>,
    /// Costs of attempts, by kind, in tokens.
    pub cost: Family<KindLabels, Histogram>,
    /// Attempts by throttle.
    pub by_throttle: ThrottleMetrics,
    /// Jobs that reached this process and that it could not run, by kind.
    pub not_served: Family<KindLabels, Counter>,
    /// Number of differences in what the live workers run.
    pub differences: Gauge,
    /// Jobs claimed.
    pub claimed: Counter,
    /// Messages that waited for a tenant's limits and were admitted.
    pub admitted: Counter,
    /// Answers that came after the lease was lost and were refused.
    pub fenced: Counter,
    /// Jobs given back to their lanes because their worker died.
    pub rescued: Counter,
    /// Workers found dead.
    pub workers_lost: Counter,
    /// Jobs running in this process.
    pub running: Gauge,
    /// Jobs that this process may run at once.
    pub permits: Gauge,
}

impl WorkerMetrics {
    /// Creates the metrics and registers them under the prefix of `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            finished: Family::default(),
            duration: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.001, 4.0, 10))
            }),
            cost: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.25, 4.0, 10))
            }),
            by_throttle: ThrottleMetrics::register(registry),
            not_served: Family::default(),
            differences: Gauge::default(),
            claimed: Counter::default(),
            admitted: Counter::default(),
            fenced: Counter::default(),
            rescued: Counter::default(),
            workers_lost: Counter::default(),
            running: Gauge::default(),
            permits: Gauge::default(),
        };
        registry.register(
            "flyball_jobs_finished",
            "Attempts that ended, by kind and outcome",
            metrics.finished.clone(),
        );
        registry.register_with_unit(
            "flyball_job_duration",
            "Duration of attempts, by kind",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        registry.register(
            "flyball_job_cost_tokens",
            "Cost of attempts, by kind",
            metrics.cost.clone(),
        );
        registry.register(
            "flyball_jobs_not_served",
            "Jobs that this process received but cannot run, by kind; they wait for another \
             process",
            metrics.not_served.clone(),
        );
        registry.register(
            "flyball_worker_differences",
            "Differences between the live workers in what they can run",
            metrics.differences.clone(),
        );
        registry.register(
            "flyball_jobs_claimed",
            "Jobs claimed by this process",
            metrics.claimed.clone(),
        );
        registry.register(
            "flyball_messages_admitted",
            "Messages that waited for the limits of a tenant and that this process admitted",
            metrics.admitted.clone(),
        );
        registry.register(
            "flyball_jobs_fenced",
            "Late results rejected because the job had gone to another worker",
            metrics.fenced.clone(),
        );
        registry.register(
            "flyball_jobs_rescued",
            "Jobs returned because their worker died",
            metrics.rescued.clone(),
        );
        registry.register(
            "flyball_workers_lost",
            "Workers found dead by this process",
            metrics.workers_lost.clone(),
        );
        registry.register(
            "flyball_worker_running_jobs",
            "Jobs running in this process",
            metrics.running.clone(),
        );
        registry.register(
            "flyball_worker_permits",
            "Jobs that this process may run at once",
            metrics.permits.clone(),
        );
        metrics
    }
}
