//! Metrics of the runner. Labels are kinds and outcomes: both are few and named by developers, not
//! by users. Those of throttles are bounded.

use std::collections::BTreeMap;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::remote::RemoteMetrics;
use super::throttle_metrics::ThrottleMetrics;
use crate::jobs::serving::UnservedJobs;

/// The most series of the metric; the jobs of further throttles and kinds are summed under
/// `other`.
const SERIES_MAX: usize = 100;
const OTHER: &str = "other";

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

/// Throttle and kind of jobs that no live worker serves; an empty kind stands for all kinds.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct UnservedLabels {
    /// The throttle of the jobs.
    pub throttle: String,
    /// Their kind.
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
    /// Jobs that this process claimed, does not serve and put back, by kind.
    pub not_served: Family<KindLabels, Counter>,
    /// Ready jobs that no live worker serves.
    pub unserved: Family<UnservedLabels, Gauge>,
    /// Number of differences in what the live workers run.
    pub differences: Gauge,
    /// Number of groups of jobs that have not ended.
    pub groups_open: Gauge,
    /// Number of groups whose callback could not be enqueued.
    pub callbacks_refused: Gauge,
    /// Number of calls of webhooks that could not be enqueued.
    pub calls_refused: Gauge,
    /// Number of schedules with a problem.
    pub schedules_with_problems: Gauge,
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
    /// Jobs of remote workers.
    pub remote: RemoteMetrics,
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
            unserved: Family::default(),
            differences: Gauge::default(),
            groups_open: Gauge::default(),
            callbacks_refused: Gauge::default(),
            calls_refused: Gauge::default(),
            schedules_with_problems: Gauge::default(),
            claimed: Counter::default(),
            admitted: Counter::default(),
            fenced: Counter::default(),
            rescued: Counter::default(),
            workers_lost: Counter::default(),
            running: Gauge::default(),
            permits: Gauge::default(),
            remote: RemoteMetrics::register(registry),
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
            "Jobs that this process claimed but does not serve, by kind; they were put back",
            metrics.not_served.clone(),
        );
        registry.register(
            "flyball_jobs_unserved",
            "Ready jobs that no live worker serves, by throttle and kind",
            metrics.unserved.clone(),
        );
        registry.register(
            "flyball_worker_differences",
            "Differences between the live workers in what they can run",
            metrics.differences.clone(),
        );
        registry.register(
            "flyball_groups_open",
            "Groups of jobs that have not ended, counted up to 10,000",
            metrics.groups_open.clone(),
        );
        registry.register(
            "flyball_group_callbacks_refused",
            "Groups whose callback could not be enqueued and is tried again",
            metrics.callbacks_refused.clone(),
        );
        registry.register(
            "flyball_webhook_calls_refused",
            "Calls of webhooks that could not be enqueued and are tried again",
            metrics.calls_refused.clone(),
        );
        registry.register(
            "flyball_schedules_with_problems",
            "Schedules that are not paused and have a problem, so that they make no jobs",
            metrics.schedules_with_problems.clone(),
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

    /// Shows the jobs that no live worker serves.
    pub(super) fn show_unserved(&self, unserved: &[UnservedJobs]) {
        self.unserved.clear();
        for (labels, jobs) in series(unserved) {
            self.unserved.get_or_create(&labels).set(jobs);
        }
    }
}

/// Returns the number of unserved jobs by throttle and kind, with a bounded number of series.
fn series(unserved: &[UnservedJobs]) -> BTreeMap<UnservedLabels, i64> {
    let mut series: BTreeMap<UnservedLabels, i64> = BTreeMap::new();
    for one in unserved {
        let labels = UnservedLabels {
            throttle: one.throttle.clone(),
            kind: one.kind.clone().unwrap_or_default(),
        };
        let labels = match series.len() < SERIES_MAX || series.contains_key(&labels) {
            true => labels,
            false => UnservedLabels {
                throttle: OTHER.to_owned(),
                kind: OTHER.to_owned(),
            },
        };
        *series.entry(labels).or_default() += one.jobs;
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_series_is_bounded_and_no_job_is_left_out() {
        let jobs = |n: usize| UnservedJobs {
            throttle: format!("t{n}"),
            kind: Some("mail".into()),
            needs: Vec::new(),
            jobs: 2,
            since: None,
            remedy: String::new(),
        };
        let unserved: Vec<UnservedJobs> = (0..150).map(jobs).collect();

        let series = series(&unserved);

        assert_eq!(series.len(), SERIES_MAX + 1);
        assert_eq!(series.values().sum::<i64>(), 300);
    }
}
