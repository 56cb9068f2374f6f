//! What is looked at directly, past Prometheus: a page or a database, at most once a second whoever asks.

use tokio::sync::Mutex;

use super::postgres::Database;
use super::{Error, Probe, Reading};

/// A look that is younger is good enough for the next who asks, in seconds.
const GOOD_FOR_S: f64 = 0.9;

/// A thing to look at.
#[derive(Clone, Debug)]
pub enum Target {
    /// A number on a page.
    Page(Probe),
    /// What a statement answers.
    Row(Database, String),
}

/// Looks at one thing.
#[derive(Debug)]
pub struct Direct {
    target: Target,
    newest: Mutex<Option<(f64, Result<Reading, Error>)>>,
}

impl Direct {
    /// Nothing has been seen yet.
    pub fn new(target: Target) -> Self {
        Self { target, newest: Mutex::default() }
    }

    /// The reading at `now`, in unix seconds of the caller's clock. The governor's two paths ask at the same time; the second one
    /// gets what the first one has seen.
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
