//! Attempts by throttle: how many ended how, and how long they took. The number of throttles with a
//! their own series is bounded, because a program may create thousands of throttles.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// The most throttles with their own series in one process, first come first served.
const THROTTLES_MAX: usize = 200;

/// The label of the throttles beyond them.
const OTHER: &str = "other";

/// Throttle and outcome of an attempt.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ThrottleOutcome {
    throttle: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfThrottle {
    throttle: String,
}

/// The series of one throttle.
struct ThrottleSeries {
    name: String,
    duration: Histogram,
    completed: Counter,
}

/// The metrics of attempts by throttle. Cheap to clone.
#[derive(Clone)]
pub struct ThrottleMetrics {
    attempts: Family<ThrottleOutcome, Counter>,
    duration: Family<OfThrottle, Histogram>,
    /// The series in use, so that an attempt builds no labels.
    known: Arc<RwLock<HashMap<String, Arc<ThrottleSeries>>>>,
}

impl ThrottleMetrics {
    /// Creates the metrics and registers them.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            attempts: Family::default(),
            duration: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.001, 4.0, 10))
            }),
            known: Arc::default(),
        };
        registry.register(
            "flyball_job_attempts",
            "Attempts of the throttle's jobs that ended in this process, by outcome",
            metrics.attempts.clone(),
        );
        registry.register_with_unit(
            "flyball_job_attempt_duration",
            "Duration of attempts of the throttle's jobs",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        metrics
    }

    /// Records an attempt that ended after `took_s` seconds.
    pub(super) fn ended(&self, throttle: &str, outcome: &'static str, took_s: f64) {
        let series = self.series(throttle);
        series.duration.observe(took_s);
        if outcome == "completed" {
            series.completed.inc();
            return;
        }
        self.attempts
            .get_or_create(&ThrottleOutcome {
                throttle: series.name.clone(),
                outcome,
            })
            .inc();
    }

    fn series(&self, throttle: &str) -> Arc<ThrottleSeries> {
        if let Some(series) = self.known.read().get(throttle) {
            return series.clone();
        }
        let mut known = self.known.write();
        let name = if known.len() < THROTTLES_MAX || known.contains_key(throttle) {
            throttle
        } else {
            OTHER
        };
        let series = known.entry(name.to_owned()).or_insert_with(|| {
            Arc::new(ThrottleSeries {
                duration: self.duration.get_or_create_owned(&OfThrottle {
                    throttle: name.to_owned(),
                }),
                completed: self.attempts.get_or_create_owned(&ThrottleOutcome {
                    throttle: name.to_owned(),
                    outcome: "completed",
                }),
                name: name.to_owned(),
            })
        });
        series.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttles_beyond_the_bound_share_one_series() {
        let mut registry = Registry::default();
        let metrics = ThrottleMetrics::register(&mut registry);
        for n in 0..THROTTLES_MAX + 50 {
            metrics.ended(&format!("t{n}"), "completed", 0.5);
        }
        metrics.ended("t0", "failed", 2.0);
        metrics.ended("t249", "throttled", 0.1);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();

        for line in [
            r#"flyball_job_attempts_total{throttle="t0",outcome="completed"} 1"#,
            r#"flyball_job_attempts_total{throttle="t0",outcome="failed"} 1"#,
            r#"flyball_job_attempts_total{throttle="other",outcome="completed"} 50"#,
            r#"flyball_job_attempts_total{throttle="other",outcome="throttled"} 1"#,
            r#"flyball_job_attempt_duration_seconds_count{throttle="t0"} 2"#,
            r#"flyball_job_attempt_duration_seconds_count{throttle="other"} 51"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert_eq!(metrics.known.read().len(), THROTTLES_MAX + 1);
    }
}
