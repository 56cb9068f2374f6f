//! Workers whose claims fail, while their heartbeats get through.

use sqlx::Row;

use super::Queue;
use crate::jobs::Error;
use crate::postgres::storable;

/// The most characters of an error that are kept.
const ERROR_CHARS: usize = 500;

/// A live worker that cannot claim jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimFailure {
    /// The worker.
    pub worker_id: i32,
    /// Its name, for people.
    pub worker: String,
    /// The error of its last claim.
    pub error: String,
}

pub(super) const NOTE: &str = "update flyball.worker set claims_failed_at = clock_timestamp(), claims_error = $2 where id = $1";

// A worker notes it anew every few seconds while its claims fail.
pub(super) const CURRENT: &str = "
select id, name, coalesce(claims_error, '') as error
from flyball.worker
where stopped_at is null and heartbeat_at + ttl >= clock_timestamp() and claims_failed_at > clock_timestamp() - interval '30 seconds'
order by id
limit 1000";

impl Queue {
    /// Records that the claims of a worker have failed for some time, and why.
    pub async fn note_claim_failure(&self, worker_id: i32, error: &str) -> Result<(), Error> {
        sqlx::query(NOTE)
            .bind(worker_id)
            .bind(storable(error, ERROR_CHARS))
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Returns the live workers whose claims fail now.
    pub async fn claim_failures(&self) -> Result<Vec<ClaimFailure>, Error> {
        let rows = sqlx::query(CURRENT).fetch_all(&self.pool).await?;
        let failures = rows.iter().map(|row| ClaimFailure {
            worker_id: row.get("id"),
            worker: row.get("name"),
            error: row.get("error"),
        });
        Ok(failures.collect())
    }
}
