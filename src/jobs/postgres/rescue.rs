//! Rescue: what a dead worker held goes back to its lanes, so that limits still hold.

use sqlx::Row;

use super::Queue;
use crate::jobs::Error;

/// What one rescue found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rescued {
    /// Workers that were found dead.
    pub workers: i64,
    /// Jobs that are ready again.
    pub ready: Vec<i64>,
    /// Jobs that had no attempt left.
    pub dead: Vec<i64>,
}

// Only the server's clock counts. The worker's row is marked, never deleted, while leases may name it. A lost attempt counts,
// so that a job which kills its worker cannot do so for ever; but one that had left a checkpoint was getting on, and does not.
// A worker without a row (its row was pruned, or the lease was restored from a backup) is as dead as one that stopped.
pub(super) const RESCUE: &str = "
with gone as (
    update flyball.worker
    set stopped_at = clock_timestamp()
    where stopped_at is null and heartbeat_at + ttl < clock_timestamp()
    returning id
),
lost as (
    delete from flyball.lease l
    where l.worker_id in (select id from gone)
        or not exists (select 1 from flyball.worker w where w.id = l.worker_id and w.stopped_at is null)
    returning l.*
),
judged as (
    select l.*, j.max_attempts, coalesce(c.updated_at > l.claimed_at, false) as got_on,
        exists (select 1 from flyball.cancel x where x.job_id = l.job_id) as cancelled
    from lost l
    join flyball.job j on j.id = l.job_id
    left join flyball.checkpoint c on c.job_id = l.job_id
),
sorted as (
    select *, case when got_on then attempt - 1 else attempt end as used,
        not cancelled and not got_on and attempt >= max_attempts as over
    from judged
),
stopped as (
    delete from flyball.cancel c using sorted s where c.job_id = s.job_id
),
history as (
    insert into flyball.attempt (job_id, attempt, outcome, worker_id, started_at, error)
    select job_id, attempt, (case when cancelled then 'cancelled' else 'lost' end)::flyball.outcome, worker_id, claimed_at,
        'the worker died or lost its connection'
    from sorted
),
trouble as (
    insert into flyball.failure (job_id, attempt, outcome, error)
    select job_id, attempt, 'lost', 'the worker died or lost its connection' from sorted where not cancelled
),
buried as (
    insert into flyball.dead (job_id, lane_id, priority, attempt, cost, error)
    select job_id, lane_id, priority, attempt, cost, 'the worker died in the last attempt that was left'
    from sorted where over
    on conflict do nothing
),
freed as (
    delete from flyball.uniq u using sorted s where u.job_id = s.job_id and u.expires_at is null and (s.over or s.cancelled)
),
again as (
    insert into flyball.ready (lane_id, priority, job_id, attempt, cost)
    select lane_id, priority, job_id, used, cost from sorted where not over and not cancelled
    on conflict do nothing
)
select (select count(*) from gone) as workers,
    coalesce((select array_agg(job_id) from sorted where not over and not cancelled), '{}') as ready,
    coalesce((select array_agg(job_id) from sorted where over), '{}') as dead";

impl Queue {
    /// Marks workers whose time to live has passed, and gives their jobs back.
    pub async fn rescue(&self) -> Result<Rescued, Error> {
        let row = sqlx::query(RESCUE).fetch_one(&self.pool).await?;
        Ok(Rescued { workers: row.get("workers"), ready: row.get("ready"), dead: row.get("dead") })
    }
}
