//! Enqueueing from Rust and HTTP goes through the SQL front door, so that there is one law for all.

use sqlx::Row;
use sqlx::types::Json;

use super::Queue;
use crate::jobs::{Enqueued, Error, NewJob};

pub(super) const ENQUEUE: &str = "select job_id, duplicate from flyball.enqueue_many($1)";

impl Queue {
    /// Enqueues all jobs or none; answers one entry per job, in order.
    pub async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>, Error> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let rows = sqlx::query(ENQUEUE).bind(Json(jobs)).fetch_all(&self.pool).await?;
        Ok(rows.iter().map(|row| Enqueued { id: row.get(0), duplicate: row.get(1) }).collect())
    }
}
