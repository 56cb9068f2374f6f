//! Observations of the store and the throttle, four times a second, for the report.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::report::StoreSample;
use flyball::throttle::{self, Name, RateLimit};

/// The interval between two samples; the report needs at least two per second.
const STORE_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The samples so far, and the task that takes further ones until this is dropped.
pub(super) struct StoreWatch {
    seen: Arc<Mutex<Vec<StoreSample>>>,
    _looking: JoinSet<()>,
}

impl StoreWatch {
    /// Starts sampling; times are in seconds from now.
    pub(super) fn start(
        store: StoreClient,
        throttles: Arc<dyn throttle::Store>,
        throttle: Name,
    ) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut looking = JoinSet::new();
        let samples = seen.clone();
        looking.spawn(async move {
            let began = Instant::now();
            let mut look = interval(STORE_POLL_INTERVAL);
            look.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                look.tick().await;
                let Ok(now) = store.now().await else { continue };
                let rps = throttles
                    .status(&throttle)
                    .await
                    .ok()
                    .flatten()
                    .map(|status| status.effective_rps);
                let sample = StoreSample {
                    t_s: began.elapsed().as_secs_f64(),
                    load: now.load,
                    documents: now.documents,
                    rps: rps.map(RateLimit::number),
                };
                samples.lock().push(sample);
            }
        });
        Self {
            seen,
            _looking: looking,
        }
    }

    pub(super) fn samples(&self) -> Vec<StoreSample> {
        self.seen.lock().clone()
    }

    pub(super) fn last(&self) -> Option<StoreSample> {
        self.seen.lock().last().cloned()
    }
}

/// A client of the store.
#[derive(Clone)]
pub(super) struct StoreClient {
    client: reqwest::Client,
    url: String,
}

/// The current metrics of the store.
pub(super) struct StoreStatus {
    pub(super) load: f64,
    pub(super) documents: f64,
}

impl StoreClient {
    /// Creates a client of the store at a URL.
    pub(super) fn new(url: &str) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(10))
            .build()?;
        Ok(Self {
            client,
            url: url.to_owned(),
        })
    }

    /// Reads the store's load and the number of documents indexed since it started.
    pub(super) async fn now(&self) -> anyhow::Result<StoreStatus> {
        let page = self
            .client
            .get(format!("{}/metrics", self.url))
            .send()
            .await?
            .error_for_status()?
            .text()
            .await?;
        let read = |name: &str| -> anyhow::Result<f64> {
            let line = page
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            Ok(line
                .ok_or_else(|| anyhow::anyhow!("the search store does not expose {name}"))?
                .trim()
                .parse()?)
        };
        Ok(StoreStatus {
            load: read("search_store_load")?,
            documents: read("search_store_documents_total")?,
        })
    }

    /// Returns the number of documents in an index; 0 if it does not exist.
    pub(super) async fn count(&self, index: &str) -> anyhow::Result<u64> {
        let answer = self
            .client
            .get(format!("{}/{index}/_count", self.url))
            .send()
            .await?;
        if answer.status() == reqwest::StatusCode::NOT_FOUND {
            return Ok(0);
        }
        let answer: serde_json::Value = answer.error_for_status()?.json().await?;
        Ok(answer["count"].as_u64().unwrap_or(0))
    }

    /// Removes an index if it exists.
    pub(super) async fn remove(&self, index: &str) -> anyhow::Result<()> {
        self.client
            .delete(format!("{}/{index}", self.url))
            .send()
            .await?;
        Ok(())
    }
}
