//! Reads the load of a cluster of Elasticsearch or OpenSearch from its nodes' statistics.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde_json::Value;

use super::figure::ClusterFigure;
use super::increase::Increase;
use super::server::{Access, SignalServer};
use super::{Error, Reading};

/// The longest answer that is read, in bytes.
const STATS_MAX: usize = 16 << 20;

/// The statistics of one cluster's nodes, read for one figure.
#[derive(Debug)]
pub struct ClusterStats {
    server: SignalServer,
    figure: ClusterFigure,
    rejected: Mutex<Increase>,
}

impl ClusterStats {
    /// Creates a reader of the cluster at the address.
    pub fn new(access: &Access, figure: ClusterFigure) -> Result<Self, Error> {
        let url = format!(
            "{}/_nodes/stats/os,jvm,thread_pool",
            access.url.trim_end_matches('/')
        );
        let access = Access {
            url,
            ..access.clone()
        };
        Ok(Self {
            server: SignalServer::new(&access, super::probe::TIMEOUT)?,
            figure,
            rejected: Mutex::default(),
        })
    }

    /// Reads the figure at `now`.
    pub async fn read(&self, now: f64) -> Result<Reading, Error> {
        let body = self.server.get(STATS_MAX).await?;
        let stats: Value = serde_json::from_slice(&body).map_err(|_| Error::Garbled {
            url: self.server.redacted_url().to_owned(),
            reason: "it is not JSON".to_owned(),
        })?;
        let nodes = self.of_nodes(&stats);
        let value = match self.figure {
            ClusterFigure::Rejected => self.rejected.lock().rate(now, nodes),
            _ => nodes.into_values().reduce(f64::max),
        };
        Ok(Reading::judge(value, now, now, f64::INFINITY)?)
    }

    fn of_nodes(&self, stats: &Value) -> BTreeMap<String, f64> {
        let nodes = stats["nodes"].as_object();
        nodes
            .into_iter()
            .flatten()
            .filter_map(|(id, node)| Some((id.clone(), self.figure.of(node)?)))
            .collect()
    }
}
