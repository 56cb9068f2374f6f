//! Lanes of a throttle from the directory, deepest first or in the order of their keys.
//!
//! A page is a part of an index.

use jiff_sqlx::Timestamp;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::Queue;
use crate::jobs::record::{LaneDepth, LanePage, LanesAfter};
use crate::jobs::{Error, record};

// The oldest ready job of a lane is the smallest of its four heads: four probes of an index and one
// of a primary key. One that was enqueued for later waits from then on; one that was let run before
// that time, from its creation.
macro_rules! lanes {
    ($which:literal, $order:literal) => {
        concat!(
            "
select l.lane_id, l.key, l.depth, l.weight::float8 as weight, l.first_seen, greatest(l.depth_at, s.lanes_at) as counted_at,
    j.created_at as oldest_at, greatest(j.created_at, case when j.run_at <= clock_timestamp() then j.run_at end) as oldest_due_at
from (
    select * from flyball.lane d
    where d.throttle = $1",
            $which,
            ") l
left join flyball.sweep s on s.one
left join lateral (
    select min(h.job_id) as job_id
    from generate_series(0, 3) p
    cross join lateral (
        select r.job_id from flyball.ready r
        where r.lane_id = l.lane_id and r.priority = p::smallint
        order by r.lane_id, r.priority, r.job_id
        limit 1
    ) h
) o on true
left join lateral (select created_at, run_at from flyball.job where id = o.job_id limit 1) j on true
",
            $order
        )
    };
}

pub(super) const DEEPEST: &str = lanes!(
    " and d.depth > 0 and (d.depth, d.lane_id) < ($2, $3)
    order by d.depth desc, d.lane_id desc
    limit $4",
    "order by l.depth desc, l.lane_id desc"
);

pub(super) const BY_KEY: &str = lanes!(
    " and d.key > $2
    order by d.key
    limit $3",
    "order by l.key"
);

pub(super) const BY_KEY_FIRST: &str = lanes!(
    "
    order by d.key
    limit $2",
    "order by l.key"
);

// The key selects the lane, not its id: with a choice of two indexes a planner may read all lanes
// of the throttle.
pub(super) const ONE_KEY: &str = lanes!(" and d.key = $2", "limit 1");

impl Queue {
    /// Returns a page of a throttle's lanes, at most `limit` of them, 1 to 1000.
    pub async fn lanes_of(
        &self,
        throttle: &str,
        after: &LanesAfter,
        limit: i64,
    ) -> Result<LanePage, Error> {
        let limit = limit.clamp(1, 1000);
        let requested = match after {
            LanesAfter::Depth { depth, lane_id } => sqlx::query(DEEPEST)
                .bind(throttle)
                .bind(depth)
                .bind(lane_id)
                .bind(limit),
            LanesAfter::Key(Some(key)) => sqlx::query(BY_KEY).bind(throttle).bind(key).bind(limit),
            LanesAfter::Key(None) => sqlx::query(BY_KEY_FIRST).bind(throttle).bind(limit),
        };
        let lanes: Vec<LaneDepth> = requested
            .fetch_all(&self.pool)
            .await?
            .iter()
            .map(lane)
            .collect::<Result<_, _>>()?;
        let is_full = lanes.len() as i64 >= limit;
        let next = lanes.last().filter(|_| is_full).map(|last| match after {
            LanesAfter::Depth { .. } => LanesAfter::Depth {
                depth: last.depth,
                lane_id: last.lane_id,
            },
            LanesAfter::Key(_) => LanesAfter::Key(Some(last.key.clone())),
        });
        Ok(LanePage { lanes, next })
    }

    /// Returns one lane of the directory; `None` if it has not been seen yet.
    pub async fn lane_of(&self, throttle: &str, key: &str) -> Result<Option<LaneDepth>, Error> {
        let row = sqlx::query(ONE_KEY)
            .bind(throttle)
            .bind(key)
            .fetch_optional(&self.pool)
            .await?;
        Ok(row.as_ref().map(lane).transpose()?)
    }
}

fn lane(row: &PgRow) -> Result<LaneDepth, sqlx::Error> {
    let moment = |column: &str| {
        Ok::<_, sqlx::Error>(
            row.try_get::<Option<Timestamp>, _>(column)?
                .map(|at| at.to_jiff()),
        )
    };
    Ok(record::LaneDepth {
        lane_id: row.try_get("lane_id")?,
        key: row.try_get("key")?,
        depth: row.try_get("depth")?,
        counted_at: moment("counted_at")?,
        oldest_at: moment("oldest_at")?,
        oldest_due_at: moment("oldest_due_at")?,
        weight: row.try_get("weight")?,
        first_seen: row.try_get::<Timestamp, _>("first_seen")?.to_jiff(),
    })
}
