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
        if let Some(warnings) = silent_nodes(&stats) {
            return Err(Error::Partial {
                query: self.server.redacted_url().to_owned(),
                warnings,
            });
        }
        let nodes = self.of_nodes(&stats);
        let value = match self.figure {
            // A counter that no node reports is not one that stands still.
            ClusterFigure::Rejected if nodes.is_empty() => None,
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

/// Returns the number of nodes that did not answer the one that was asked, as a warning: the
/// busiest may be among them. `None` if all did, or if the server is too old to say so.
fn silent_nodes(stats: &Value) -> Option<String> {
    let count = |field: &str| stats["_nodes"][field].as_u64();
    let failed = count("failed").filter(|failed| *failed > 0)?;
    let total = count("total").unwrap_or(failed);
    Some(format!("{failed} of {total} nodes did not answer"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::signals::Missing;

    /// Returns the figure of a cluster that gives this answer.
    async fn cluster(page: Value, figure: ClusterFigure) -> ClusterStats {
        let app = axum::Router::new().route(
            "/_nodes/stats/os,jvm,thread_pool",
            axum::routing::get(move || async move { page.to_string() }),
        );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        ClusterStats::new(&Access::open(&url), figure).unwrap()
    }

    #[tokio::test]
    async fn rejections_that_no_node_counts_are_no_reading() {
        let page = json!({"nodes": {"a": {"jvm": {"mem": {"heap_used_percent": 20}}}}});
        let stats = cluster(page, ClusterFigure::Rejected).await;
        for now in [100.0, 105.0] {
            let error = stats.read(now).await.unwrap_err();
            assert_eq!(error, Error::Missing(Missing::Absent), "at {now}");
        }
    }

    #[tokio::test]
    async fn the_worst_of_the_nodes_that_answer_is_no_reading_while_others_are_silent() {
        let answer = |nodes: Value| async move {
            let page = json!({ "_nodes": nodes, "nodes": {
                "a": {"jvm": {"mem": {"heap_used_percent": 20}}},
                "b": {"jvm": {"mem": {"heap_used_percent": 40}}},
            }});
            cluster(page, ClusterFigure::Heap).await.read(100.0).await
        };
        let whole = json!({"total": 2, "successful": 2, "failed": 0});
        for nodes in [whole, Value::Null] {
            assert_eq!(answer(nodes).await.unwrap().value, 0.4);
        }
        let part = json!({"total": 3, "successful": 2, "failed": 1});
        let error = answer(part).await.unwrap_err().to_string();
        assert!(
            error.ends_with("a partial answer: 1 of 3 nodes did not answer"),
            "{error}"
        );
    }
}
