//! The replica for lists: opened by the settings, looked at each second, measured.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::{self, Settings};
use crate::jobs::Queue;
use crate::postgres::Replica;
use crate::service::{LoopOptions, TaskSupervisor, periodic};

/// The time between two checks of the replica, by which its lag may be wrong.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Opens the replica that the settings name, with at most `connections`.
pub(crate) fn open(settings: &Settings, connections: u32) -> anyhow::Result<Option<Replica>> {
    let Some(access) = settings.replica() else {
        return Ok(None);
    };
    let lag_max = Duration::from_secs_f64(settings.database_read_lag_max_s);
    // The error of the driver may show the URL, which may hold a password.
    let opened = Replica::new(&access, connections, lag_max).map_err(|_| {
        config::Error::at(
            "DATABASE_READ_URL (setting database_read_url)",
            "must be a URL like postgres://user@replica/database, or empty for none",
        )
    });
    Ok(Some(opened?))
}

/// Looks at the replica of a queue at once and then each second, and adds its metrics.
pub(super) async fn start(
    queue: &Queue,
    vital: &TaskSupervisor,
    cancel: &CancellationToken,
    registry: &mut Registry,
) -> Option<JoinHandle<()>> {
    let replica = queue.replica()?.clone();
    replica.measure().await;
    registry.register_collector(Box::new(ReplicaMetrics(replica.clone())));
    let pace = LoopOptions {
        name: "replica",
        every: LOOK_INTERVAL,
        wake: None,
    };
    let look = periodic(pace, cancel.child_token(), move || {
        let replica = replica.clone();
        async move {
            replica.measure().await;
            anyhow::Ok(())
        }
    });
    Some(vital.spawn("replica", cancel.child_token(), look))
}

/// The metrics of the replica, read at each scrape, so that an unknown lag has no series.
#[derive(Debug)]
struct ReplicaMetrics(Replica);

impl Collector for ReplicaMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (state, reads) = (self.0.state(), self.0.reads());
        let used = i64::from(state.unused.is_none());
        let lag_s = state.lag.map(|lag| lag.as_secs_f64());
        let mut gauge = |name: &str, help: &str, value: f64| {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)
        };
        gauge(
            "flyball_replica_used",
            "1 while lists are read from the replica",
            used as f64,
        )?;
        if let Some(lag_s) = lag_s {
            let help = "Lag of the replica at the last check";
            gauge("flyball_replica_lag_seconds", help, lag_s)?;
        }
        let mut counts = encoder.encode_descriptor(
            "flyball_replica_reads",
            "Reads that the replica could answer, by the server that did",
            None,
            MetricType::Counter,
        )?;
        for (server, count) in [("replica", reads.replica), ("primary", reads.primary)] {
            ConstCounter::new(count).encode(counts.encode_family(&[("server", server)])?)?;
        }
        Ok(())
    }
}
