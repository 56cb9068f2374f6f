//! Looks into lanes before a claim, for workers that run only some of the jobs there.

use serde_json::Value;
use sqlx::Row;

use super::Queue;
use crate::jobs::{Error, LaneClaim, LaneCursor};
use crate::postgres::Columns;

// The jobs are read by one scan over the sorted ids, as in a claim. Nothing is locked, so that
// other workers pass over none of these jobs.
pub(super) const LOOK: &str = "
with walked as materialized (
    select a.lane_id, r.priority, r.job_id
    from unnest($1::bigint[], $2::smallint[], $3::bigint[]) as a(lane_id, priority, job_id)
    cross join lateral (
        select q.priority, q.job_id
        from flyball.ready q
        where q.lane_id = a.lane_id and (q.priority, q.job_id) > (a.priority, a.job_id)
        order by q.lane_id, q.priority, q.job_id
        limit $4
    ) r
),
named as materialized (
    select j.id, j.throttle, j.kind, j.tenant, case when j.kind = any($5) then j.args end as args
    from flyball.job j
    where j.id = any(array(select job_id from walked))
        and j.id >= (select min(job_id) from walked) and j.id <= (select max(job_id) from walked)
)
select w.lane_id, w.priority, w.job_id, n.throttle, n.kind, n.args, n.tenant
from walked w
left join named n on n.id = w.job_id
order by w.lane_id, w.priority, w.job_id";

/// A ready job that was looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenJob {
    /// The id of the lane.
    pub lane_id: i64,
    /// The place of the job in its lane.
    pub place: LaneCursor,
    /// The throttle and the kind; `None` if the job is not in `flyball.job` any more.
    pub job: Option<(String, String)>,
    /// The tenant of the job; empty for none.
    pub tenant: String,
    /// The arguments, if they were asked for.
    pub args: Option<Value>,
}

impl Queue {
    /// Returns the first jobs of each lane behind the place where its claim begins, at most
    /// `window` of each, in their order; with the arguments of jobs of the kinds `with_args`.
    pub async fn look(
        &self,
        lanes: &[LaneClaim],
        window: i64,
        with_args: &[String],
    ) -> Result<Vec<SeenJob>, Error> {
        let ids: Vec<i64> = lanes.iter().map(|lane| lane.lane_id).collect();
        let priorities: Vec<i16> = lanes.iter().map(|lane| lane.after.priority).collect();
        let after: Vec<i64> = lanes.iter().map(|lane| lane.after.job_id).collect();
        let rows = sqlx::query(LOOK)
            .bind(ids)
            .bind(priorities)
            .bind(after)
            .bind(window)
            .bind(with_args)
            .fetch_all(&self.pool)
            .await?;
        rows.iter()
            .map(|row| {
                let throttle: Option<String> = row.try_get(3)?;
                let mut columns = Columns::of(row);
                // Arguments that cannot be read are the claim's to report.
                let args = columns.get::<Option<Value>>(5);
                Ok(SeenJob {
                    lane_id: row.try_get(0)?,
                    place: LaneCursor {
                        priority: row.try_get(1)?,
                        job_id: row.try_get(2)?,
                    },
                    job: throttle.zip(row.try_get(4)?),
                    tenant: row.try_get::<Option<String>, _>(6)?.unwrap_or_default(),
                    args,
                })
            })
            .collect()
    }
}
