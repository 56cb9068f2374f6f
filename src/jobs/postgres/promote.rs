//! Promotion: what has become due moves to its lane.

use sqlx::Row;

use super::Queue;
use crate::jobs::Error;

/// Most jobs that one promotion moves, so that it stays short. The statement says it in words: of a limit that is an argument the
/// planner thinks that it is a tenth of the table, and then it would rather sort than walk the index.
const MAX_PROMOTED: i64 = 1000;

// `now()` and not `clock_timestamp()`: a time that may change while the statement runs cannot bound a scan, and where nothing is
// due all that is scheduled would be read. The lanes are told to every dispatcher, because whoever promotes need not be the one who looks after them.
pub(super) const PROMOTE: &str = "
with due as (
    select ctid from flyball.scheduled
    where run_at <= now()
    order by run_at
    limit 1000
    for update skip locked
),
taken as (
    delete from flyball.scheduled where ctid = any(array(select ctid from due))
    returning *
),
moved as (
    insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
    select lane_id, priority, job_id, attempt, cost, holds_unique from taken
    on conflict do nothing
),
lanes as (
    select distinct lane_id from taken
)
select (select count(*) from taken) as moved, coalesce((select array_agg(lane_id) from lanes), '{}') as lanes, (
    select pg_notify('flyball', left(string_agg(lane_id::text, ','), 7900)) from lanes having count(*) > 0
)::text as rung";

/// What one promotion moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Promoted {
    /// How many jobs.
    pub jobs: i64,
    /// The lanes they came to.
    pub lanes: Vec<i64>,
    /// There may be more that are due.
    pub more: bool,
}

impl Queue {
    /// Moves due jobs to their lanes and rings for them.
    pub async fn promote(&self) -> Result<Promoted, Error> {
        let row = sqlx::query(PROMOTE).fetch_one(&self.pool).await?;
        let jobs = row.try_get("moved")?;
        Ok(Promoted { jobs, lanes: row.try_get("lanes")?, more: jobs == MAX_PROMOTED })
    }
}
