//! The queue store in Postgres: one statement per function, all SQL in constants.

use sqlx::PgPool;

use super::{CancelAnswer, Depth, Detail, Enqueued, Error, Failure, Filter, NewJob, RetryAnswer, Summary};

/// The queue: a pool of connections and the statements that run on it.
#[derive(Clone)]
pub struct Queue {
    /// The connections.
    pub pool: PgPool,
}

#[expect(unused_variables, reason = "bodies follow in the next commits")]
impl Queue {
    /// Enqueues all jobs or none, in their order.
    pub async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>, Error> {
        todo!()
    }

    /// One job with everything that is known about it.
    pub async fn get(&self, id: i64) -> Result<Option<Detail>, Error> {
        todo!()
    }

    /// Jobs by filter, newest first.
    pub async fn list(&self, filter: &Filter) -> Result<Vec<Summary>, Error> {
        todo!()
    }

    /// Cancels a waiting job at once, asks a running one to stop.
    pub async fn cancel(&self, id: i64) -> Result<CancelAnswer, Error> {
        todo!()
    }

    /// Makes a dead, retryable or scheduled job ready now.
    pub async fn retry(&self, id: i64) -> Result<RetryAnswer, Error> {
        todo!()
    }

    /// Depth of every throttle that has jobs; counting is bounded, see the implementation.
    pub async fn depths(&self) -> Result<Vec<Depth>, Error> {
        todo!()
    }

    /// The last failed attempts, newest first.
    pub async fn failures(&self, limit: i64) -> Result<Vec<Failure>, Error> {
        todo!()
    }
}
