//! Leases of remote workers, and the rows of these workers and of the brokers that serve them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff_sqlx::Timestamp;
use serde_json::Value;
use sqlx::Row;
use sqlx::types::Json;

use super::Queue;
use crate::jobs::remote::{LeaseState, PresentedLease, RemoteBeat, RemoteOffer};
use crate::jobs::{Checkpoint, Error, Job};

/// A remote worker that claims.
#[derive(Clone, Copy, Debug)]
pub struct RemoteRow<'a> {
    /// The name of the worker.
    pub name: &'a str,
    /// The host of the worker, for people.
    pub host: &'a str,
    /// The jobs that it asks for.
    pub offer: &'a RemoteOffer,
    /// The time without a call after which it counts as gone.
    pub ttl: Duration,
}

/// Jobs of one claim that go to one remote worker.
#[derive(Clone, Debug)]
pub struct HandOver {
    /// The broker that claimed them, and the fence of its claim.
    pub broker_id: i32,
    /// The fence of the claim.
    pub fence: i64,
    /// The worker.
    pub worker_id: i32,
    /// The time without a heartbeat after which they are lost.
    pub lease: Duration,
    /// The jobs.
    pub jobs: Vec<JobToHand>,
}

/// A job that goes to a remote worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JobToHand {
    /// The id of the job.
    pub job_id: i64,
    /// The new fence of the job.
    pub fence: i64,
    /// The tokens that were charged.
    pub charged: f64,
    /// The timeout of the attempt, of the job or of its kind.
    pub timeout: Option<Duration>,
}

/// A job as it was handed over.
#[derive(Clone, Debug)]
pub struct HandedRow {
    /// The id of the job.
    pub job_id: i64,
    /// The tenant of the job; empty for none.
    pub tenant: String,
    /// The time at which the lease ends.
    pub expires_at: jiff::Timestamp,
    /// The last checkpoint.
    pub checkpoint: Option<Checkpoint>,
}

/// A lease that a remote worker holds.
#[derive(Clone, Debug)]
pub struct HeldLease {
    /// The id of the lane of the job.
    pub lane_id: i64,
    /// The job, without its arguments; its cost is what was charged.
    pub job: Job,
    /// The time since the claim.
    pub age: Duration,
    /// The real cost, as last reported.
    pub real_cost: Option<f64>,
    /// True if the job is to be cancelled.
    pub is_cancelled: bool,
    /// The jobs that the worker had asked for.
    pub offer: RemoteOffer,
}

/// A job that a broker counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedJob {
    /// The id of the job.
    pub job_id: i64,
    /// The fence of its lease.
    pub fence: i64,
    /// The id of its lane.
    pub lane_id: i64,
}

pub(super) const REGISTER_BROKER: &str = "
insert into flyball.worker (name, host, pid, ttl, kinds, throttles, role, tenant, capabilities)
values ($1, $2, $3, make_interval(secs => $4), $5, $6, 'broker', $7,
    $8::jsonb || case when $7::text is null then '{}'::jsonb else jsonb_build_object('tenant ' || $7, '') end)
returning id";

// The row of a worker that is already known takes the newest claim. It has no part in sharing lanes.
pub(super) const REGISTER_REMOTE: &str = "
insert into flyball.worker as w (name, host, pid, ttl, kinds, throttles, role, tenant, serves)
values ($1, $2, 0, make_interval(secs => $3), $4, $5, 'remote', $6, false)
on conflict (name, coalesce(tenant, '')) where role = 'remote' and stopped_at is null do update
set host = excluded.host, ttl = greatest(w.ttl, excluded.ttl), kinds = excluded.kinds, throttles = excluded.throttles,
    heartbeat_at = clock_timestamp()
returning id";

// The broker claimed the jobs under one fence. Each gets one of its own here, which is the worker's
// proof, and a time at which it is lost. An attempt is no longer than its timeout, which stays with
// the lease, because a heartbeat may reach a process without the settings of the kind. The array of
// ids makes every plan read the leases one by one.
pub(super) const HAND_OVER: &str = "
with handed as (
    update flyball.lease l
    set worker_id = $3, fence = g.fence, broker_id = $1, lease_s = $4, charged = g.charged, timeout_s = g.timeout_s,
        expires_at = clock_timestamp() + make_interval(secs => least($4::real, g.timeout_s))
    from unnest($5::bigint[], $6::bigint[], $7::float8[], $8::float8[]) as g(job_id, fence, charged, timeout_s)
    cross join lateral (select tenant from flyball.job where id = g.job_id limit 1) j
    where l.job_id = any($5) and l.job_id = g.job_id and l.worker_id = $1 and l.fence = $2
        and exists (select from flyball.worker w where w.id = $3 and w.stopped_at is null)
    returning l.job_id, l.expires_at, j.tenant
)
select h.job_id, h.expires_at, h.tenant, c.cursor, c.done, c.total, c.note
from handed h
left join flyball.checkpoint c on c.job_id = h.job_id";

// The limit keeps the planner from the index of brokers, which would read all leases.
pub(super) const HELD: &str = "
select l.lane_id, l.attempt, l.priority, l.charged, l.real_cost, extract(epoch from clock_timestamp() - l.claimed_at)::float8 as age_s,
    exists (select from flyball.cancel c where c.job_id = l.job_id) as cancelled,
    j.kind, j.throttle, j.key, j.max_attempts, j.created_at, j.traceparent, j.retry, w.kinds, w.throttles, w.tenant
from (select * from flyball.lease where job_id = $1 limit 1) l
cross join lateral (select * from flyball.job where id = l.job_id limit 1) j
join flyball.worker w on w.id = l.worker_id
where l.fence = $2 and l.broker_id is not null and ($3::text is null or j.tenant = $3)";

// A heartbeat moves the end of the lease, but not past the timeout of the attempt. It also shows
// that the worker lives. The statement answers nothing if the lease is another's.
pub(super) const BEAT: &str = "
with own as materialized (
    select job_id from (select * from flyball.lease where job_id = $1 limit 1) o where o.fence = $2 and o.broker_id is not null
),
held as (
    update flyball.lease l
    set expires_at = least(
            clock_timestamp() + make_interval(secs => l.lease_s),
            l.claimed_at + make_interval(secs => l.timeout_s)
        ),
        real_cost = coalesce($4, l.real_cost)
    from flyball.job j
    where l.job_id = (select job_id from own) and l.fence = $2 and j.id = l.job_id and ($3::text is null or j.tenant = $3)
    returning l.job_id, l.worker_id, l.broker_id, l.expires_at
),
alive as (
    update flyball.worker w set heartbeat_at = clock_timestamp()
    from held where w.id = held.worker_id and w.stopped_at is null
),
stored as (
    insert into flyball.checkpoint as c (job_id, cursor, done, total, note)
    select job_id, coalesce($5, 'null'::jsonb), coalesce($6, 0), $7, coalesce($8, '') from held where $5 is not null or $6 is not null
    on conflict (job_id) do update
    set cursor = coalesce($5, c.cursor), done = coalesce($6, c.done),
        total = case when $6 is null then c.total else excluded.total end,
        note = case when $6 is null then c.note else excluded.note end, updated_at = clock_timestamp()
)
select h.expires_at, exists (select from flyball.cancel x where x.job_id = h.job_id) as cancelled,
    exists (
        select from flyball.worker p where p.id = h.broker_id and p.stopped_at is null and p.heartbeat_at + p.ttl / 3 >= clock_timestamp()
    ) as is_counted
from held h";

pub(super) const COUNTED: &str =
    "select job_id, fence, lane_id from flyball.lease where broker_id = $1";

// A broker that is gone counts nothing any more, although the workers go on. Its last report to the
// throttles is valid for its time to live, so another one takes over when a third of that has
// passed. One that was only slow finds that it counts the jobs no longer. Of two brokers that adopt
// at once the second finds no row left.
pub(super) const ADOPT: &str = "
update flyball.lease l set broker_id = $1
where l.broker_id is not null and l.broker_id <> $1 and not exists (
    select from flyball.worker p where p.id = l.broker_id and p.stopped_at is null and p.heartbeat_at + p.ttl / 3 >= clock_timestamp()
)";

impl Queue {
    /// Registers a broker for an offer, with its capabilities and the kinds that it hands out;
    /// returns its id.
    pub async fn register_broker(
        &self,
        name: &str,
        (host, pid): (&str, i32),
        ttl: Duration,
        offer: &RemoteOffer,
        capabilities: &BTreeMap<String, String>,
    ) -> Result<i32, Error> {
        sqlx::query(super::workers::REGISTER_KINDS)
            .bind(&offer.kinds)
            .execute(&self.pool)
            .await?;
        Ok(sqlx::query_scalar(REGISTER_BROKER)
            .bind(name)
            .bind(host)
            .bind(pid)
            .bind(ttl.as_secs_f64())
            .bind(&offer.kinds)
            .bind(&offer.throttles)
            .bind(&offer.tenant)
            .bind(Json(capabilities))
            .fetch_one(&self.pool)
            .await?)
    }

    /// Records a claim of a remote worker, which shows that it lives; returns its id.
    pub async fn register_remote(&self, row: RemoteRow<'_>) -> Result<i32, Error> {
        Ok(sqlx::query_scalar(REGISTER_REMOTE)
            .bind(row.name)
            .bind(row.host)
            .bind(row.ttl.as_secs_f64())
            .bind(&row.offer.kinds)
            .bind(&row.offer.throttles)
            .bind(&row.offer.tenant)
            .fetch_one(&self.pool)
            .await?)
    }

    /// Hands jobs that a broker claimed to a remote worker, each under a fence of its own; returns
    /// those that it has now.
    pub async fn hand_over(&self, over: &HandOver) -> Result<HashMap<i64, HandedRow>, Error> {
        let ids: Vec<i64> = over.jobs.iter().map(|one| one.job_id).collect();
        let fences: Vec<i64> = over.jobs.iter().map(|one| one.fence).collect();
        let charged: Vec<f64> = over.jobs.iter().map(|one| one.charged).collect();
        let seconds = |one: &JobToHand| one.timeout.map(|timeout| timeout.as_secs_f64());
        let timeouts: Vec<Option<f64>> = over.jobs.iter().map(seconds).collect();
        let rows = sqlx::query(HAND_OVER)
            .bind(over.broker_id)
            .bind(over.fence)
            .bind(over.worker_id)
            .bind(over.lease.as_secs_f64())
            .bind(ids)
            .bind(fences)
            .bind(charged)
            .bind(timeouts)
            .fetch_all(&self.pool)
            .await?;
        rows.iter()
            .map(|row| {
                let job_id = row.try_get("job_id")?;
                let checkpoint = match row.try_get::<Option<Value>, _>("cursor")? {
                    Some(cursor) => Some(Checkpoint {
                        cursor,
                        done: row.try_get("done")?,
                        total: row.try_get("total")?,
                        note: row.try_get("note")?,
                    }),
                    None => None,
                };
                let handed = HandedRow {
                    job_id,
                    tenant: row.try_get("tenant")?,
                    expires_at: row.try_get::<Timestamp, _>("expires_at")?.to_jiff(),
                    checkpoint,
                };
                Ok((job_id, handed))
            })
            .collect()
    }

    /// Returns the lease that a remote worker presents; `None` if it does not hold it.
    pub async fn held_lease(&self, lease: &PresentedLease) -> Result<Option<HeldLease>, Error> {
        let row = sqlx::query(HELD)
            .bind(lease.job_id)
            .bind(lease.fence)
            .bind(&lease.tenant)
            .fetch_optional(&self.pool)
            .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(HeldLease {
            lane_id: row.try_get("lane_id")?,
            job: Job {
                id: lease.job_id,
                kind: row.try_get("kind")?,
                args: Value::Null,
                throttle: row.try_get("throttle")?,
                key: row.try_get("key")?,
                priority: row.try_get::<i16, _>("priority")?.into(),
                attempt: row.try_get::<i16, _>("attempt")?.into(),
                max_attempts: row.try_get::<i16, _>("max_attempts")?.into(),
                cost: row.try_get::<Option<f64>, _>("charged")?.unwrap_or(0.0),
                fence: lease.fence,
                created_at: row.try_get::<Timestamp, _>("created_at")?.to_jiff(),
                timeout: None,
                traceparent: row.try_get("traceparent")?,
                retry: super::read::retry(&row)?,
            },
            age: Duration::try_from_secs_f64(row.try_get("age_s")?).unwrap_or_default(),
            real_cost: row.try_get("real_cost")?,
            is_cancelled: row.try_get("cancelled")?,
            offer: RemoteOffer::new(
                row.try_get("kinds")?,
                row.try_get("throttles")?,
                row.try_get("tenant")?,
            ),
        }))
    }

    /// Extends a lease and stores what its worker reports. Returns its state, and true if a live
    /// broker counts the job; `None` if the caller does not hold the lease.
    pub async fn beat_lease(
        &self,
        lease: &PresentedLease,
        beat: &RemoteBeat,
    ) -> Result<Option<(LeaseState, bool)>, Error> {
        let progress = beat.progress.as_ref();
        let row = sqlx::query(BEAT)
            .bind(lease.job_id)
            .bind(lease.fence)
            .bind(&lease.tenant)
            .bind(beat.cost)
            .bind(&beat.cursor)
            .bind(progress.map(|progress| progress.done))
            .bind(progress.and_then(|progress| progress.total))
            .bind(progress.map(|progress| progress.note.as_str()))
            .fetch_optional(&self.pool)
            .await?;
        let Some(row) = row else { return Ok(None) };
        let state = LeaseState {
            expires_at: row.try_get::<Timestamp, _>("expires_at")?.to_jiff(),
            is_cancelled: row.try_get("cancelled")?,
        };
        Ok(Some((state, row.try_get("is_counted")?)))
    }

    /// Returns the jobs that a broker counts, after it took over those of brokers that are gone.
    pub async fn counted_jobs(&self, broker_id: i32) -> Result<Vec<CountedJob>, Error> {
        sqlx::query(ADOPT)
            .bind(broker_id)
            .execute(&self.pool)
            .await?;
        let rows = sqlx::query(COUNTED)
            .bind(broker_id)
            .fetch_all(&self.pool)
            .await?;
        rows.iter()
            .map(|row| {
                Ok(CountedJob {
                    job_id: row.try_get("job_id")?,
                    fence: row.try_get("fence")?,
                    lane_id: row.try_get("lane_id")?,
                })
            })
            .collect()
    }
}
