//! Promotion: what has become due moves to its lane.

use super::Queue;
use crate::jobs::Error;

/// Most jobs that one promotion moves, so that it stays short.
const MAX_PROMOTED: i64 = 1000;

pub(super) const PROMOTE: &str = "
with due as (
    select ctid from flyball.scheduled
    where run_at <= clock_timestamp()
    order by run_at
    limit $1
    for update skip locked
),
taken as (
    delete from flyball.scheduled where ctid = any(array(select ctid from due))
    returning *
),
moved as (
    insert into flyball.ready (lane_id, priority, job_id, attempt, cost)
    select lane_id, priority, job_id, attempt, cost from taken
    on conflict do nothing
)
select count(*) from taken";

impl Queue {
    /// Moves due jobs to their lanes; answers how many, and whether there may be more.
    pub async fn promote(&self) -> Result<(i64, bool), Error> {
        let moved: i64 = sqlx::query_scalar(PROMOTE).bind(MAX_PROMOTED).fetch_one(&self.pool).await?;
        Ok((moved, moved == MAX_PROMOTED))
    }
}
