//! Changes of the fields of one waiting job.

use serde_json::Value;
use sqlx::types::Json;

use super::Queue;
use super::requeue::moved;
use super::secrets::refuse_plain;
use crate::jobs::{Attribution, Error, JobUpdate, MoveAnswer, NewJob};

pub(super) const UPDATE: &str = "
select flyball.update($1, $2, $3, $4, $5, $6, $7, flyball.span($8), $9, $10, clear => $11, by => $12, why => $13,
    tenant => $14)";

pub(super) const KIND_AND_TENANT: &str =
    "select kind, tenant from flyball.job where id = $1 limit 1";

impl Queue {
    /// Changes the fields of a waiting job that are given. It keeps its number, its time, its
    /// attempts and its unique key; a worker runs it as it was, and the change is refused, or as it
    /// is now.
    ///
    /// With several faults the message of the refusal has a line for each.
    pub async fn update(
        &self,
        id: i64,
        changes: &JobUpdate,
        signed: &Attribution,
    ) -> Result<MoveAnswer, Error> {
        let args = match &changes.args {
            None => None,
            Some(args) => match self.encrypted_for(id, args).await? {
                None => return Ok(MoveAnswer::NotFound),
                args => args,
            },
        };
        let answer: String = sqlx::query_scalar(UPDATE)
            .bind(id)
            .bind(args.map(Json))
            .bind(&changes.throttle)
            .bind(&changes.key)
            .bind(changes.priority)
            .bind(changes.max_attempts)
            .bind(changes.cost)
            .bind(changes.timeout_s)
            .bind(&changes.tags)
            .bind(changes.retry.map(Json))
            .bind(&changes.clear)
            .bind(signed.line())
            .bind(&signed.why)
            .bind(&signed.identity.tenant)
            .fetch_one(&self.pool)
            .await?;
        moved(&answer, "updated")
    }

    /// Returns new arguments of a job with their secret values encrypted, as if it were enqueued
    /// with them; `None` if there is no such job.
    async fn encrypted_for(&self, id: i64, args: &Value) -> Result<Option<Value>, Error> {
        let found: Option<(String, String)> = sqlx::query_as(KIND_AND_TENANT)
            .bind(id)
            .fetch_optional(&self.pool)
            .await?;
        let Some((kind, tenant)) = found else {
            return Ok(None);
        };
        let job = [NewJob::new(kind, args.clone())];
        let jobs = self.encrypted(&job, &tenant)?;
        refuse_plain(&jobs)?;
        Ok(jobs.first().map(|job| job.args.clone()))
    }
}
