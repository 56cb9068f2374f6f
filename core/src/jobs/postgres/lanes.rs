//! Discovery of lanes with ready jobs, without work on the path of enqueue.
//!
//! A sweep reads the index of `ready` in bounded slices, entry by entry where lanes are short and
//! one probe per lane where they are long; it finds every lane sooner or later. Arrivals are read
//! from the end of the append-only `job`; they find a new lane at once, but miss jobs that commit
//! late.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use sqlx::Row;

use super::Queue;
use crate::jobs::{Error, ReadyLane, ReadyPriorities};

/// The most pairs of lane and priority of one slice of a sweep, so that it takes only some
/// milliseconds.
const SLICE: i64 = 500;

/// The most entries that one slice reads before it hops. Ten take about as long as a hop.
const READ: i64 = 1000;

/// The number of lanes from which on those in the directory are read by a statement of their own. It
/// takes some two thirds of the time of the other one.
const MANY: usize = 50;

/// The most new jobs that one read returns, oldest first; the others are left to the next read and
/// the sweep.
const MAX_ARRIVALS: i64 = 20_000;

/// One slice of a sweep.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slice {
    /// The lanes with ready jobs, in the order of their ids.
    pub lanes: Vec<ReadyPriorities>,
    /// The beginning of the next slice; `None` at the end of the range.
    pub next: Option<i64>,
}

/// The lanes of new jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrivals {
    /// The lanes whose new jobs may run now.
    pub lanes: Vec<ReadyPriorities>,
    /// The newest job that was read, behind which the next read begins.
    pub last: i64,
}

// The first entries are read one by one, which is cheaper where lanes are short; from there on one
// index probe per pair of lane and priority, however many jobs each holds.
pub(super) const SWEEP: &str = "
with recursive near as materialized (
    select distinct on (r.lane_id, r.priority) r.lane_id, r.priority, r.job_id
    from (
        select lane_id, priority, job_id from flyball.ready where lane_id >= $1 and lane_id <= $2
        order by lane_id, priority, job_id limit $4
    ) r
    order by r.lane_id, r.priority, r.job_id
),
hop as (
    (select lane_id, priority, job_id from near order by lane_id desc, priority desc limit 1)
    union all
    (select n.lane_id, n.priority, n.job_id
     from hop h
     cross join lateral (
        select r.lane_id, r.priority, r.job_id from flyball.ready r
        where (r.lane_id, r.priority) > (h.lane_id, h.priority) and r.lane_id <= $2
        order by r.lane_id, r.priority, r.job_id limit 1
     ) n)
)
select lane_id, priority, job_id
from (select * from near union all (select * from hop offset 1)) found
limit $3";

pub(super) const ARRIVALS: &str = "
select lane_id, bit_or(1 << priority) as priorities, max(id) as last, bool_or(run_at is null or run_at <= now()) as due,
    min(id) as head
from (
    select id, coalesce(admission_lane, lane_id) as lane_id, priority, run_at from flyball.job where id > $1 order by id limit $2
) as fresh
group by lane_id";

// A producer writes, and so is listed until it commits.
pub(super) const WRITING: &str =
    "select x::text::bigint from pg_snapshot_xip(pg_current_snapshot()) as x limit 10000";

// The newest days are read first; an ordered scan over the partitions stops at the first row.
pub(super) const NEWEST_JOB_ID: &str = "select id from flyball.job order by id desc limit 1";

pub(super) const KNOWN: &str =
    "select lane_id, throttle, key, weight from flyball.lane where lane_id = any($1)";

// A lane that is not in the directory yet is named by its first job. The limits keep each lookup a
// probe.
pub(super) const NAMES: &str = "
select a.lane_id, coalesce(l.throttle, case when j.waits then flyball.admission_throttle(j.tenant) else j.throttle end) as throttle,
    coalesce(l.key, case when j.waits then j.module else j.key end) as key, coalesce(l.weight, 1) as weight,
    l.lane_id is null as fresh
from unnest($1::bigint[]) as a(lane_id)
left join lateral (select lane_id, throttle, key, weight from flyball.lane where lane_id = a.lane_id limit 1) l on true
left join lateral (
    select r.job_id from flyball.ready r
    where l.lane_id is null and r.lane_id = a.lane_id
    order by r.lane_id, r.priority, r.job_id limit 1
) r on true
left join lateral (
    select throttle, key, tenant, module, admission_lane is not distinct from a.lane_id as waits
    from flyball.job where id = r.job_id limit 1
) j on true";

/// The longest wait for a lane that somebody else adds to the directory and has not committed.
const ADOPT_WITHIN: Duration = Duration::from_millis(50);

// A name that the index of lanes cannot hold is left out, or it would fail all others. No interface
// accepts one.
pub(super) const ADOPT: &str = "
insert into flyball.lane (lane_id, throttle, key)
select * from unnest($1::bigint[], $2::text[], $3::text[]) as a(lane_id, throttle, key)
where octet_length(a.throttle) + octet_length(a.key) <= 2000
on conflict do nothing";

pub(super) const WEIGHTS: &str =
    "select lane_id, weight from flyball.lane where weight <> 1 order by lane_id limit 100000";

pub(super) const SLEEP: &str = "
insert into flyball.wakeup as d (one, asleep) values (true, true)
on conflict (one) do update set asleep = true where not d.asleep";

pub(super) const WAKE: &str = "update flyball.wakeup set asleep = false where asleep";

impl Queue {
    /// Returns lanes of a range of ids that hold ready jobs now, beginning with the lowest id; some
    /// hundreds at a time.
    pub async fn sweep_lanes(&self, range: RangeInclusive<i64>) -> Result<Slice, Error> {
        let requested = sqlx::query(SWEEP)
            .bind(range.start())
            .bind(range.end())
            .bind(SLICE)
            .bind(READ);
        let rows = requested.fetch_all(&self.pool).await?;
        let whole = (rows.len() as i64) < SLICE;
        let mut lanes: Vec<ReadyPriorities> = Vec::with_capacity(rows.len());
        for row in &rows {
            let (lane_id, priority, head): (i64, i16, i64) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            match lanes.last_mut() {
                Some(seen) if seen.lane_id == lane_id => seen.priorities |= 1 << priority,
                _ => lanes.push(ReadyPriorities {
                    lane_id,
                    priorities: 1 << priority,
                    head,
                }),
            }
        }
        // The last lane may be cut off between two priorities, so the next slice begins with it
        // again.
        let next = lanes.last().filter(|_| !whole).map(|seen| seen.lane_id);
        Ok(Slice { lanes, next })
    }

    /// Returns the lanes of jobs that are newer than `last`.
    pub async fn arrivals(&self, last: i64) -> Result<Arrivals, Error> {
        let rows = sqlx::query(ARRIVALS)
            .bind(last)
            .bind(MAX_ARRIVALS)
            .fetch_all(&self.pool)
            .await?;
        let mut found = Arrivals {
            lanes: Vec::with_capacity(rows.len()),
            last,
        };
        for row in &rows {
            found.last = found.last.max(row.try_get(2)?);
            if row.try_get(3)? {
                let priorities = row.try_get::<i32, _>(1)? as u8;
                found.lanes.push(ReadyPriorities {
                    lane_id: row.try_get(0)?,
                    priorities,
                    head: row.try_get(4)?,
                });
            }
        }
        Ok(found)
    }

    /// Returns the transactions that have written something and have not ended yet.
    pub async fn writing(&self) -> Result<Vec<i64>, Error> {
        Ok(sqlx::query_scalar(WRITING).fetch_all(&self.pool).await?)
    }

    /// Returns the id of the newest job, 0 if there is none.
    pub async fn newest_job(&self) -> Result<i64, Error> {
        Ok(sqlx::query_scalar(NEWEST_JOB_ID)
            .fetch_optional(&self.pool)
            .await?
            .unwrap_or(0))
    }

    /// Returns the throttles, keys and weights of the lanes, and writes new lanes into the
    /// directory.
    ///
    /// A lane that is not in the directory and has no job left is omitted.
    pub async fn name_lanes(&self, lanes: &[i64]) -> Result<Vec<ReadyLane>, Error> {
        let mut named = Vec::with_capacity(lanes.len());
        let mut unknown = lanes.to_vec();
        if lanes.len() >= MANY {
            for row in sqlx::query(KNOWN).bind(lanes).fetch_all(&self.pool).await? {
                named.push(ReadyLane {
                    lane_id: row.try_get(0)?,
                    throttle: row.try_get(1)?,
                    key: row.try_get(2)?,
                    weight: row.try_get(3)?,
                });
            }
            let known: HashSet<i64> = named.iter().map(|lane| lane.lane_id).collect();
            unknown.retain(|lane| !known.contains(lane));
        }
        if unknown.is_empty() {
            return Ok(named);
        }
        let rows = sqlx::query(NAMES).bind(unknown);
        let rows = rows.fetch_all(&self.pool).await?;
        let (mut ids, mut throttles, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            let (Some(throttle), Some(key)) = (
                row.get::<Option<String>, _>("throttle"),
                row.get::<Option<String>, _>("key"),
            ) else {
                continue;
            };
            let lane = ReadyLane {
                lane_id: row.get("lane_id"),
                throttle,
                key,
                weight: row.get("weight"),
            };
            if row.get("fresh") {
                ids.push(lane.lane_id);
                throttles.push(lane.throttle.clone());
                keys.push(lane.key.clone());
            }
            named.push(lane);
        }
        match self.adopt(&ids, &throttles, &keys).await {
            Err(error) if error.was_locked_out() => {
                let each = ids.chunks(1).zip(throttles.chunks(1)).zip(keys.chunks(1));
                for ((id, throttle), key) in each {
                    match self.adopt(id, throttle, key).await {
                        Err(error) if error.was_locked_out() => {
                            tracing::debug!(%error, "a lane is written into the directory later");
                        }
                        adopted => adopted?,
                    }
                }
            }
            adopted => adopted?,
        }
        Ok(named)
    }

    /// Writes lanes into the directory.
    async fn adopt(&self, ids: &[i64], throttles: &[String], keys: &[String]) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut transaction = self.pool.begin_with_timeout(ADOPT_WITHIN).await?;
        let statement = sqlx::query(ADOPT)
            .persistent(false)
            .bind(ids)
            .bind(throttles)
            .bind(keys);
        let done = statement.execute(&mut *transaction).await;
        Ok(transaction.end(done.map(drop)).await?)
    }

    /// Returns every lane that holds ready jobs now, in the order of their ids.
    ///
    /// It reads all of them: for tests and tools.
    pub async fn ready_lanes(&self) -> Result<Vec<ReadyLane>, Error> {
        let mut ids: Vec<i64> = Vec::new();
        let mut next = Some(i64::MIN);
        while let Some(from) = next {
            let slice = self.sweep_lanes(from..=i64::MAX).await?;
            ids.extend(slice.lanes.iter().map(|seen| seen.lane_id));
            next = slice.next;
        }
        ids.dedup();
        let mut named = self.name_lanes(&ids).await?;
        named.sort_by_key(|lane| lane.lane_id);
        Ok(named)
    }

    /// Returns the weights of the lanes whose weight is not 1.
    pub async fn weights(&self) -> Result<Vec<(i64, f32)>, Error> {
        Ok(sqlx::query_as(WEIGHTS).fetch_all(&self.pool).await?)
    }

    /// Asks producers to notify; called before the last poll that precedes a sleep.
    pub async fn fall_asleep(&self) -> Result<(), Error> {
        sqlx::query(SLEEP).execute(&self.pool).await?;
        Ok(())
    }

    /// Asks producers to stop notifying.
    pub async fn wake_up(&self) -> Result<(), Error> {
        sqlx::query(WAKE).execute(&self.pool).await?;
        Ok(())
    }
}
