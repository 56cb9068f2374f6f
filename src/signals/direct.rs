//! Direct readings, past Prometheus: from a page or a database, at most once a second for all
//! callers.

use tokio::sync::Mutex;

use super::postgres::Database;
use super::{Error, Probe, Reading};

/// Greatest age at which a reading is reused for the next caller, in seconds.
const GOOD_FOR_S: f64 = 0.9;

/// The target of a direct reading.
#[derive(Clone, Debug)]
pub enum Target {
    /// A number on a page.
    Page(Probe),
    /// A database, and a statement that returns one number.
    Row(Database, String),
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
        };
        *newest = Some((now, seen.clone()));
        seen
    }
}
