//! Jobs in a database of the test's own.

use std::sync::Arc;
use std::time::Duration;

use jiff_sqlx::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{PgExecutor, PgPool, Row};

use super::error::Error;
use super::keys::test_keys;
use crate::jobs::postgres::PgCheckpoints;
use crate::jobs::{self, Checkpoints, Ending, Finish, Job, NewJob, Queue};

/// The fence of every lease; one is enough, because nothing else works on the database of a test.
const FENCE: i64 = 1;

const REGISTER_KINDS: &str = "select flyball.register_kind(kind) from unnest($1::text[]) as kind";
const REGISTER: &str = "insert into flyball.worker (name, host, pid, ttl, kinds) values ('test', 'test', 0, interval '1 day', $1) returning id";
const TAKE: &str = "
with due as materialized (
    select ctid from flyball.ready order by priority, job_id limit 1000 for update
),
removed as (
    delete from flyball.ready where ctid = any(array(select ctid from due))
    returning *
),
leased as (
    insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost, holds_unique)
    select job_id, $1, $2, lane_id, priority, attempt + 1, cost, holds_unique from removed
    returning job_id, priority, attempt
)
select j.id, j.kind, j.args, j.throttle, j.key, j.priority, j.max_attempts, j.cost, j.created_at, j.timeout_s, j.traceparent, j.retry, l.attempt
from leased l
join flyball.job j on j.id = l.job_id
order by l.priority, j.id";
// The queue keeps only a digest of a unique key, so the text is returned only if it is the one that
// was asked for. A `real` read by way of its text is the number that was written.
const WAITING: &str = "
select j.kind, j.args, j.throttle, j.key, j.priority, j.run_at, j.max_attempts, j.cost, j.timeout_s::text::float8 as timeout_s,
    j.traceparent, j.group_id, j.tags, j.after, j.after_failure, j.on_complete, j.on_dead, j.webhook_secret, j.retry,
    case when j.unique_key = sha256(convert_to(j.kind || chr(31) || $2, 'UTF8')) then $2
         else 'sha256:' || encode(j.unique_key, 'hex') end as unique_key
from flyball.job j
where j.kind = $1
    and (exists (select from flyball.ready r where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = j.id)
        or exists (select from flyball.scheduled s where s.job_id = j.id))
order by j.id";
// Time moves by moving the times of the waiting jobs.
const ADVANCE: &str = "
with keys as (
    update flyball.unique_holder set expires_at = expires_at - make_interval(secs => $1), since = since - make_interval(secs => $1)
)
update flyball.scheduled set run_at = run_at - make_interval(secs => $1)";
const NEXT_DUE: &str = "
select least((select 0::float8 from flyball.ready limit 1),
    (select extract(epoch from min(run_at) - clock_timestamp())::float8 from flyball.scheduled where turn >= -4))";
const AWAITED: &str = "select distinct after_id from flyball.job_after";

pub(super) struct PostgresBackend {
    queue: Queue,
    worker_id: i32,
}

impl PostgresBackend {
    pub(super) async fn new(pool: PgPool, kinds: &[String]) -> Result<Self, Error> {
        let queue = Queue::new(pool).with_secret_keys(test_keys());
        queue
            .migrate()
            .await
            .map_err(|error| Error::Migrate(error.to_string()))?;
        sqlx::query(REGISTER_KINDS)
            .bind(kinds)
            .execute(&queue.pool)
            .await
            .map_err(jobs::Error::from)?;
        let worker_id = sqlx::query_scalar(REGISTER)
            .bind(kinds)
            .fetch_one(&queue.pool)
            .await
            .map_err(jobs::Error::from)?;
        Ok(Self { queue, worker_id })
    }

    pub(super) async fn enqueue(&self, job: NewJob) -> Result<i64, Error> {
        let enqueued = self
            .queue
            .enqueue(&[job])
            .await
            .map_err(|error| match error {
                jobs::Error::Refused { field, message, .. } => Error::Refused { field, message },
                other => Error::Queue(other),
            })?;
        Ok(enqueued.first().map_or(0, |one| one.id))
    }

    pub(super) async fn take_due(&self) -> Result<Vec<Job>, Error> {
        self.queue.settle_groups().await?;
        let awaited: Vec<i64> = sqlx::query_scalar(AWAITED)
            .fetch_all(&self.queue.pool)
            .await
            .map_err(jobs::Error::from)?;
        self.queue.release_waiting(&awaited).await?;
        while self.queue.promote().await?.more {}
        let take = sqlx::query(TAKE).bind(FENCE).bind(self.worker_id);
        let rows = take
            .fetch_all(&self.queue.pool)
            .await
            .map_err(jobs::Error::from)?;
        Ok(rows
            .iter()
            .map(job)
            .collect::<Result<_, _>>()
            .map_err(jobs::Error::from)?)
    }

    pub(super) async fn finish(&self, job: &Job, ending: Ending) -> Result<(), Error> {
        self.queue
            .finish(&[Finish {
                job_id: job.id,
                fence: job.fence,
                ending,
            }])
            .await?;
        Ok(())
    }

    pub(super) async fn waiting(
        &self,
        kind: &str,
        unique_key: Option<&str>,
    ) -> Result<Vec<NewJob>, Error> {
        waiting(&self.queue.pool, kind, unique_key).await
    }

    pub(super) async fn advance(&self, by: Duration) -> Result<(), Error> {
        sqlx::query(ADVANCE)
            .bind(by.as_secs_f64())
            .execute(&self.queue.pool)
            .await
            .map_err(jobs::Error::from)?;
        Ok(())
    }

    pub(super) async fn next_due(&self) -> Result<Option<Duration>, Error> {
        let wait: Option<f64> = sqlx::query_scalar(NEXT_DUE)
            .fetch_one(&self.queue.pool)
            .await
            .map_err(jobs::Error::from)?;
        Ok(wait.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()))
    }

    pub(super) fn checkpoints(&self) -> Arc<dyn Checkpoints> {
        Arc::new(PgCheckpoints::new(self.queue.pool.clone()))
    }
}

/// Returns the waiting jobs of a kind, as this connection sees them: inside a transaction they
/// include those that it has enqueued.
///
/// The jobs are as the queue keeps them: `unique_key` is a digest, `sha256:` and hexadecimal
/// digits, `run_at` is the time that a debounced job waits for, and `unique_for`, `debounce`,
/// `debounce_max` and `replace` are lost.
///
/// ```no_run
/// # use flyball_core as flyball;
/// # async fn test(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut transaction = pool.begin().await?;
/// sqlx::query("select flyball.enqueue('greet', '{\"name\": \"Ada\"}')").execute(&mut *transaction).await?;
///
/// let jobs = flyball::testing::enqueued_in(&mut *transaction, "greet").await?;
/// assert_eq!(jobs[0].args["name"], "Ada");
/// # Ok(())
/// # }
/// ```
pub async fn enqueued_in(executor: impl PgExecutor<'_>, kind: &str) -> Result<Vec<NewJob>, Error> {
    waiting(executor, kind, None).await
}

async fn waiting(
    executor: impl PgExecutor<'_>,
    kind: &str,
    unique_key: Option<&str>,
) -> Result<Vec<NewJob>, Error> {
    let rows = sqlx::query(WAITING)
        .bind(kind)
        .bind(unique_key)
        .fetch_all(executor)
        .await
        .map_err(jobs::Error::from)?;
    Ok(rows
        .iter()
        .map(new_job)
        .collect::<Result<_, _>>()
        .map_err(jobs::Error::from)?)
}

fn new_job(row: &PgRow) -> Result<NewJob, sqlx::Error> {
    Ok(NewJob {
        throttle: row.try_get("throttle")?,
        key: row.try_get("key")?,
        priority: row.try_get::<i16, _>("priority")?.into(),
        run_at: row
            .try_get::<Option<Timestamp>, _>("run_at")?
            .map(Timestamp::to_jiff),
        max_attempts: row.try_get::<i16, _>("max_attempts")?.into(),
        cost: row.try_get("cost")?,
        timeout_s: row.try_get("timeout_s")?,
        traceparent: row.try_get("traceparent")?,
        unique_key: row.try_get("unique_key")?,
        group: row.try_get("group_id")?,
        tags: row
            .try_get::<Option<Vec<String>>, _>("tags")?
            .unwrap_or_default(),
        after: row
            .try_get::<Option<Vec<i64>>, _>("after")?
            .unwrap_or_default(),
        after_failure: row
            .try_get::<Option<String>, _>("after_failure")?
            .and_then(|fate| fate.parse().ok()),
        on_complete: row.try_get("on_complete")?,
        on_dead: row.try_get("on_dead")?,
        webhook_secret: row.try_get("webhook_secret")?,
        retry: jobs::postgres::retry(row)?,
        ..NewJob::new(row.try_get::<String, _>("kind")?, row.try_get("args")?)
    })
}

fn job(row: &PgRow) -> Result<Job, sqlx::Error> {
    Ok(Job {
        id: row.try_get("id")?,
        kind: row.try_get("kind")?,
        args: row.try_get("args")?,
        throttle: row.try_get("throttle")?,
        key: row.try_get("key")?,
        priority: row.try_get::<i16, _>("priority")?.into(),
        attempt: row.try_get::<i16, _>("attempt")?.into(),
        max_attempts: row.try_get::<i16, _>("max_attempts")?.into(),
        cost: row.try_get("cost")?,
        fence: FENCE,
        created_at: row.try_get::<Timestamp, _>("created_at")?.to_jiff(),
        timeout: row
            .try_get::<Option<f32>, _>("timeout_s")?
            .and_then(|seconds| Duration::try_from_secs_f32(seconds).ok()),
        traceparent: row.try_get("traceparent")?,
        retry: jobs::postgres::retry(row)?,
    })
}
