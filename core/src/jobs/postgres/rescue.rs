//! Rescue: the jobs of a dead worker go back to their lanes, so that limits still hold.

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::Queue;
use crate::jobs::Error;

/// The result of one rescue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rescued {
    /// Workers that were found dead, one for each process with its brokers; of remote ones those
    /// whose leases expired.
    pub workers: i64,
    /// Jobs that are ready again.
    pub ready: Vec<i64>,
    /// Jobs that had no attempt left and are dead.
    pub dead: Vec<i64>,
    /// The kinds of these jobs.
    pub dead_kinds: Vec<String>,
    /// The lanes of the jobs that are ready again.
    pub lanes: Vec<i64>,
    /// Leased jobs that are no longer in `flyball.job`, and so cannot run again.
    pub missing: Vec<i64>,
}

// Only the server's clock counts. The worker's row is marked, never deleted, while leases may name
// it. A lost attempt counts, so that a job that kills its worker cannot do so for ever; but an
// attempt that left a checkpoint made progress, and does not count. One that reached its timeout
// counts in any case, because otherwise a job that reports progress and never ends would be tried
// for ever. Only leases of remote workers show that: no heartbeat extends them past the timeout.
//
// The brokers of a process die with its worker: that is one death, although their last heartbeats are
// some seconds apart and a later round may find some of them. A process that starts again with the
// same number begins after those heartbeats.
//
// A remote worker has no way to sign off: one that is silent and holds no job has left. It counts as
// dead only if a lease of its own expired.
//
// A dead worker's leases are taken in the statement that marks it as rescued, so that if a rescuer
// dies half-way, the next one continues.
//
// A lease whose job cannot be found (it was deleted by hand, or a backup was restored in part) is
// deleted, frees its unique key and is reported among the recent failures and to the caller. The
// history has no place for it, because its day may be gone.
macro_rules! rescue {
    ($lost:literal) => {
        concat!(
            $lost,
            "checked as (
    select l.*, j.kind, j.max_attempts, o.timed_out, o.timed_out is null and coalesce(c.updated_at > l.claimed_at, false) as progressed,
        exists (select 1 from flyball.cancel x where x.job_id = l.job_id) as cancelled
    from lost l
    left join lateral (select kind, max_attempts from flyball.job where id = l.job_id limit 1) j on true
    left join lateral (select updated_at from flyball.checkpoint where job_id = l.job_id limit 1) c on true
    cross join lateral (
        select case when l.expires_at >= l.claimed_at + make_interval(secs => l.timeout_s) then format('timed out after %s s', l.timeout_s) end
            as timed_out
    ) o
),
sorted as (
    select *, case when progressed then attempt - 1 else attempt end as used,
        not cancelled and not progressed and attempt >= max_attempts as over
    from checked where max_attempts is not null
),
missing as (
    select * from checked where max_attempts is null
),
stopped as (
    delete from flyball.cancel
    where job_id = any(array(
        select c.job_id from flyball.cancel c where c.job_id = any(array(select j.job_id from checked j)) for update skip locked
    ))
),
history as (
    insert into flyball.attempt (job_id, attempt, outcome, worker_id, started_at, error)
    select job_id, attempt, (case when cancelled then 'cancelled' else 'lost' end)::flyball.outcome, worker_id, claimed_at,
        coalesce(timed_out, 'the worker died or lost its connection')
    from sorted
),
failures as (
    insert into flyball.failure (job_id, attempt, outcome, error)
    select job_id, attempt, 'lost'::flyball.outcome, coalesce(timed_out, 'the worker died or lost its connection')
    from sorted where not cancelled
    union all
    select job_id, attempt, 'lost', 'the worker died, and the job is not in flyball.job any more' from missing
),
dead_letters as (
    insert into flyball.dead (job_id, lane_id, priority, attempt, cost, error)
    select job_id, lane_id, priority, attempt, cost, coalesce(timed_out, 'the worker died during the last attempt')
    from sorted where over
    on conflict do nothing
),
released_keys as (
    delete from flyball.unique_holder
    where digest = any(array(
        select u.digest from flyball.unique_holder u
        where u.expires_at is null and u.job_id = any(array(
                select job_id from sorted where holds_unique and (over or cancelled)
                union all
                select job_id from missing where holds_unique
            ))
        for update skip locked
    ))
),
requeued as (
    insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
    select lane_id, priority, job_id, used, cost, holds_unique from sorted where not over and not cancelled
    on conflict do nothing
)
select (
        select count(distinct (d.host, d.pid)) from dead_workers d
        where d.role <> 'remote' and not exists (
            select 1 from flyball.worker w
            where w.host = d.host and w.pid = d.pid and w.role <> 'remote' and w.rescued and w.stopped_at > w.heartbeat_at + w.ttl
                and w.heartbeat_at > d.heartbeat_at - d.ttl and w.heartbeat_at >= d.started_at and w.started_at <= d.heartbeat_at
        )
    ) + (
        select count(distinct worker_id) from checked where broker_id is not null and timed_out is null and not cancelled
    ) as workers, (
        select pg_notify('flyball', left(string_agg(lane_id::text, ','), 7900))
        from (select distinct lane_id from sorted where not over and not cancelled) as lanes having count(*) > 0
    )::text as notified_lanes,
    coalesce((select array_agg(job_id) from sorted where not over and not cancelled), '{}') as ready,
    coalesce((select array_agg(job_id) from sorted where over), '{}') as dead,
    coalesce((select array_agg(kind) from sorted where over), '{}') as dead_kinds,
    coalesce((select array_agg(distinct lane_id) from sorted where not over and not cancelled), '{}') as lanes,
    coalesce((select array_agg(job_id) from missing), '{}') as missing"
        )
    };
}
pub(super) const RESCUE: &str = rescue!(
    "
with dead_workers as (
    update flyball.worker
    set stopped_at = coalesce(stopped_at, clock_timestamp()), rescued = true
    where id = any($1::int[]) and (stopped_at is not null or heartbeat_at + ttl < clock_timestamp())
    returning id, role, host, pid, started_at, heartbeat_at, ttl
),
lost as (
    delete from flyball.lease l
    where l.worker_id in (select id from dead_workers)
        or (l.worker_id = any($1::int[]) and not exists (select 1 from flyball.worker w where w.id = l.worker_id and w.stopped_at is null))
    returning l.*
),
"
);

// The leases of remote workers end by themselves, one by one.
pub(super) const RESCUE_EXPIRED: &str = rescue!(
    "
with dead_workers as (
    select null::int as id, null::text as role, null::text as host, null::int as pid, null::timestamptz as started_at,
        null::timestamptz as heartbeat_at, null::interval as ttl
    where false
),
lost as (
    delete from flyball.lease l where l.broker_id is not null and l.expires_at < clock_timestamp() returning l.*
),
"
);

pub(super) const DEAD_WORKERS: &str = "
select id from flyball.worker
where not rescued and (stopped_at is not null or heartbeat_at + ttl < clock_timestamp())";

// A claim in flight while its worker was declared dead leaves a lease behind that no rescue sweeps
// any more; so does a lease that was restored from a backup without its worker. A worker that has
// just signed off is about to hand its jobs back.
pub(super) const ORPHANED: &str = "
select distinct l.worker_id from flyball.lease l
where not exists (select 1 from flyball.worker w where w.id = l.worker_id and (
    w.stopped_at is null or not w.rescued or w.stopped_at > clock_timestamp() - interval '10 seconds'))";

impl Queue {
    /// Marks workers whose time to live has passed, and gives their jobs back.
    pub async fn rescue(&self) -> Result<Rescued, Error> {
        let dead: Vec<i32> = sqlx::query_scalar(DEAD_WORKERS)
            .fetch_all(&self.pool)
            .await?;
        self.sweep(dead).await
    }

    /// Gives back jobs that are leased to workers that are unknown or already rescued.
    ///
    /// It reads all leases.
    pub async fn rescue_orphans(&self) -> Result<Rescued, Error> {
        let dead: Vec<i32> = sqlx::query_scalar(ORPHANED).fetch_all(&self.pool).await?;
        self.sweep(dead).await
    }

    async fn sweep(&self, dead: Vec<i32>) -> Result<Rescued, Error> {
        if dead.is_empty() {
            return Ok(Rescued::default());
        }
        let row = sqlx::query(RESCUE).bind(dead).fetch_one(&self.pool).await?;
        Ok(rescued(&row))
    }

    /// Gives back the jobs of remote workers whose leases have expired.
    pub async fn rescue_expired(&self) -> Result<Rescued, Error> {
        let row = sqlx::query(RESCUE_EXPIRED).fetch_one(&self.pool).await?;
        Ok(rescued(&row))
    }
}

fn rescued(row: &PgRow) -> Rescued {
    let missing: Vec<i64> = row.get("missing");
    if !missing.is_empty() {
        tracing::error!(jobs = ?missing, "dead workers held jobs that no longer exist in flyball.job");
    }
    Rescued {
        workers: row.get("workers"),
        ready: row.get("ready"),
        dead: row.get("dead"),
        dead_kinds: row.get("dead_kinds"),
        lanes: row.get("lanes"),
        missing,
    }
}
