//! Cancelling and retrying one job.

use sqlx::Row;

use super::Queue;
use crate::jobs::{CancelAnswer, Error, RetryAnswer, State};

// A waiting job is taken out of its lane at once; a running one is marked, and its worker told with the next heartbeat.
pub(super) const CANCEL: &str = "
with named as (
    select id, lane_id, priority from flyball.job where id = $1
),
was_ready as (
    delete from flyball.ready r using named n
    where r.lane_id = n.lane_id and r.priority = n.priority and r.job_id = n.id
    returning r.job_id, r.attempt
),
was_scheduled as (
    delete from flyball.scheduled s using named n where s.job_id = n.id
    returning s.job_id, s.attempt
),
waiting as (
    select * from was_ready union all select * from was_scheduled
),
history as (
    insert into flyball.attempt (job_id, attempt, outcome)
    select job_id, attempt, 'cancelled' from waiting
),
freed as (
    delete from flyball.uniq u using waiting w where u.job_id = w.job_id and u.expires_at is null
),
marked as (
    insert into flyball.cancel (job_id)
    select l.job_id from flyball.lease l where l.job_id = $1
    on conflict (job_id) do update set requested_at = flyball.cancel.requested_at
    returning job_id
)
select exists (select 1 from named) as found, exists (select 1 from waiting) as cancelled, exists (select 1 from marked) as requested";

// A dead job starts over with all its attempts; one that waits for a retry keeps its count and just goes now.
pub(super) const REQUEUE: &str = "
with was_dead as (
    delete from flyball.dead where job_id = $1
    returning job_id, lane_id, priority, 0::smallint as attempt, cost
),
was_scheduled as (
    delete from flyball.scheduled where job_id = $1
    returning job_id, lane_id, priority, attempt, cost
),
again as (
    insert into flyball.ready (job_id, lane_id, priority, attempt, cost)
    select * from was_dead union all select * from was_scheduled
    on conflict do nothing
    returning job_id
)
select count(*) from again";

impl Queue {
    /// Cancels a waiting job at once, asks a running one to stop.
    pub async fn cancel(&self, id: i64) -> Result<CancelAnswer, Error> {
        // A job may be claimed or come back between two statements' snapshots, so look again before saying that it ended.
        for _ in 0..3 {
            let row = sqlx::query(CANCEL).bind(id).fetch_one(&self.pool).await?;
            if row.get("cancelled") {
                return Ok(CancelAnswer::Cancelled);
            } else if row.get("requested") {
                return Ok(CancelAnswer::Requested);
            } else if !row.get::<bool, _>("found") {
                return Ok(CancelAnswer::NotFound);
            }
            match self.state(id).await? {
                Some(state @ (State::Completed | State::Cancelled | State::Dead)) => return Ok(CancelAnswer::Ended(state)),
                _ => continue,
            }
        }
        Ok(CancelAnswer::Requested)
    }

    /// Makes a dead, retryable or scheduled job ready now.
    pub async fn retry(&self, id: i64) -> Result<RetryAnswer, Error> {
        let moved: i64 = sqlx::query_scalar(REQUEUE).bind(id).fetch_one(&self.pool).await?;
        if moved > 0 {
            // The dispatcher may sleep: ring as a producer would.
            sqlx::query("select pg_notify('flyball', '')").execute(&self.pool).await?;
            return Ok(RetryAnswer::Ready);
        }
        Ok(match self.state(id).await? {
            None => RetryAnswer::NotFound,
            Some(State::Ready) => RetryAnswer::Ready,
            Some(state) => RetryAnswer::Refused(state),
        })
    }

    async fn state(&self, id: i64) -> Result<Option<State>, Error> {
        Ok(self.get(id).await?.map(|detail| detail.summary.state))
    }
}
