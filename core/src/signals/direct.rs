//! Direct readings, past Prometheus: from a page or a database, shared by callers that ask at the
//! same moment.

use tokio::sync::Mutex;

use super::elasticsearch::ClusterStats;
#[cfg(feature = "mongodb")]
use super::mongodb::ServerStatus;
use super::postgres::SignalDatabase;
use super::{Error, HttpProbe, Reading};

/// Greatest age at which a reading is reused for the next caller, in seconds. It is below the
/// quarter of a second after which the breaker confirms an alarm, so that no reading confirms
/// itself.
const GOOD_FOR_S: f64 = 0.2;

/// The target of a direct reading.
#[derive(Debug)]
pub enum Target {
    /// A number on a page.
    Page(HttpProbe),
    /// A database, and a statement that returns one number.
    Row(SignalDatabase, String),
    /// A cluster of Elasticsearch or OpenSearch.
    Cluster(ClusterStats),
    /// A server of MongoDB.
    #[cfg(feature = "mongodb")]
    Mongodb(ServerStatus),
}

/// Reads one target and caches the result.
#[derive(Debug)]
pub struct Direct {
    target: Target,
    newest: Mutex<Option<(f64, Result<Reading, Error>)>>,
}

impl Direct {
    /// Creates a reader with an empty cache.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            newest: Mutex::default(),
        }
    }

    /// Returns the reading at `now`, in unix seconds of the caller's clock.
    ///
    /// The governor's two paths read at the same time; the second one gets the first one's result.
    pub async fn read(&self, now: f64) -> Result<Reading, Error> {
        let mut newest = self.newest.lock().await;
        if let Some((at, seen)) = &*newest
            && (now - at).abs() < GOOD_FOR_S
        {
            return seen.clone();
        }
        let seen = match &self.target {
            Target::Page(probe) => probe.read(now).await,
            Target::Row(database, statement) => database.read(statement, now).await,
            Target::Cluster(stats) => stats.read(now).await,
            #[cfg(feature = "mongodb")]
            Target::Mongodb(status) => status.read(now).await,
        };
        *newest = Some((now, seen.clone()));
        seen
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn callers_of_one_moment_share_a_reading_and_a_confirmation_gets_its_own() {
        let requested = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&requested);
        let page = axum::routing::get(move || {
            let n = count.fetch_add(1, Ordering::SeqCst);
            async move { format!("{{\"n\": {n}}}") }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let app = axum::Router::new().route("/", page);
        tokio::spawn(async move { axum::serve(listener, app).await });
        let direct = Direct::new(Target::Page(HttpProbe::json(&url, "/n").unwrap()));

        for (now, expected) in [(100.0, 0.0), (100.1, 0.0), (100.25, 1.0)] {
            assert_eq!(direct.read(now).await.unwrap().value, expected, "at {now}");
        }
        assert_eq!(requested.load(Ordering::SeqCst), 2);
    }
}
