//! Enqueueing from Rust and HTTP, through the SQL functions, so that the same rules apply to all.

use jiff_sqlx::{Timestamp, ToSqlx};
use serde_json::{Map, Value, json};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::types::Json;
use sqlx::{PgExecutor, Postgres, Row};

use super::Queue;
use super::secrets::refuse_plain;
use crate::jobs::{AfterFailure, Enqueued, Error, NewJob, check};

pub(super) const ENQUEUE: &str = "
select job_id, duplicate, replaced, backlog
from flyball.enqueue_rows($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)";

// A single job needs no arrays: this is a third of the work.
pub(super) const ENQUEUE_ONE: &str = "
select job_id, duplicate, replaced, backlog
from flyball.enqueue($1, $2, $3, $4, $5, $6, $7, $8, flyball.span($9), $10, $11, flyball.span($12), flyball.span($13),
    flyball.span($14), $15, $16, $17, $18, $19, $20, $21, $22, $23)";

/// The statement for an owner of unique keys whose rights have already been checked.
pub(super) const ENQUEUE_AS: &str = "
select job_id, duplicate, replaced, backlog
from flyball.enqueue_rows_as($18, true, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $19, false, $16, $17)";

/// The beginning of an owner that is a tenant.
pub(crate) const TENANT: &str = "tenant:";

/// Returns the tenant of an owner of unique keys; `""` for none, like `flyball.tenant_of`.
pub(super) fn tenant_of(owner: &str) -> &str {
    owner.strip_prefix(TENANT).unwrap_or_default()
}

impl Queue {
    /// Enqueues all jobs or none; returns one entry per job, in order.
    pub async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>, Error> {
        enqueue(&self.pool, &self.encrypted(jobs, "")?).await
    }

    /// Enqueues jobs like [`Queue::enqueue`], for a caller with unique keys of its own, named by
    /// `owner`; operators have an empty `owner`. The jobs of the owner `tenant:<tenant>` belong to
    /// that tenant, and are sent by its `module`.
    pub async fn enqueue_for(
        &self,
        owner: &str,
        module: &str,
        jobs: &[NewJob],
    ) -> Result<Vec<Enqueued>, Error> {
        let is_plain = || jobs.iter().all(|job| job.unique_key.is_none());
        if owner.is_empty() || !owner.starts_with(TENANT) && is_plain() {
            return self.enqueue(jobs).await;
        }
        let jobs = self.encrypted(jobs, tenant_of(owner))?;
        refuse_unstorable(&jobs)?;
        let _place = self.tenant_place(tenant_of(owner)).await;
        let rows = rows(ENQUEUE_AS, &jobs)
            .bind(owner)
            .bind(module)
            .fetch_all(&self.pool)
            .await?;
        tickets(&rows)
    }
}

/// Enqueues all jobs or none, within the transaction of the executor, if there is one.
pub(crate) async fn enqueue(
    executor: impl PgExecutor<'_>,
    jobs: &[NewJob],
) -> Result<Vec<Enqueued>, Error> {
    refuse_unstorable(jobs)?;
    let rows = match jobs {
        [] => return Ok(Vec::new()),
        [job] => one(executor, job).await?,
        jobs => rows(ENQUEUE, jobs).fetch_all(executor).await?,
    };
    tickets(&rows)
}

fn tickets(rows: &[PgRow]) -> Result<Vec<Enqueued>, Error> {
    rows.iter()
        .map(ticket)
        .collect::<Result<_, sqlx::Error>>()
        .map_err(Error::from)
}

/// Reads the answer about one job.
pub(super) fn ticket(row: &PgRow) -> Result<Enqueued, sqlx::Error> {
    Ok(Enqueued {
        id: row.try_get("job_id")?,
        duplicate: row.try_get("duplicate")?,
        replaced: row.try_get("replaced")?,
        backlog: row
            .try_get::<Option<Json<_>>, _>("backlog")?
            .map(|Json(backlog)| backlog),
    })
}

/// Refuses texts with a NUL, because Postgres would not report the field, and secret values that
/// are not encrypted, because Postgres has no key.
pub(crate) fn refuse_unstorable(jobs: &[NewJob]) -> Result<(), Error> {
    refuse_plain(jobs)?;
    let found = jobs
        .iter()
        .enumerate()
        .find_map(|(index, job)| Some((index, check::nul(job)?)));
    found.map_or(Ok(()), |(index, field)| {
        let index = (jobs.len() > 1).then_some(index);
        Err(Error::Refused {
            index,
            field: field.to_owned(),
            message: check::NUL.to_owned(),
        })
    })
}

async fn one(executor: impl PgExecutor<'_>, job: &NewJob) -> Result<Vec<PgRow>, sqlx::Error> {
    sqlx::query(ENQUEUE_ONE)
        .bind(&job.kind)
        .bind(Json(&job.args))
        .bind(&job.throttle)
        .bind(&job.key)
        .bind(job.priority)
        .bind(job.run_at.map(|at| at.to_sqlx()))
        .bind(job.max_attempts)
        .bind(&job.unique_key)
        .bind(job.unique_for)
        .bind(job.cost)
        .bind(&job.traceparent)
        .bind(job.timeout_s)
        .bind(job.debounce_s)
        .bind(job.debounce_max_s)
        .bind(job.replace)
        .bind(job.group)
        .bind((!job.tags.is_empty()).then_some(&job.tags))
        .bind((!job.after.is_empty()).then_some(&job.after))
        .bind(job.after_failure.map(AfterFailure::as_str))
        .bind(&job.on_complete)
        .bind(&job.on_dead)
        .bind(&job.webhook_secret)
        .bind(job.retry.map(Json))
        .fetch_all(executor)
        .await
}

/// Returns a statement whose first parameters are the columns of the jobs.
pub(super) fn rows<'a>(
    statement: &'static str,
    jobs: &'a [NewJob],
) -> Query<'a, Postgres, PgArguments> {
    let run_ats: Vec<Option<Timestamp>> = jobs
        .iter()
        .map(|job| job.run_at.map(|at| at.to_sqlx()))
        .collect();
    sqlx::query(statement)
        .bind(column(jobs, |job| job.kind.as_str()))
        .bind(column(jobs, |job| Json(&job.args)))
        .bind(column(jobs, |job| job.throttle.as_str()))
        .bind(column(jobs, |job| job.key.as_str()))
        .bind(column(jobs, |job| job.priority))
        .bind(run_ats)
        .bind(column(jobs, |job| job.max_attempts))
        .bind(column(jobs, |job| job.unique_key.as_deref()))
        .bind(column(jobs, |job| job.unique_for))
        .bind(column(jobs, |job| job.cost))
        .bind(column(jobs, |job| job.traceparent.as_deref()))
        .bind(column(jobs, |job| job.timeout_s))
        .bind(column(jobs, |job| job.debounce_s))
        .bind(column(jobs, |job| job.debounce_max_s))
        .bind(column(jobs, |job| job.replace))
        .bind(groups(jobs))
        .bind(options(jobs))
}

/// Returns the groups of the jobs, if one joins a group.
fn groups(jobs: &[NewJob]) -> Option<Vec<Option<i64>>> {
    jobs.iter()
        .any(|job| job.group.is_some())
        .then(|| column(jobs, |job| job.group))
}

/// Returns the fields that have no column of their own, if one job has any.
fn options(jobs: &[NewJob]) -> Option<Vec<Option<Json<Value>>>> {
    jobs.iter()
        .any(|job| options_of(job).is_some())
        .then(|| column(jobs, options_of))
}

fn options_of(job: &NewJob) -> Option<Json<Value>> {
    let mut options = Map::new();
    if !job.tags.is_empty() {
        options.insert("tags".to_owned(), json!(job.tags));
    }
    if !job.after.is_empty() {
        options.insert("after".to_owned(), json!(job.after));
    }
    if let Some(fate) = job.after_failure {
        options.insert("after_failure".to_owned(), json!(fate));
    }
    if let Some(waits) = job.retry {
        options.insert("retry".to_owned(), json!(waits));
    }
    for (name, text) in [
        ("on_complete", &job.on_complete),
        ("on_dead", &job.on_dead),
        ("webhook_secret", &job.webhook_secret),
    ] {
        if let Some(text) = text {
            options.insert(name.to_owned(), json!(text));
        }
    }
    (!options.is_empty()).then_some(Json(Value::Object(options)))
}

/// Returns one field of all jobs as an array for Postgres.
fn column<'a, T>(jobs: &'a [NewJob], field: impl Fn(&'a NewJob) -> T) -> Vec<T> {
    jobs.iter().map(field).collect()
}
