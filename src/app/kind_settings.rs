//! The settings in the form that the runner and the handlers take.

use std::time::Duration;

use crate::config::{KindSettings, Settings};
use crate::jobs::Tuning;
use crate::jobs::postgres::Retention;
use crate::jobs::serving::Serves;
use crate::runner;

pub(super) fn tuning(set: &KindSettings) -> Tuning {
    // The settings have been validated, so every number of seconds is in range.
    let seconds = |seconds: Option<f64>| {
        seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    };
    Tuning {
        timeout: seconds(set.timeout_s),
        max_attempts: set.max_attempts,
        public: set.public,
        retry_base: seconds(set.retry_base_s),
        retry_factor: set.retry_factor,
        retry_max: seconds(set.retry_max_s),
    }
}

pub(super) fn worker_config(settings: &Settings) -> runner::Config {
    runner::Config {
        concurrency: settings.concurrency,
        ttl: Duration::from_secs_f64(settings.worker_ttl_s),
        grace: Duration::from_secs_f64(settings.grace_s),
        retention: Retention {
            days: settings.retention_days,
            dead_days: settings.dead_retention_days,
        },
        serves: Serves {
            throttles: settings.serve_throttles.clone(),
            kinds: settings.serve_kinds.clone(),
            pools: settings.serve_pools.clone(),
        },
        may_differ: settings.settings_may_differ,
        ..runner::Config::default()
    }
}
