//! Secret arguments: encrypted before they are stored, and what a worker needs to decrypt them.

use std::borrow::Cow;

use serde_json::Value;
use sqlx::types::Json;

use super::Queue;
use crate::input::Issue;
use crate::jobs::secret::{self, NONCE_BYTES, SecretKeys};
use crate::jobs::{Error, NewGroup, NewJob};

pub(super) const TENANT_OF: &str = "select tenant from flyball.job where id = $1 limit 1";

// Only the worker that holds the lease writes, and only arguments that came from SQL in plain.
pub(super) const STORE_ENCRYPTED_ARGS: &str = "
update flyball.job j set args = $2
where j.id = $1 and exists (select from flyball.lease l where l.job_id = $1 and l.fence = $3)";

// The encrypted values of schedules, of callbacks that wait, and of the first scheduled jobs: jobs
// that are not ready, and so are not counted among those that no worker serves.
pub(super) const KEYS_NEEDED: &str = r#"
with texts as (
    select 'schedule ' || name as place, args::text as args from flyball.cron where args::text like '%"$encrypted"%'
    union all
    select 'callback of group ' || id, callback::text from flyball.job_group
    where ended_at is null and callback::text like '%"$encrypted"%'
    union all
    select 'scheduled job ' || j.id, j.args::text
    from (select job_id from flyball.scheduled limit 10000) s
    cross join lateral (select id, args from flyball.job where id = s.job_id limit 1) j
    where j.args::text like '%"$encrypted"%'
)
select k.found[1] as key, min(t.place collate "C") as place, count(*) as uses
from texts t
cross join lateral regexp_matches(t.args, '"\$encrypted": "v1\.([0-9a-f]{8})\.', 'g') as k(found)
group by 1 order by 1 limit 100"#;

/// A key that encrypted arguments of jobs to come need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeededKey {
    /// The id of the key.
    pub id: String,
    /// One of the schedules, callbacks and jobs with such a value.
    pub example: String,
    /// The number of values.
    pub values: i64,
}

impl Queue {
    /// Returns the tenant of a job; `None` if there is no such job.
    pub async fn tenant_of(&self, job_id: i64) -> Result<Option<String>, Error> {
        Ok(sqlx::query_scalar(TENANT_OF)
            .bind(job_id)
            .fetch_optional(&self.pool)
            .await?)
    }

    /// Replaces the arguments of a job, whose lease has this fence, by the same with encrypted
    /// values.
    pub async fn store_encrypted_args(
        &self,
        job_id: i64,
        fence: i64,
        args: &Value,
    ) -> Result<(), Error> {
        sqlx::query(STORE_ENCRYPTED_ARGS)
            .bind(job_id)
            .bind(Json(args))
            .bind(fence)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Returns the keys that schedules, callbacks and scheduled jobs need; of the scheduled jobs,
    /// 10,000 are read.
    pub async fn needed_keys(&self) -> Result<Vec<NeededKey>, Error> {
        let rows: Vec<(String, String, i64)> =
            sqlx::query_as(KEYS_NEEDED).fetch_all(&self.pool).await?;
        let needed = |(id, example, values)| NeededKey {
            id,
            example,
            values,
        };
        Ok(rows.into_iter().map(needed).collect())
    }

    /// Returns the jobs with their secret values encrypted for a tenant.
    pub(super) fn encrypted<'a>(
        &self,
        jobs: &'a [NewJob],
        tenant: &str,
    ) -> Result<Cow<'a, [NewJob]>, Error> {
        if !jobs.iter().any(|job| secret::has_secrets(&job.args)) {
            return Ok(Cow::Borrowed(jobs));
        }
        let mut encrypted = jobs.to_vec();
        for (index, job) in encrypted.iter_mut().enumerate() {
            let index = (jobs.len() > 1).then_some(index);
            encrypt(&self.keys, job, tenant).map_err(|issue| refused(index, "", &issue))?;
        }
        Ok(Cow::Owned(encrypted))
    }

    /// Returns a group with the secret values of its jobs and its callback encrypted for a tenant.
    pub(super) fn encrypted_group<'a>(
        &self,
        group: &'a NewGroup,
        tenant: &str,
    ) -> Result<Cow<'a, NewGroup>, Error> {
        let mut all = group.jobs.iter().flatten().chain(&group.callback);
        if !all.any(|job| secret::has_secrets(&job.args)) {
            return Ok(Cow::Borrowed(group));
        }
        let group = group.clone().encrypted_for(&self.keys, tenant)?;
        Ok(Cow::Owned(group))
    }
}

impl NewGroup {
    /// Encrypts the values that are marked as secret in the jobs and in the callback, for
    /// [`Client`](super::Client), which has no keys.
    pub fn encrypted(self, keys: &SecretKeys) -> Result<Self, Error> {
        self.encrypted_for(keys, "")
    }

    /// Encrypts like [`NewGroup::encrypted`], for a group that will belong to a tenant.
    pub fn encrypted_for(mut self, keys: &SecretKeys, tenant: &str) -> Result<Self, Error> {
        for (index, job) in self.jobs.iter_mut().flatten().enumerate() {
            encrypt(keys, job, tenant).map_err(|issue| refused(Some(index), "", &issue))?;
        }
        if let Some(callback) = &mut self.callback {
            encrypt(keys, callback, tenant).map_err(|issue| refused(None, "callback.", &issue))?;
        }
        Ok(self)
    }
}

impl NewJob {
    /// Encrypts the values that are marked as secret, for [`Client`](super::Client), which has no
    /// keys. Fails, naming `args`, without a key or for a mark that is not acceptable.
    ///
    /// ```
    /// # use flyball_core as flyball;
    /// use flyball::jobs::{NewJob, SecretKeys};
    /// use serde_json::json;
    ///
    /// # fn main() -> Result<(), flyball::jobs::Error> {
    /// let keys = SecretKeys::parse("Vt0cI0bGE1BqTBJQtEpZ2xPd1m3VZCkNR2Y7Gqmpfzo=").unwrap();
    /// let job = NewJob::new("charge", json!({"card": {"$secret": "4111 1111"}})).encrypted(&keys)?;
    /// assert!(job.args["card"]["$encrypted"].is_string());
    /// # Ok(())
    /// # }
    /// ```
    pub fn encrypted(self, keys: &SecretKeys) -> Result<Self, Error> {
        self.encrypted_for(keys, "")
    }

    /// Encrypts like [`NewJob::encrypted`], for a job that will belong to a tenant.
    pub fn encrypted_for(mut self, keys: &SecretKeys, tenant: &str) -> Result<Self, Error> {
        encrypt(keys, &mut self, tenant).map_err(|issue| refused(None, "", &issue))?;
        Ok(self)
    }
}

/// Encrypts the secret values of a job for a tenant.
pub(crate) fn encrypt(keys: &SecretKeys, job: &mut NewJob, tenant: &str) -> Result<(), Issue> {
    keys.encrypt(&job.kind, tenant, &mut job.args, nonce)
}

/// Returns a random nonce.
pub fn nonce() -> [u8; NONCE_BYTES] {
    rand::random()
}

/// Refuses jobs with a secret value that is not encrypted: no interface stores one.
pub(super) fn refuse_plain(jobs: &[NewJob]) -> Result<(), Error> {
    for (index, job) in jobs.iter().enumerate() {
        if let Some(at) = secret::first_plain(&job.args) {
            let index = (jobs.len() > 1).then_some(index);
            let message = "is marked as secret and is not encrypted; set FLYBALL_SECRET_KEYS, or encrypt it before with NewJob::encrypted";
            return Err(refused(index, "", &Issue::new(at, message)));
        }
    }
    Ok(())
}

/// Returns the refusal of an argument.
pub(crate) fn refused(index: Option<usize>, within: &str, issue: &Issue) -> Error {
    Error::Refused {
        index,
        field: format!("{within}args{}", issue.pointer),
        message: issue.message.clone(),
    }
}
