//! Checkpoints of long jobs, guarded by the fence of their lease.

use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::Row;
use sqlx::postgres::PgRow;
use tokio::time::timeout;

use super::error::no_answer;
use crate::jobs::{Checkpoint, CheckpointError, Checkpoints};
use crate::postgres::Db;

/// Longest wait for an answer. A job that waited for ever for one, on a silently lost connection
/// for example, would seem to run, because its worker lives.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

pub(super) const LOAD: &str =
    "select cursor, done, total, note from flyball.checkpoint where job_id = $1";

// The lease is checked in the same statement, so that a worker whose job was given to another
// writes nothing.
pub(super) const STORE: &str = "
insert into flyball.checkpoint (job_id, cursor, done, total, note)
select l.job_id, $3, $4, $5, $6
from flyball.lease l
where l.job_id = $1 and l.fence = $2
on conflict (job_id) do update
    set cursor = excluded.cursor, done = excluded.done, total = excluded.total, note = excluded.note, updated_at = clock_timestamp()";

/// A store of checkpoints in Postgres.
#[derive(Clone)]
pub struct PgCheckpoints {
    pool: Db,
}

impl PgCheckpoints {
    /// Returns a store of checkpoints on an existing pool.
    pub fn new(pool: impl Into<Db>) -> Self {
        Self { pool: pool.into() }
    }
}

impl Checkpoints for PgCheckpoints {
    fn load(&self, job_id: i64) -> BoxFuture<'_, Result<Option<Checkpoint>, CheckpointError>> {
        Box::pin(async move {
            let load = sqlx::query(LOAD).bind(job_id).fetch_optional(&self.pool);
            let row = bounded(job_id, load).await?;
            row.as_ref()
                .map(checkpoint)
                .transpose()
                .map_err(|error| lost(job_id, &error))
        })
    }

    fn store<'a>(
        &'a self,
        job_id: i64,
        fence: i64,
        at: &'a Checkpoint,
    ) -> BoxFuture<'a, Result<(), CheckpointError>> {
        Box::pin(async move {
            let store = sqlx::query(STORE)
                .bind(job_id)
                .bind(fence)
                .bind(&at.cursor)
                .bind(at.done)
                .bind(at.total)
                // Postgres cannot store NUL, and the note is text for people. The cursor is left as
                // it is, because another cursor would be another place.
                .bind(at.note.replace('\0', ""))
                .execute(&self.pool);
            let done = bounded(job_id, store).await?;
            if done.rows_affected() == 0 {
                Err(CheckpointError::LeaseLost(job_id))
            } else {
                Ok(())
            }
        })
    }
}

async fn bounded<T>(
    job: i64,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, CheckpointError> {
    match timeout(ANSWER_WITHIN, statement).await {
        Ok(answer) => answer.map_err(|error| lost(job, &error)),
        Err(_) => Err(CheckpointError::Store {
            job,
            reason: no_answer(ANSWER_WITHIN),
        }),
    }
}

fn checkpoint(row: &PgRow) -> Result<Checkpoint, sqlx::Error> {
    Ok(Checkpoint {
        cursor: row.try_get("cursor")?,
        done: row.try_get("done")?,
        total: row.try_get("total")?,
        note: row.try_get("note")?,
    })
}

fn lost(job: i64, error: &sqlx::Error) -> CheckpointError {
    CheckpointError::Store {
        job,
        reason: error.to_string(),
    }
}
