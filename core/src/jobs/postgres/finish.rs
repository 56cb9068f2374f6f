//! Finishing: one statement ends many attempts, each guarded by its fence.

use std::time::Duration;

use serde_json::Value;

use super::Queue;
use crate::jobs::retry::MAX_DELAY;
use crate::jobs::{Ending, Error, Finish};
use crate::postgres::storable;

/// The most characters of an error that are kept.
const ERROR_CHARS: usize = 4000;

// Leases are found by one probe each, which a limit pins to one row, and are deleted by their ctid:
// the planner may turn a join round and read every lease for each of the endings, if its statistics
// were taken while nothing ran.
//
// Most attempts complete, and those only have to delete the lease, write the history and, if the
// job held one, free its unique key. A key that a producer has locked is about to pass to another
// job and is left alone, so that no finish waits for a producer. A request to cancel that came too
// late is deleted later.
macro_rules! complete {
    ($more:literal) => {
        concat!(
            "
with removed as (
    delete from flyball.lease
    where ctid = any(array(
        select l.tid
        from unnest($1::bigint[], $2::bigint[]) as s(job_id, fence)
        cross join lateral (select ctid as tid from flyball.lease where job_id = s.job_id and fence = s.fence limit 1) l
    ))
    returning job_id, attempt, worker_id, claimed_at, holds_unique
),
history as (
    insert into flyball.attempt (job_id, attempt, outcome, worker_id, started_at)
    select job_id, attempt, 'completed', worker_id, claimed_at from removed
),
released_keys as (
    delete from flyball.unique_holder
    where digest = any(array(
        select u.digest from flyball.unique_holder u
        where u.expires_at is null and u.job_id = any(array(select job_id from removed where holds_unique))
        for update skip locked
    ))
)",
            $more,
            "
select job_id from removed"
        )
    };
}
pub(super) const COMPLETE: &str = complete!("");

// The result replaces that of an earlier run of the same job.
pub(super) const COMPLETE_WITH_RESULT: &str = complete!(
    ",
kept as (
    insert into flyball.result (job_id, result, kept_until)
    select job_id, $3, clock_timestamp() + make_interval(secs => $4) from removed
    on conflict (job_id) do update set result = excluded.result, kept_until = excluded.kept_until
)"
);

// An ambiguous ending without a delay is the job's last.
//
// A request to cancel that another transaction has locked stays, and is forgotten later: no end
// waits for it.
//
// A row whose fence does not match is not returned: the answer of a stale worker changes nothing.
// An attempt that another would follow ends the job if cancellation was requested in the meantime.
pub(super) const FINISH: &str = "
with reported as (
    select * from unnest($1::bigint[], $2::bigint[], $3::text[]::flyball.outcome[], $4::float8[], $5::text[])
        as s(job_id, fence, outcome, delay_s, error)
),
removed as (
    delete from flyball.lease
    where ctid = any(array(
        select l.tid
        from reported s
        cross join lateral (select ctid as tid from flyball.lease where job_id = s.job_id and fence = s.fence limit 1) l
    ))
    returning *
),
ended as (
    select t.*, s.delay_s, s.error, s.dead, case
            when s.outcome <> 'completed' and not s.dead and exists (select 1 from flyball.cancel c where c.job_id = t.job_id)
            then 'cancelled' else s.outcome end as outcome
    from removed t
    join (
        select *, outcome = 'dead' or outcome = 'ambiguous' and delay_s is null as dead from reported
    ) s on s.job_id = t.job_id and s.fence = t.fence
),
stopped as (
    delete from flyball.cancel
    where job_id = any(array(
        select c.job_id from flyball.cancel c where c.job_id = any(array(select e.job_id from ended e)) for update skip locked
    ))
),
history as (
    insert into flyball.attempt (job_id, attempt, outcome, worker_id, started_at, error)
    select job_id, attempt, outcome, worker_id, claimed_at, error from ended where outcome <> 'handed_back'
),
failures as (
    insert into flyball.failure (job_id, attempt, outcome, error)
    select job_id, attempt, outcome, error from ended where outcome in ('failed', 'ambiguous', 'throttled', 'dead')
),
requeued as (
    insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
    select lane_id, priority, job_id, attempt - 1, cost, holds_unique from ended where outcome = 'handed_back' or (outcome = 'throttled' and delay_s is null)
    on conflict do nothing
),
postponed as (
    insert into flyball.scheduled (job_id, run_at, lane_id, priority, attempt, cost, retry, holds_unique)
    select job_id, now() + make_interval(secs => delay_s), lane_id, priority,
        case when outcome in ('failed', 'ambiguous') then attempt else attempt - 1 end, cost,
        outcome in ('failed', 'ambiguous'), holds_unique
    from ended
    where outcome in ('failed', 'ambiguous', 'snoozed') and not dead or (outcome = 'throttled' and delay_s is not null)
    on conflict do nothing
),
dead_letters as (
    insert into flyball.dead (job_id, lane_id, priority, attempt, cost, error)
    select job_id, lane_id, priority, attempt, cost, error from ended where dead
    on conflict do nothing
),
released_keys as (
    delete from flyball.unique_holder
    where digest = any(array(
        select u.digest from flyball.unique_holder u
        where u.expires_at is null
            and u.job_id = any(array(select job_id from ended where holds_unique and (dead or outcome in ('completed', 'cancelled'))))
        for update skip locked
    ))
)
select job_id from ended";

impl Queue {
    /// Completes an attempt and keeps its result for a time; returns false if its fence did not
    /// hold.
    pub async fn complete_with_result(
        &self,
        (job_id, fence): (i64, i64),
        result: &Value,
        kept: Duration,
    ) -> Result<bool, Error> {
        let completed: Option<i64> = sqlx::query_scalar(COMPLETE_WITH_RESULT)
            .bind(&[job_id][..])
            .bind(&[fence][..])
            .bind(result)
            .bind(kept.as_secs_f64())
            .fetch_optional(&self.pool)
            .await?;
        Ok(completed.is_some())
    }

    /// Ends the attempts, fastest if all of them completed; returns the jobs whose fence still
    /// held.
    ///
    /// A missing id was fenced off: count it, but never repeat it.
    pub async fn finish(&self, ends: &[Finish]) -> Result<Vec<i64>, Error> {
        if ends.iter().all(|end| end.ending == Ending::Completed) {
            let ids: Vec<i64> = ends.iter().map(|end| end.job_id).collect();
            let fences: Vec<i64> = ends.iter().map(|end| end.fence).collect();
            return Ok(sqlx::query_scalar(COMPLETE)
                .bind(ids)
                .bind(fences)
                .fetch_all(&self.pool)
                .await?);
        }
        let mut ids = Vec::with_capacity(ends.len());
        let mut fences = Vec::with_capacity(ends.len());
        let mut outcomes = Vec::with_capacity(ends.len());
        let mut delays = Vec::with_capacity(ends.len());
        let mut errors = Vec::with_capacity(ends.len());
        for end in ends {
            let (outcome, delay, error) = columns(&end.ending);
            ids.push(end.job_id);
            fences.push(end.fence);
            outcomes.push(outcome);
            delays.push(delay);
            errors.push(error);
        }
        let statement = sqlx::query_scalar(FINISH)
            .bind(ids)
            .bind(fences)
            .bind(outcomes)
            .bind(delays)
            .bind(errors);
        Ok(statement.fetch_all(&self.pool).await?)
    }
}

fn columns(ending: &Ending) -> (&'static str, Option<f64>, Option<String>) {
    match ending {
        Ending::Completed => ("completed", None, None),
        Ending::Failed { delay, error } => ("failed", Some(seconds(*delay)), Some(tidy(error))),
        Ending::Ambiguous { delay, error } => ("ambiguous", delay.map(seconds), Some(tidy(error))),
        Ending::Throttled { alone, error } => ("throttled", alone.map(seconds), Some(tidy(error))),
        Ending::Snoozed { delay, why } => (
            "snoozed",
            Some(seconds(*delay)),
            (!why.is_empty()).then(|| tidy(why)),
        ),
        Ending::Dead { error } => ("dead", None, Some(tidy(error))),
        Ending::Cancelled => ("cancelled", None, None),
        Ending::HandedBack => ("handed_back", None, None),
    }
}

/// Returns a delay in seconds, at most as long as a job can be scheduled ahead.
///
/// Postgres has no times for the longest waits of Rust.
fn seconds(delay: Duration) -> f64 {
    delay.min(MAX_DELAY).as_secs_f64()
}

fn tidy(error: &str) -> String {
    storable(error, ERROR_CHARS)
}
