//! Claiming: one statement takes exactly the granted number of jobs from many lanes.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff_sqlx::Timestamp;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::Queue;
use super::read::waits;
use crate::jobs::{Claimed, Error, Job, LaneClaim, LaneCursor};
use crate::postgres::Columns;

/// The result of a claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The claimed jobs, most urgent first.
    pub jobs: Vec<Claimed>,
    /// The lanes that were checked and hold no other job behind those taken.
    pub dry: Vec<i64>,
    /// The ids of claimed jobs that are no longer in `flyball.job`; their leases were ended.
    pub missing: Vec<i64>,
}

// The columns by which a claimed job is read.
macro_rules! read_jobs {
    () => {
        "select j.id, j.lane_id, null::smallint as used, j.priority, j.cost, j.kind, j.args, j.throttle, j.key, j.max_attempts, j.created_at,
    j.timeout_s, j.traceparent, j.retry
from flyball.job j
"
    };
}

// `for update skip locked` keeps two dispatchers of one lane from taking the same row; both CTEs
// are materialized because an inlined one could be evaluated twice and then lock more rows than
// were granted. `ready_lane` serves the probe. A worker that was declared dead without knowing it
// yet (it slept, or its connection did) gets nothing.
//
// The jobs are read by one scan over the sorted ids of the few days that the batch spans, not by a
// probe per job that would open every day's table. The days that a claim may read are parameters,
// because Postgres opens the tables of all days otherwise; ids of other days are returned alone, and
// their jobs are read afterwards. The attempts, which the job's own row does not hold, follow as rows
// of their own, and only those above 0, because most jobs run once. Rows without an id report the
// lanes that were checked, and one of them the number of jobs taken, so that no missing job goes
// unnoticed. A row with -1 names a job to be cancelled: cancellation was requested while it ran, and
// its attempt failed at the same moment. One with -2 names a job of another day.
//
// Most lanes of a large fleet hold one job or two: a second look in the same statement costs a
// fraction of a claim for a job that does not exist. It is an ordered probe with a limit, because
// `exists` may be answered from a hash of all of `ready`.
macro_rules! claim {
    ($picked:literal, $first_id:literal, $last_id:literal, $look:literal) => {
        concat!(
            $picked,
            "
removed as (
    delete from flyball.ready
    where ctid = any(array(select tid from picked))
    returning *
),
leased as (
    insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost, holds_unique, claimed_at)
    select job_id, $3, $4, lane_id, priority, attempt + 1, cost, holds_unique, now()
    from removed
)
",
            read_jobs!(),
            "where j.id = any(array(select job_id from removed))
    and j.id >= (select min(job_id) from removed) and j.id <= (select max(job_id) from removed)
    and j.id >= ",
            $first_id,
            " and j.id <= ",
            $last_id,
            "
union all
select job_id, null, -2::smallint, null, null, null, null, null, null, null, null, null, null, null
from removed
where job_id < ",
            $first_id,
            " or job_id > ",
            $last_id,
            "
union all
select job_id, lane_id, attempt, null, null, null, null, null, null, null, null, null, null, null
from removed
where attempt > 0",
            $look,
            "
union all
select null, count(*), -1::smallint, null, null, null, null, null, null, null, null, null, null, null
from removed
union all
select c.job_id, null, -1::smallint, null, null, null, null, null, null, null, null, null, null, null
from flyball.cancel c
where c.job_id = any(array(select job_id from removed))"
        )
    };
}

pub(super) const CLAIM: &str = claim!(
    "
with requested as materialized (
    select * from unnest($1::bigint[], $2::int[], $5::smallint[], $6::bigint[], $7::bool[])
        as a(lane_id, jobs, priority, job_id, look)
    where exists (
        select 1 from flyball.worker w where w.id = $4 and w.stopped_at is null and w.heartbeat_at + w.ttl > clock_timestamp()
    )
),
picked as materialized (
    select r.tid, a.look, a.lane_id, r.priority, r.job_id
    from requested a
    cross join lateral (
        select q.ctid as tid, q.priority, q.job_id
        from flyball.ready q
        where q.lane_id = a.lane_id and (q.priority, q.job_id) > (a.priority, a.job_id)
        order by q.lane_id, q.priority, q.job_id
        limit a.jobs
        for update skip locked
    ) r
),",
    "$8",
    "$9",
    "
union all
select null, p.lane_id, coalesce((
        select 1 from flyball.ready q where q.lane_id = p.lane_id and (q.priority, q.job_id) > (p.priority, p.job_id)
        order by q.lane_id, q.priority, q.job_id limit 1
    ), 0)::smallint, null, null, null, null, null, null, null, null, null, null, null
from (
    select distinct on (lane_id) lane_id, priority, job_id
    from picked
    where look
    order by lane_id, priority desc, job_id desc
) p"
);

// Takes jobs that were looked at before, and skips those that another worker has taken since.
pub(super) const CLAIM_LOOKED_AT: &str = claim!(
    "
with requested as materialized (
    select * from unnest($1::bigint[], $2::smallint[], $5::bigint[]) as a(lane_id, priority, job_id)
    where exists (
        select 1 from flyball.worker w where w.id = $4 and w.stopped_at is null and w.heartbeat_at + w.ttl > clock_timestamp()
    )
),
picked as materialized (
    select r.tid
    from requested a
    cross join lateral (
        select q.ctid as tid
        from flyball.ready q
        where q.lane_id = a.lane_id and q.priority = a.priority and q.job_id = a.job_id
        for update skip locked
    ) r
),",
    "$6",
    "$7",
    ""
);

// Reads jobs of other days than the claim did.
pub(super) const READ_CLAIMED: &str = concat!(
    "
",
    read_jobs!(),
    "where j.id = any($1) and j.id >= $2 and j.id <= $3"
);

// A lease whose job is in no day can end in no other way: handed back, it would be claimed again
// for ever. The history has no place for it either, so it is recorded among the recent failures.
// The statement reads all leases, which hardly ever happens.
pub(super) const END_MISSING: &str = "
with missing as (
    delete from flyball.lease l
    where l.worker_id = $1 and l.fence = $2 and (select 1 from flyball.job j where j.id = l.job_id limit 1) is null
    returning l.job_id, l.attempt, l.holds_unique
),
failures as (
    insert into flyball.failure (job_id, attempt, outcome, error)
    select job_id, attempt, 'lost', 'it was claimed, and the job is not in flyball.job any more' from missing
),
released_keys as (
    delete from flyball.unique_holder
    where digest = any(array(
        select u.digest from flyball.unique_holder u
        where u.expires_at is null and u.job_id = any(array(select job_id from missing where holds_unique))
        for update skip locked
    ))
)
select job_id from missing";

impl Queue {
    /// Claims up to the requested number of jobs of each lane under a lease of `worker_id`, fenced
    /// by `fence`; returns the most urgent first.
    pub async fn claim(
        &self,
        worker_id: i32,
        fence: i64,
        lanes: &[LaneClaim],
    ) -> Result<Vec<Claimed>, Error> {
        Ok(self.claim_and_look(worker_id, fence, lanes).await?.jobs)
    }

    /// Claims jobs like [`Queue::claim`], and also reports checked lanes without another job and
    /// jobs that are missing.
    pub async fn claim_and_look(
        &self,
        worker_id: i32,
        fence: i64,
        lanes: &[LaneClaim],
    ) -> Result<Batch, Error> {
        let ids: Vec<i64> = lanes.iter().map(|lane| lane.lane_id).collect();
        let counts: Vec<i32> = lanes.iter().map(|lane| lane.jobs).collect();
        let priorities: Vec<i16> = lanes.iter().map(|lane| lane.after.priority).collect();
        let after: Vec<i64> = lanes.iter().map(|lane| lane.after.job_id).collect();
        let looks: Vec<bool> = lanes.iter().map(|lane| lane.look).collect();
        let (first_id, last_id) = self.claimed_days.lock().ids();
        let requested = sqlx::query(CLAIM)
            .bind(ids)
            .bind(counts)
            .bind(fence)
            .bind(worker_id)
            .bind(priorities)
            .bind(after)
            .bind(looks)
            .bind(first_id)
            .bind(last_id);
        let rows = requested.fetch_all(&self.pool).await?;
        self.batch(&rows, worker_id, fence).await
    }

    /// Claims these jobs, except those that another worker has taken since they were looked at.
    pub async fn claim_looked_at(
        &self,
        worker_id: i32,
        fence: i64,
        places: &[(i64, LaneCursor)],
    ) -> Result<Batch, Error> {
        if places.is_empty() {
            return Ok(Batch::default());
        }
        let (lanes, priorities, jobs) = place_columns(places);
        let (first_id, last_id) = span(jobs.iter().copied()).unwrap_or_default();
        let requested = sqlx::query(CLAIM_LOOKED_AT)
            .bind(lanes)
            .bind(priorities)
            .bind(fence)
            .bind(worker_id)
            .bind(jobs)
            .bind(first_id)
            .bind(last_id);
        let rows = requested.fetch_all(&self.pool).await?;
        self.batch(&rows, worker_id, fence).await
    }

    async fn batch(&self, rows: &[PgRow], worker_id: i32, fence: i64) -> Result<Batch, Error> {
        let mut claimed = Vec::with_capacity(rows.len());
        let mut dry = Vec::new();
        let mut used: HashMap<i64, i16> = HashMap::new();
        let mut cancelled: HashSet<i64> = HashSet::new();
        let mut elsewhere: Vec<i64> = Vec::new();
        let mut taken = 0_i64;
        for row in rows {
            let Some(id) = row.try_get(0)? else {
                match row.try_get::<i16, _>(2)? {
                    0 => dry.push(row.try_get(1)?),
                    ..0 => taken = row.try_get(1)?,
                    _ => {}
                }
                continue;
            };
            match row.try_get::<Option<i16>, _>(2)? {
                Some(-2) => elsewhere.push(id),
                Some(..0) => _ = cancelled.insert(id),
                Some(attempts) => _ = used.insert(id, attempts),
                None => claimed.push(read(row, id, row.try_get(1)?, fence)),
            }
        }
        if let Some((first_id, last_id)) = span(elsewhere.iter().copied()) {
            let rows = sqlx::query(READ_CLAIMED)
                .bind(elsewhere)
                .bind(first_id)
                .bind(last_id)
                .fetch_all(&self.pool)
                .await?;
            for row in &rows {
                claimed.push(read(row, row.try_get(0)?, row.try_get(1)?, fence));
            }
        }
        if let Some((first_id, last_id)) = span(claimed.iter().map(|one| one.job.id)) {
            self.claimed_days.lock().note(first_id, last_id);
        }
        for one in &mut claimed {
            one.job.attempt += used.get(&one.job.id).copied().map_or(0, i32::from);
            one.cancelled = cancelled.contains(&one.job.id);
        }
        claimed.sort_by_key(|one| (one.job.priority, one.job.id));
        let missing = match taken > claimed.len() as i64 {
            true => self.end_missing(worker_id, fence).await?,
            false => Vec::new(),
        };
        Ok(Batch {
            jobs: claimed,
            dry,
            missing,
        })
    }

    async fn end_missing(&self, worker_id: i32, fence: i64) -> Result<Vec<i64>, Error> {
        let missing: Vec<i64> = sqlx::query_scalar(END_MISSING)
            .bind(worker_id)
            .bind(fence)
            .fetch_all(&self.pool)
            .await?;
        tracing::error!(jobs = ?missing, "claimed jobs that no longer exist in flyball.job; they ended as lost");
        Ok(missing)
    }
}

/// Reads a claimed job, with defaults for unreadable columns.
///
/// The job is leased from now on, so an unreadable column must hide neither the job nor its
/// neighbours.
fn read(row: &PgRow, id: i64, lane_id: i64, fence: i64) -> Claimed {
    let mut columns = Columns::of(row);
    let job = Job {
        id,
        kind: columns.get(5),
        args: columns.json(6),
        throttle: columns.get(7),
        key: columns.get(8),
        priority: columns.get::<i16>(3).into(),
        attempt: 1,
        max_attempts: columns.get::<i16>(9).into(),
        cost: columns.get(4),
        fence,
        created_at: columns
            .get::<Option<Timestamp>>(10)
            .map(Timestamp::to_jiff)
            .unwrap_or_default(),
        timeout: columns
            .get::<Option<f32>>(11)
            .and_then(|seconds| Duration::try_from_secs_f32(seconds).ok()),
        traceparent: columns.get(12),
        retry: waits(columns.get(13)),
    };
    Claimed {
        lane_id,
        job,
        unreadable: columns.unreadable(),
        cancelled: false,
    }
}

/// Returns the least and the greatest of these ids; `None` if there are none.
fn span(ids: impl Iterator<Item = i64> + Clone) -> Option<(i64, i64)> {
    ids.clone().min().zip(ids.max())
}

/// Returns the lanes, priorities and jobs of places.
pub(super) fn place_columns(places: &[(i64, LaneCursor)]) -> (Vec<i64>, Vec<i16>, Vec<i64>) {
    let lanes = places.iter().map(|(lane, _)| *lane).collect();
    let priorities = places.iter().map(|(_, place)| place.priority).collect();
    let jobs = places.iter().map(|(_, place)| place.job_id).collect();
    (lanes, priorities, jobs)
}
