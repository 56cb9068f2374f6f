//! The stores for the jobs of a test.

use std::sync::Arc;
use std::time::Duration;

use super::error::Error;
use super::memory::Memory;
use super::postgres::PostgresBackend;
use crate::jobs::{Checkpoints, Ending, Job, NewJob};

/// The store of a test's jobs, in memory or in Postgres.
pub(super) enum Backing {
    Memory(Memory),
    Postgres(PostgresBackend),
}

impl Backing {
    pub(super) async fn enqueue(&self, job: NewJob) -> Result<i64, Error> {
        match self {
            Self::Memory(memory) => memory.enqueue(job),
            Self::Postgres(postgres) => postgres.enqueue(job).await,
        }
    }

    /// Takes the due jobs, in the order of the queue.
    pub(super) async fn take_due(&self) -> Result<Vec<Job>, Error> {
        match self {
            Self::Memory(memory) => Ok(memory.take_due()),
            Self::Postgres(postgres) => postgres.take_due().await,
        }
    }

    pub(super) async fn finish(&self, job: &Job, ending: Ending) -> Result<(), Error> {
        match self {
            Self::Memory(memory) => {
                memory.finish(job, &ending);
                Ok(())
            }
            Self::Postgres(postgres) => postgres.finish(job, ending).await,
        }
    }

    /// Returns the waiting jobs of a kind: ready, scheduled or retryable.
    ///
    /// A unique key that equals `unique_key` is returned as text; any other may be a digest.
    pub(super) async fn waiting(
        &self,
        kind: &str,
        unique_key: Option<&str>,
    ) -> Result<Vec<NewJob>, Error> {
        match self {
            Self::Memory(memory) => Ok(memory.waiting(kind)),
            Self::Postgres(postgres) => postgres.waiting(kind, unique_key).await,
        }
    }

    pub(super) async fn advance(&self, by: Duration) -> Result<(), Error> {
        match self {
            Self::Memory(memory) => {
                memory.advance(by);
                Ok(())
            }
            Self::Postgres(postgres) => postgres.advance(by).await,
        }
    }

    /// Returns the time until the next job is due; `None` if none waits.
    pub(super) async fn next_due(&self) -> Result<Option<Duration>, Error> {
        match self {
            Self::Memory(memory) => Ok(memory.next_due()),
            Self::Postgres(postgres) => postgres.next_due().await,
        }
    }

    pub(super) fn checkpoints(&self) -> Arc<dyn Checkpoints> {
        match self {
            Self::Memory(memory) => memory.checkpoints(),
            Self::Postgres(postgres) => postgres.checkpoints(),
        }
    }
}
