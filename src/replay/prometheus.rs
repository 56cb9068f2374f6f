//! Recordings from Prometheus: every load of a policy, and the rate that Flyball let through.

use super::record::Recording;
use super::report::replayed;
use crate::governor::{Policy, Sources};
use crate::signals::{Error, Missing, Prometheus};

/// A series that could not be read, and the reason.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {error}")]
pub struct MissingData {
    /// `rate`, or the name of a signal.
    pub what: String,
    /// The error of the query.
    #[source]
    pub error: Error,
}

/// Returns the query for the rate of a throttle, from Flyball's own metrics.
pub fn rate_query(throttle: &str) -> String {
    format!("max by (throttle) (flyball_throttle_achieved_rps{{throttle=\"{throttle}\"}})")
}

/// Reads the loads of `policy`, and the rate by `rate_query`, between two times (unix seconds), in
/// steps of `step_s` if they are not raw samples. Series without samples are left to
/// [`Recording::check`] to report.
pub async fn record(
    sources: &Sources,
    policy: &Policy,
    rate_query: &str,
    (from, to): (f64, f64),
    step_s: f64,
) -> Result<Recording, MissingData> {
    let read = async |what: &str, prometheus: &Prometheus, query: &str| match prometheus
        .range(query, from, to, step_s)
        .await
    {
        Err(Error::Missing(Missing::Absent)) => Ok(Vec::new()),
        other => other.map_err(|error| MissingData {
            what: what.to_owned(),
            error,
        }),
    };
    let mut record = Recording {
        rate: read("rate", sources.usual(), rate_query).await?,
        ..Recording::default()
    };
    for signal in replayed(policy) {
        let mut readings = read(&signal.name, sources.prometheus(signal), &signal.query).await?;
        readings
            .iter_mut()
            .for_each(|reading| reading.value *= signal.scale);
        record.signals.insert(signal.name.clone(), readings);
    }
    Ok(record)
}
