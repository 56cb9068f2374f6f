//! The global pause: a row that every worker reads.

use jiff_sqlx::Timestamp;
use sqlx::Row;

use super::Queue;
use crate::jobs::Error;
use crate::jobs::operate::{Attribution, Pause, QueueStatus};

pub(super) const PAUSE_ALL: &str = "select flyball.pause_all($1, $2)";

pub(super) const RESUME_ALL: &str = "select flyball.resume_all($1, $2)";

pub(super) const PAUSED: &str = "select since, by, why from flyball.pause";

pub(super) const STATUS: &str = "
    select exists (select from flyball.pause) as paused,
           pg_is_in_recovery() or current_setting('default_transaction_read_only') = 'on' as read_only";

impl Queue {
    /// Stops all claiming in all processes until [`Queue::resume_all`]; running jobs go on.
    ///
    /// Returns false if a pause was already in force, which stays unchanged.
    pub async fn pause_all(&self, signed: &Attribution) -> Result<bool, Error> {
        Ok(sqlx::query_scalar(PAUSE_ALL)
            .bind(&signed.why)
            .bind(signed.line())
            .fetch_one(&self.pool)
            .await?)
    }

    /// Ends the global pause; returns false if there was none.
    pub async fn resume_all(&self, signed: &Attribution) -> Result<bool, Error> {
        Ok(sqlx::query_scalar(RESUME_ALL)
            .bind(&signed.why)
            .bind(signed.line())
            .fetch_one(&self.pool)
            .await?)
    }

    /// Returns the global pause, if one is in force.
    pub async fn paused(&self) -> Result<Option<Pause>, Error> {
        let row = sqlx::query(PAUSED).fetch_optional(&self.pool).await?;
        Ok(row.map(|row| Pause {
            since: row.get::<Timestamp, _>("since").to_jiff(),
            by: row.get("by"),
            why: row.get("why"),
        }))
    }

    /// Reads whether everything is paused, and whether Postgres accepts writes.
    pub async fn status(&self) -> Result<QueueStatus, Error> {
        let row = sqlx::query(STATUS).fetch_one(&self.pool).await?;
        Ok(QueueStatus {
            is_paused: row.get("paused"),
            is_read_only: row.get("read_only"),
        })
    }
}
