//! Reads of one job with its attempts, and of recent failures.

use jiff_sqlx::Timestamp;
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;

use super::{Queue, states};
use crate::jobs::{
    Attempt, AwaitedJob, Error, FailedAttempt, JobDetail, JobRetry, Progress, Summary,
};
use crate::postgres::json_or_text;

// A `real` read by way of its text is the number that was written.
//
// A job's state is not a column: it is the table that holds the job. Each join is one probe of a
// primary key.
pub(super) const GET: &str = "
select j.id, j.kind, j.throttle, j.key, j.tenant, j.group_id, j.tags, j.priority, j.max_attempts, j.cost, j.created_at,
    case when s.turn >= -4 or s.run_at > now() then s.run_at end as due_at,
    case when l.job_id is null and r.job_id is null and s.job_id is null then coalesce(d.died_at, a.finished_at) end as ended_at,
    coalesce(l.attempt, r.attempt, s.attempt, d.attempt, a.attempt, 0::smallint) as attempt, coalesce(d.error, a.error) as last_error,
    case when l.job_id is not null then 'running'
         when r.job_id is not null then 'ready'
         when s.job_id is not null then case when s.retry then 'retryable' else 'scheduled' end
         when d.job_id is not null then 'dead'
         when a.outcome in ('cancelled', 'dropped') then 'cancelled'
         else 'completed' end as state,
    j.args, j.unique_key is not null as is_unique, j.timeout_s::text::float8 as timeout_s, j.traceparent, w.name as worker, w.heartbeat_at,
    extract(epoch from clock_timestamp() - w.heartbeat_at)::float8 as heartbeat_age_s, l.claimed_at as started_at,
    l.job_id is not null and x.job_id is not null as cancelling, c.done, c.total, c.note, c.updated_at, o.result,
    j.after, j.after_failure, case when s.turn < -4 then (
        select jsonb_agg(jsonb_build_object('id', w.after_id, 'state', coalesce(flyball.job_state(w.after_id), 'cancelled')) order by w.after_id)
        from flyball.job_after w
        where w.job_id = j.id
    ) end as waits_for, j.on_complete, j.on_dead, j.webhook_secret, j.retry
from flyball.job j
left join flyball.lease l on l.job_id = j.id
left join lateral (
    select h.job_id, h.attempt from flyball.ready h
    where h.lane_id in (j.lane_id, j.admission_lane) and h.priority = j.priority and h.job_id = j.id
    limit 1
) r on true
left join flyball.scheduled s on s.job_id = j.id
left join flyball.dead d on d.job_id = j.id
left join flyball.worker w on w.id = l.worker_id
left join flyball.cancel x on x.job_id = j.id
left join flyball.checkpoint c on c.job_id = j.id
left join flyball.result o on o.job_id = j.id and o.kept_until > now()
left join lateral (
    select t.attempt, t.outcome, t.error, t.finished_at from flyball.attempt t where t.job_id = j.id order by t.finished_at desc limit 1
) a on true
where j.id = $1 and ($2::text is null or j.tenant = $2)";

pub(super) const ATTEMPTS: &str = "
select a.attempt, a.outcome::text as outcome, w.name as worker, a.started_at, a.finished_at, a.error
from flyball.attempt a
left join flyball.worker w on w.id = a.worker_id
where a.job_id = $1 and ($2::timestamptz is null or a.finished_at < $2)
    and ($4::text is null or exists (select from flyball.job j where j.id = $1 and j.tenant = $4))
order by a.finished_at desc
limit $3";

// One probe for each failure: a plain join may be planned as a walk over the whole history. A job
// that no longer exists is known only by its id, and operators must see that it was deleted. The
// table is small, so a tenant's few failures are searched among all.
pub(super) const FAILURES: &str = "
select f.job_id, f.attempt, f.outcome::text as outcome, f.at, f.error, coalesce(j.kind, '') as kind,
    coalesce(j.throttle, '') as throttle, coalesce(j.key, '') as key, coalesce(j.tenant, '') as tenant,
    j.group_id
from (select * from flyball.failure order by id desc limit case when $2::text is null then $1 else 10000 end) f
left join lateral (select * from flyball.job where id = f.job_id limit 1) j on true
where $2::text is null or j.tenant = $2
order by f.id desc
limit $1";

pub(super) const WAS_LOST: &str = "
select case when outcome = 'lost' then
        case when error like 'timed out after %' then error else 'the worker died during the last attempt' end
    end
from flyball.attempt where job_id = $1 order by finished_at desc limit 1";

impl Queue {
    /// Returns the reason for which the last attempt at a job was lost; `None` if it was not.
    pub async fn was_lost(&self, id: i64) -> Result<Option<String>, Error> {
        let lost: Option<Option<String>> = sqlx::query_scalar(WAS_LOST)
            .bind(id)
            .fetch_optional(&self.pool)
            .await?;
        Ok(lost.flatten())
    }

    /// Returns one job with its details, which include the last 100 attempts, oldest first.
    pub async fn get(&self, id: i64) -> Result<Option<JobDetail>, Error> {
        self.get_of(id, None).await
    }

    /// Returns one job like [`Queue::get`]; with a tenant, only if the job belongs to it.
    pub async fn get_of(&self, id: i64, tenant: Option<&str>) -> Result<Option<JobDetail>, Error> {
        let statement = sqlx::query(GET).bind(id).bind(tenant);
        let Some(row) = statement.fetch_optional(&self.pool).await? else {
            return Ok(None);
        };
        let mut attempts = self.attempts(id, tenant, None, 100).await?;
        attempts.reverse();
        Ok(Some(detail(&row, attempts)?))
    }

    /// Returns the finished attempts of a job that ended before a time, newest first; none for a
    /// job of another tenant than `tenant`. `limit` is 1 to 1000.
    pub async fn attempts(
        &self,
        id: i64,
        tenant: Option<&str>,
        before: Option<jiff::Timestamp>,
        limit: i64,
    ) -> Result<Vec<Attempt>, Error> {
        let statement = sqlx::query(ATTEMPTS)
            .bind(id)
            .bind(before.map(states::moment))
            .bind(limit.clamp(1, 1000))
            .bind(tenant);
        Ok(statement
            .fetch_all(&self.pool)
            .await?
            .iter()
            .map(attempt)
            .collect::<Result<_, _>>()?)
    }

    /// Returns the last failed attempts, newest first, at jobs of a tenant or of all; `limit` is 1
    /// to 1000.
    pub async fn failures(
        &self,
        tenant: Option<&str>,
        limit: i64,
    ) -> Result<Vec<FailedAttempt>, Error> {
        let rows = sqlx::query(FAILURES)
            .bind(limit.clamp(1, 1000))
            .bind(tenant)
            .fetch_all(&self.pool)
            .await?;
        Ok(rows.iter().map(failure).collect::<Result<_, _>>()?)
    }
}

fn detail(row: &PgRow, attempts: Vec<Attempt>) -> Result<JobDetail, sqlx::Error> {
    Ok(JobDetail {
        summary: summary(row)?,
        args: json_or_text(row, "args"),
        unique: row.try_get("is_unique")?,
        attempts,
        worker: row.try_get("worker")?,
        heartbeat_at: moment(row, "heartbeat_at"),
        heartbeat_age_s: row.try_get("heartbeat_age_s")?,
        started_at: moment(row, "started_at"),
        timeout_s: row.try_get("timeout_s")?,
        traceparent: row.try_get("traceparent")?,
        cancelling: row.try_get("cancelling")?,
        progress: progress(row)?,
        after: row
            .try_get::<Option<Vec<i64>>, _>("after")?
            .unwrap_or_default(),
        after_failure: row
            .try_get::<Option<String>, _>("after_failure")?
            .and_then(|fate| fate.parse().ok()),
        waits_for: row
            .try_get::<Option<Json<Vec<AwaitedJob>>>, _>("waits_for")?
            .map(|Json(awaited)| awaited)
            .unwrap_or_default(),
        on_complete: row.try_get("on_complete")?,
        on_dead: row.try_get("on_dead")?,
        webhook_secret: row.try_get("webhook_secret")?,
        retry: retry(row)?,
        result: row.try_get("result")?,
    })
}

/// Returns the waits of a job; `None` for none, and for what only a direct write can have left.
pub(crate) fn retry(row: &PgRow) -> Result<Option<JobRetry>, sqlx::Error> {
    Ok(waits(row.try_get("retry")?))
}

/// Returns waits as they are stored, by the rule of [`retry`].
pub(crate) fn waits(stored: Option<Json<Value>>) -> Option<JobRetry> {
    stored.and_then(|Json(waits)| serde_json::from_value(waits).ok())
}

fn progress(row: &PgRow) -> Result<Option<Progress>, sqlx::Error> {
    let Some(at) = moment(row, "updated_at") else {
        return Ok(None);
    };
    let (done, total): (i64, Option<i64>) = (row.try_get("done")?, row.try_get("total")?);
    let percent = total
        .filter(|total| *total > 0)
        .map(|total| (done as f64 / total as f64 * 100.0).min(100.0));
    Ok(Some(Progress {
        done,
        total,
        percent,
        note: row.try_get("note")?,
        at,
    }))
}

pub(super) fn summary(row: &PgRow) -> Result<Summary, sqlx::Error> {
    Ok(Summary {
        id: row.try_get("id")?,
        kind: row.try_get("kind")?,
        throttle: row.try_get("throttle")?,
        key: row.try_get("key")?,
        tenant: row.try_get("tenant")?,
        state: states::state(row.try_get("state")?)?,
        priority: row.try_get::<i16, _>("priority")?.into(),
        attempt: row.try_get::<i16, _>("attempt")?.into(),
        max_attempts: row.try_get::<i16, _>("max_attempts")?.into(),
        cost: row.try_get("cost")?,
        created_at: moment(row, "created_at").unwrap_or_default(),
        due_at: moment(row, "due_at"),
        ended_at: moment(row, "ended_at"),
        last_error: row.try_get("last_error")?,
        group: row.try_get("group_id")?,
        tags: row
            .try_get::<Option<Vec<String>>, _>("tags")?
            .unwrap_or_default(),
    })
}

fn attempt(row: &PgRow) -> Result<Attempt, sqlx::Error> {
    Ok(Attempt {
        attempt: row.try_get::<i16, _>("attempt")?.into(),
        outcome: row.try_get("outcome")?,
        worker: row.try_get("worker")?,
        started_at: moment(row, "started_at"),
        finished_at: moment(row, "finished_at").unwrap_or_default(),
        error: row.try_get("error")?,
    })
}

fn failure(row: &PgRow) -> Result<FailedAttempt, sqlx::Error> {
    Ok(FailedAttempt {
        job_id: row.try_get("job_id")?,
        kind: row.try_get("kind")?,
        throttle: row.try_get("throttle")?,
        key: row.try_get("key")?,
        tenant: row.try_get("tenant")?,
        attempt: row.try_get::<i16, _>("attempt")?.into(),
        outcome: row.try_get("outcome")?,
        error: row.try_get("error")?,
        at: moment(row, "at").unwrap_or_default(),
        group: row.try_get("group_id")?,
    })
}

/// Returns a time, or `None` for one outside our range, such as `infinity`, because one of those
/// must not hide a whole page of jobs.
fn moment(row: &PgRow, column: &str) -> Option<jiff::Timestamp> {
    row.try_get::<Option<Timestamp>, _>(column)
        .ok()
        .flatten()
        .map(Timestamp::to_jiff)
}
