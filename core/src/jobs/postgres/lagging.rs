//! Reads that may be some seconds old: from the replica where it can be used, else from the primary.

use std::cell::Cell;
use std::time::Duration;

use super::Queue;
use crate::jobs::Error;
use crate::postgres::Replica;

/// The longest wait for an answer of the replica. The primary has the rest of a request's time.
const REPLICA_TIMEOUT: Duration = Duration::from_secs(3);

tokio::task_local! {
    static OLDEST: Cell<Option<Duration>>;
}

/// An error of a read that can be made on two servers.
pub trait LaggingError {
    /// Returns true for a refusal of the caller's own input, which any server would repeat.
    fn is_refusal(&self) -> bool;
}

impl LaggingError for Error {
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}

/// Returns the result of `work`, and the greatest lag of the replica among its reads; `None` if it
/// read from the primary alone.
pub async fn with_lag<T>(work: impl Future<Output = T>) -> (T, Option<Duration>) {
    let scoped = OLDEST.scope(Cell::new(None), async {
        let done = work.await;
        (done, OLDEST.with(Cell::get))
    });
    scoped.await
}

impl Queue {
    /// Sets the replica for reads that may be some seconds old.
    pub fn with_replica(self, replica: Option<Replica>) -> Self {
        Self { replica, ..self }
    }

    /// Returns the replica for reads that may be some seconds old.
    pub fn replica(&self) -> Option<&Replica> {
        self.replica.as_ref()
    }

    /// Makes a read that may be some seconds old: on the replica while it can be reached and does
    /// not lag too much, else on the primary. If the replica fails, the primary repeats the read.
    ///
    /// `read` gets a queue for this read only. It must not write, lock rows or listen.
    pub async fn read_lagging<T, E, F>(&self, read: impl Fn(Self) -> F) -> Result<T, E>
    where
        E: LaggingError,
        F: Future<Output = Result<T, E>>,
    {
        let primary = Self {
            replica: None,
            ..self.clone()
        };
        let Some(replica) = &self.replica else {
            return read(primary).await;
        };
        if let Some(lag) = replica.usable() {
            let there = Self {
                pool: replica.db().clone(),
                sessions: None,
                ..primary.clone()
            };
            match tokio::time::timeout(REPLICA_TIMEOUT, read(there)).await {
                Ok(Err(error)) if !error.is_refusal() => {}
                Ok(answer) => {
                    replica.count(true);
                    let note = |oldest: &Cell<Option<Duration>>| {
                        oldest.set(oldest.get().max(Some(lag)));
                    };
                    // Nobody asks for the lag outside of `with_lag`.
                    let _ = OLDEST.try_with(note);
                    return answer;
                }
                Err(_) => {}
            }
            // So that the next reads do not wait for a replica that is lost.
            replica.measure().await;
        }
        replica.count(false);
        read(primary).await
    }
}
