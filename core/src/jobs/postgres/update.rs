//! Changes of the fields of one waiting job.

use serde_json::Value;
use sqlx::types::Json;

use super::Queue;
use super::requeue::moved;
use crate::jobs::secret::has_secrets;
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
        let encrypted;
        let args = match &changes.args {
            Some(args) if has_secrets(args) => match self.encrypted_for(id, args).await? {
                None => return Ok(MoveAnswer::NotFound),
                Some(args) => {
                    encrypted = args;
                    Some(&encrypted)
                }
            },
            args => args.as_ref(),
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
        let Some((kind, tenant)) = self.kind_and_tenant(id).await? else {
            return Ok(None);
        };
        let job = NewJob::new(kind, args.clone()).encrypted_for(&self.keys, &tenant)?;
        Ok(Some(job.args))
    }

    /// Returns the kind of a job; with a tenant, only if the job belongs to it.
    pub async fn kind_of(&self, id: i64, tenant: Option<&str>) -> Result<Option<String>, Error> {
        let found = self.kind_and_tenant(id).await?;
        let own = found.filter(|(_, owner)| tenant.is_none_or(|tenant| tenant == owner));
        Ok(own.map(|(kind, _)| kind))
    }

    async fn kind_and_tenant(&self, id: i64) -> Result<Option<(String, String)>, Error> {
        let statement = sqlx::query_as(KIND_AND_TENANT).bind(id);
        Ok(statement.fetch_optional(&self.pool).await?)
    }
}
