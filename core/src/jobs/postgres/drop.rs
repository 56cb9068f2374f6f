//! Dropping: jobs over the limit of a throttle that drops end without having run.

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::Queue;
use super::claim::place_columns;
use crate::jobs::{Error, LaneCursor};

/// The most jobs of a lane that one statement drops.
const MAX_JOBS_DROPPED: i32 = 1000;

// A job that is being claimed at that moment goes to the claim. The attempt that the job waited for
// is not used. A unique key that a producer has locked is about to pass to another job and is left
// alone.
macro_rules! drop_jobs {
    ($picked:literal) => {
        concat!(
            $picked,
            "
dropped as (
    delete from flyball.ready
    where ctid = any(array(select tid from picked))
    returning job_id, attempt, holds_unique
),
history as (
    insert into flyball.attempt (job_id, attempt, outcome, worker_id, error)
    select job_id, attempt, 'dropped', $1, 'dropped: over the limit of its throttle' from dropped
),
released_keys as (
    delete from flyball.unique_holder
    where digest = any(array(
        select u.digest from flyball.unique_holder u
        where u.expires_at is null and u.job_id = any(array(select job_id from dropped where holds_unique))
        for update skip locked
    ))
)
select j.kind, count(*) as jobs
from flyball.job j
where j.id = any(array(select job_id from dropped))
    and j.id >= (select min(job_id) from dropped) and j.id <= (select max(job_id) from dropped)
group by j.kind"
        )
    };
}

pub(super) const DROP_READY: &str = drop_jobs!(
    "
with picked as materialized (
    select r.tid
    from unnest($2::bigint[]) as l(lane_id)
    cross join lateral (
        select q.ctid as tid
        from flyball.ready q
        where q.lane_id = l.lane_id and q.job_id <= $3
        order by q.lane_id, q.priority, q.job_id
        limit $4
        for update skip locked
    ) r
),"
);

// Drops jobs that were looked at before, except those that another worker has taken since.
pub(super) const DROP_LOOKED_AT: &str = drop_jobs!(
    "
with picked as materialized (
    select r.tid
    from unnest($2::bigint[], $3::smallint[], $4::bigint[]) as l(lane_id, priority, job_id)
    cross join lateral (
        select q.ctid as tid
        from flyball.ready q
        where q.lane_id = l.lane_id and q.priority = l.priority and q.job_id = l.job_id
        for update skip locked
    ) r
),"
);

impl Queue {
    /// Drops ready jobs of these lanes that are no newer than `newest`, on behalf of a worker;
    /// returns their number by kind.
    ///
    /// There may be more; an empty answer means that there are none.
    pub async fn drop_ready(
        &self,
        worker_id: i32,
        lanes: &[i64],
        newest: i64,
    ) -> Result<Vec<(String, u64)>, Error> {
        let rows = sqlx::query(DROP_READY)
            .bind(worker_id)
            .bind(lanes)
            .bind(newest)
            .bind(MAX_JOBS_DROPPED)
            .fetch_all(&self.pool)
            .await?;
        by_kind(&rows)
    }

    /// Drops these ready jobs, except those that another worker has taken since they were looked
    /// at, on behalf of a worker; returns their number by kind.
    pub async fn drop_looked_at(
        &self,
        worker_id: i32,
        places: &[(i64, LaneCursor)],
    ) -> Result<Vec<(String, u64)>, Error> {
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let (lanes, priorities, jobs) = place_columns(places);
        let rows = sqlx::query(DROP_LOOKED_AT)
            .bind(worker_id)
            .bind(lanes)
            .bind(priorities)
            .bind(jobs)
            .fetch_all(&self.pool)
            .await?;
        by_kind(&rows)
    }
}

fn by_kind(rows: &[PgRow]) -> Result<Vec<(String, u64)>, Error> {
    rows.iter()
        .map(|row| {
            Ok((
                row.try_get("kind")?,
                row.try_get::<i64, _>("jobs")?.unsigned_abs(),
            ))
        })
        .collect()
}
