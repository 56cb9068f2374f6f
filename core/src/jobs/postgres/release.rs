//! Release: messages that wait for admission move to the lanes of their own throttles.

use std::collections::HashMap;

use sqlx::Row;

use super::Queue;
use crate::jobs::{Error, LaneClaim, LaneCursor};

/// The most urgent messages of a lane that are counted.
const URGENT_MAX: i64 = 500;

// A message is in one lane at any time: it leaves its admission lane and enters its own in one
// statement. `skip locked` and the materialized picks are as in a claim: two workers never release
// the same message, and no more are released than were granted. A worker that was declared dead
// without knowing it releases nothing. The most urgent goes first, then the oldest; other than in a
// lane of jobs, no lower priority gets a turn in between. The own lanes are named to all workers,
// because the releasing process need not be the one that serves them.
pub(super) const RELEASE: &str = "
with requested as materialized (
    select * from unnest($1::bigint[], $2::int[]) as a(lane_id, jobs)
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
        where q.lane_id = a.lane_id and q.priority <= $3
        order by q.lane_id, q.priority, q.job_id
        limit a.jobs
        for update skip locked
    ) r
),
removed as (
    delete from flyball.ready
    where ctid = any(array(select tid from picked))
    returning *
),
own as materialized (
    select t.*, j.lane_id as own_lane
    from removed t
    cross join lateral (select lane_id from flyball.job where id = t.job_id limit 1) j
),
moved as (
    insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
    select own_lane, priority, job_id, attempt, cost, holds_unique from own
    on conflict do nothing
),
lanes as (
    select own_lane, row_number() over (order by own_lane) / 370 as page from own group by own_lane
),
notified_lanes as (
    select pg_notify('flyball', string_agg(own_lane::text, ',' order by own_lane)) from lanes group by page
)
select lane_id, priority, job_id, own_lane, (select count(*) from notified_lanes) as notified_lanes from own order by priority, job_id";

pub(super) const URGENT: &str = "
select a.lane_id, u.jobs
from unnest($1::bigint[]) as a(lane_id)
cross join lateral (
    select count(*) as jobs
    from (select from flyball.ready r where r.lane_id = a.lane_id and r.priority = 0 limit $2) as page
) u
where u.jobs > 0";

/// The messages that were released.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Released {
    /// The places that they had, by admission lane.
    pub places: HashMap<i64, Vec<LaneCursor>>,
    /// The lanes that they are in now; one may be named several times.
    pub own_lanes: Vec<i64>,
}

impl Queue {
    /// Releases the first messages of admission lanes to their own lanes, on behalf of a worker, as
    /// many as the claims state; with `only_urgent` only those of priority 0.
    pub async fn release(
        &self,
        worker_id: i32,
        lanes: &[LaneClaim],
        only_urgent: bool,
    ) -> Result<Released, Error> {
        let ids: Vec<i64> = lanes.iter().map(|lane| lane.lane_id).collect();
        let counts: Vec<i32> = lanes.iter().map(|lane| lane.jobs).collect();
        let lowest: i16 = if only_urgent { 0 } else { 3 };
        let rows = sqlx::query(RELEASE)
            .bind(ids)
            .bind(counts)
            .bind(lowest)
            .bind(worker_id)
            .fetch_all(&self.pool)
            .await?;
        let mut released = Released::default();
        for row in &rows {
            let place = LaneCursor {
                priority: row.try_get(1)?,
                job_id: row.try_get(2)?,
            };
            released
                .places
                .entry(row.try_get(0)?)
                .or_default()
                .push(place);
            released.own_lanes.push(row.try_get(3)?);
        }
        Ok(released)
    }

    /// Returns the admission lanes that hold messages of priority 0, with their number, counted up
    /// to a few hundred.
    pub async fn urgent_in(&self, lanes: &[i64]) -> Result<Vec<(i64, i64)>, Error> {
        Ok(sqlx::query_as(URGENT)
            .bind(lanes)
            .bind(URGENT_MAX)
            .fetch_all(&self.pool)
            .await?)
    }
}
