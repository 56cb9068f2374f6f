//! Enqueueing of one job for a request that may be repeated.

use sqlx::Row;

use super::Queue;
use super::enqueue::{refuse_unstorable, rows, tenant_of, ticket};
use crate::jobs::{Error, NewJob, OnceAnswer};

pub(super) const ENQUEUE_ONCE: &str = "
select answer, job_id, duplicate, replaced, backlog
from flyball.enqueue_once($20, $21, $18, $19, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)";

impl Queue {
    /// Enqueues one job for the owner of unique keys and its module, as [`Queue::enqueue_for`]
    /// does, unless the request repeats one of the last day: `request` is the digest of the sender
    /// and its idempotency key, and `body` that of the body.
    pub async fn enqueue_once(
        &self,
        (owner, module): (&str, &str),
        job: &NewJob,
        (request, body): (&[u8], &[u8]),
    ) -> Result<OnceAnswer, Error> {
        let jobs = self.encrypted(std::slice::from_ref(job), tenant_of(owner))?;
        refuse_unstorable(&jobs)?;
        let _place = self.tenant_place(tenant_of(owner)).await;
        let row = rows(ENQUEUE_ONCE, &jobs)
            .bind(owner)
            .bind(module)
            .bind(request)
            .bind(body)
            .fetch_one(&self.pool)
            .await?;
        Ok(match row.try_get::<&str, _>("answer")? {
            "running" => OnceAnswer::Running,
            "conflict" => OnceAnswer::Conflict,
            "replayed" => OnceAnswer::Replayed(row.try_get("job_id")?),
            _ => OnceAnswer::Enqueued(ticket(&row)?),
        })
    }
}
