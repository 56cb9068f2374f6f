//! Cancellation of one job, or of all jobs that match a filter.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use sqlx::Row;

use super::Queue;
use super::list::bind_search;
use super::states::{last_word, moment};
use crate::jobs::operate::{Attribution, BulkCursor, BulkResult, COUNT_MAX, CancelFilter, Count};
use crate::jobs::{CancelAnswer, Error, State};

pub(super) const CANCEL: &str = "select flyball.cancel($1, $2, $3, $4)";

pub(super) const CANCEL_JOBS: &str = "
select cancelled, requested, next
from flyball.cancel_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)";

// A job that was asked to stop and waits again, because its attempt ended at the same moment, ends
// here.
pub(super) const CARRY_OUT: &str = "
with requested as materialized (
    select c.job_id from flyball.cancel c
    where (select 1 from flyball.lease l where l.job_id = c.job_id limit 1) is null
    order by c.job_id
    limit 1000
),
was_ready as (
    delete from flyball.ready
    where ctid = any(array(
        select r.tid
        from requested a
        cross join lateral (select lane_id, admission_lane, priority from flyball.job where id = a.job_id limit 1) j
        cross join lateral (
            select q.ctid as tid from flyball.ready q
            where q.lane_id in (j.lane_id, j.admission_lane) and q.priority = j.priority and q.job_id = a.job_id
            limit 1
            for update skip locked
        ) r
    ))
    returning job_id, attempt
),
was_scheduled as (
    delete from flyball.scheduled
    where ctid = any(array(
        select s.tid
        from requested a
        cross join lateral (
            select q.ctid as tid from flyball.scheduled q where q.job_id = a.job_id limit 1 for update skip locked
        ) s
    ))
    returning job_id, attempt
),
removed as (
    select * from was_ready union all select * from was_scheduled
),
history as (
    insert into flyball.attempt (job_id, attempt, outcome) select job_id, attempt, 'cancelled' from removed
),
released_keys as (
    delete from flyball.unique_holder
    where digest = any(array(
        select u.digest from flyball.unique_holder u
        where u.expires_at is null and u.job_id = any(array(select job_id from removed))
        for update skip locked
    ))
),
done as (
    delete from flyball.cancel
    where job_id = any(array(
        select c.job_id from flyball.cancel c where c.job_id = any(array(select r.job_id from removed r)) for update skip locked
    ))
)
select count(*) from removed";

/// The time after which a count ends with the jobs found so far.
const COUNT_TIME: Duration = Duration::from_secs(2);

impl Queue {
    /// Cancels a waiting job at once, or asks a running one to stop.
    pub async fn cancel(&self, id: i64) -> Result<CancelAnswer, Error> {
        self.cancel_signed(id, &Attribution::default()).await
    }

    /// Cancels a job like [`Queue::cancel`], signed for the audit log.
    pub async fn cancel_signed(
        &self,
        id: i64,
        signed: &Attribution,
    ) -> Result<CancelAnswer, Error> {
        let answer: String = sqlx::query_scalar(CANCEL)
            .bind(id)
            .bind(signed.line())
            .bind(&signed.why)
            .bind(&signed.identity.tenant)
            .fetch_one(&self.pool)
            .await?;
        Ok(match answer.as_str() {
            "cancelled" => CancelAnswer::Cancelled,
            "requested" => CancelAnswer::Requested,
            "not found" => CancelAnswer::NotFound,
            ended => CancelAnswer::Ended(last_word(ended)?),
        })
    }

    /// Cancels jobs that were asked to stop while they ran and wait again by now; returns their
    /// number.
    pub async fn carry_out_cancels(&self) -> Result<u64, Error> {
        let cancelled: i64 = sqlx::query_scalar(CARRY_OUT).fetch_one(&self.pool).await?;
        Ok(cancelled.unsigned_abs())
    }

    /// Cancels jobs that match the filter, at most `walk.max_jobs` in this call.
    ///
    /// A call with [`BulkResult::next`] continues from there.
    pub async fn cancel_jobs(
        &self,
        filter: &CancelFilter,
        walk: &BulkCursor,
        signed: &Attribution,
    ) -> Result<BulkResult, Error> {
        let query = sqlx::query(CANCEL_JOBS)
            .bind(&filter.kind)
            .bind(&filter.throttle)
            .bind(&filter.key)
            .bind(filter.state.map(State::as_str))
            .bind(filter.created_after.map(moment))
            .bind(filter.created_before.map(moment))
            .bind(walk.max_jobs as i32)
            .bind(walk.dry_run)
            .bind(&walk.start)
            .bind(signed.line())
            .bind(&signed.why)
            .bind(signed.identity.tenant.as_ref().or(filter.tenant.as_ref()))
            .bind(filter.group)
            .bind(&filter.error_like);
        let row = bind_search(query, &filter.search)
            .fetch_one(&self.pool)
            .await?;
        Ok(BulkResult {
            jobs: row.get("cancelled"),
            requested: row.get("requested"),
            next: row.get("next"),
        })
    }

    /// Returns the number of jobs that [`Queue::cancel_jobs`] would cancel or ask to stop.
    pub async fn count_cancel_jobs(
        &self,
        filter: &CancelFilter,
        signed: &Attribution,
    ) -> Result<Count, Error> {
        count(|walk| Box::pin(async move { self.cancel_jobs(filter, &walk, signed).await })).await
    }
}

/// Counts by walks that change nothing, until the count reaches its bound, all jobs were visited,
/// or the time is up.
pub(super) async fn count<'a>(
    mut step: impl FnMut(BulkCursor) -> BoxFuture<'a, Result<BulkResult, Error>>,
) -> Result<Count, Error> {
    let begun = Instant::now();
    let mut walk = BulkCursor::count();
    let mut jobs = 0;
    loop {
        let walked = step(walk.clone()).await?;
        jobs += walked.jobs + walked.requested;
        let done = walked.next.is_none();
        if done || jobs > COUNT_MAX || begun.elapsed() > COUNT_TIME {
            return Ok(Count {
                jobs: jobs.min(COUNT_MAX),
                more: !done || jobs > COUNT_MAX,
            });
        }
        walk.start = walked.next;
    }
}
