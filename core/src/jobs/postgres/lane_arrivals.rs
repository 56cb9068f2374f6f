//! The latest arrivals in lanes: the jobs that were enqueued, or became due, a short time ago and
//! are still ready.

use std::time::Duration;

use super::Queue;
use crate::jobs::Error;

/// The most jobs of a lane and a priority that are read.
const READ_MAX: i64 = 1000;

// The newest ready jobs of each lane, from the end of the index. A job that came back for another
// attempt has an old id and an old time.
pub(super) const LANE_ARRIVALS: &str = "
select l.lane_id, count(*) as jobs, coalesce(sum(n.cost), 0)::float8 as tokens,
    case when bool_or(n.is_last) then extract(epoch from clock_timestamp() - min(n.arrived_at))
        else $2 end::float8 as span_s
from unnest($1::bigint[]) l (lane_id)
cross join generate_series(0, 3) p
cross join lateral (
    select r.cost, j.arrived_at, row_number() over (order by r.job_id desc) = $3 as is_last
    from (
        select r.job_id, r.cost from flyball.ready r
        where r.lane_id = l.lane_id and r.priority = p::smallint
        order by r.lane_id desc, r.priority desc, r.job_id desc
        limit $3
    ) r
    cross join lateral (
        select greatest(created_at, case when run_at <= clock_timestamp() then run_at end) as arrived_at
        from flyball.job where id = r.job_id limit 1
    ) j
    where j.arrived_at > clock_timestamp() - make_interval(secs => $2::float8)
) n
group by l.lane_id";

/// The jobs that arrived in a lane lately and have not begun.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneArrivals {
    /// The id of the lane.
    pub lane_id: i64,
    /// The number of jobs.
    pub jobs: i64,
    /// The tokens that they cost together, before the throttle's `cost_factor`.
    pub tokens: f64,
    /// The time in which they arrived, in seconds.
    pub span_s: f64,
}

impl Queue {
    /// Returns the jobs that arrived in these lanes within `span` and have not begun; a lane
    /// without any is left out. A lane with very many is judged by the newest, over a shorter time.
    pub async fn lane_arrivals(
        &self,
        lanes: &[i64],
        span: Duration,
    ) -> Result<Vec<LaneArrivals>, Error> {
        let found: Vec<(i64, i64, f64, f64)> = sqlx::query_as(LANE_ARRIVALS)
            .bind(lanes)
            .bind(span.as_secs_f64())
            .bind(READ_MAX)
            .fetch_all(&self.pool)
            .await?;
        Ok(found
            .into_iter()
            .map(|(lane_id, jobs, tokens, span_s)| LaneArrivals {
                lane_id,
                jobs,
                tokens,
                span_s,
            })
            .collect())
    }
}
