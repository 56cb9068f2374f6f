//! Claiming: taking exactly what was granted, from many lanes, in one statement.

use jiff_sqlx::Timestamp;
use sqlx::Row;

use super::Queue;
use crate::jobs::{Error, Job};

/// How many jobs to take from one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneClaim {
    /// The lane.
    pub lane_id: i64,
    /// At most so many, oldest first within a priority.
    pub jobs: i32,
}

/// A job that this worker holds now.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// The lane it came from.
    pub lane_id: i64,
    /// The job.
    pub job: Job,
}

// `for update skip locked` keeps two dispatchers of one lane from taking the same row; both CTEs are materialized because
// an inlined one could be evaluated twice and then lock more rows than were granted. `ready_lane` serves the probe. A worker
// that was taken for dead without knowing it yet (it slept, or its connection did) gets nothing.
pub(super) const CLAIM: &str = "
with asked as materialized (
    select * from unnest($1::bigint[], $2::int[]) as a(lane_id, jobs)
    where exists (
        select 1 from flyball.worker w where w.id = $4 and w.stopped_at is null and w.heartbeat_at + w.ttl > clock_timestamp()
    )
),
picked as materialized (
    select r.tid
    from asked a
    cross join lateral (
        select ctid as tid
        from flyball.ready q
        where q.lane_id = a.lane_id
        order by q.lane_id, q.priority, q.job_id
        limit a.jobs
        for update skip locked
    ) r
),
taken as (
    delete from flyball.ready
    where ctid = any(array(select tid from picked))
    returning *
),
leased as (
    insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost)
    select job_id, $3, $4, lane_id, priority, attempt + 1, cost
    from taken
    returning job_id, lane_id, priority, attempt, cost
)
select j.id, l.lane_id, l.attempt, l.cost, j.kind, j.args, j.throttle, j.key, j.max_attempts, j.created_at
from leased l
cross join lateral (
    select * from flyball.job where id = l.job_id limit 1
) j
order by l.priority, j.id";

impl Queue {
    /// Takes up to the asked number of jobs of each lane under a lease of `worker_id` fenced by `fence`.
    pub async fn claim(&self, worker_id: i32, fence: i64, lanes: &[LaneClaim]) -> Result<Vec<Claimed>, Error> {
        let ids: Vec<i64> = lanes.iter().map(|lane| lane.lane_id).collect();
        let counts: Vec<i32> = lanes.iter().map(|lane| lane.jobs).collect();
        let rows = sqlx::query(CLAIM).bind(ids).bind(counts).bind(fence).bind(worker_id).fetch_all(&self.pool).await?;
        rows.iter()
            .map(|row| {
                Ok(Claimed {
                    lane_id: row.try_get("lane_id")?,
                    job: Job {
                        id: row.try_get("id")?,
                        kind: row.try_get("kind")?,
                        args: row.try_get("args")?,
                        throttle: row.try_get("throttle")?,
                        key: row.try_get("key")?,
                        attempt: row.try_get::<i16, _>("attempt")?.into(),
                        max_attempts: row.try_get::<i16, _>("max_attempts")?.into(),
                        cost: row.try_get("cost")?,
                        fence,
                        created_at: row.try_get::<Timestamp, _>("created_at")?.to_jiff(),
                    },
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .map_err(Error::from)
    }
}
