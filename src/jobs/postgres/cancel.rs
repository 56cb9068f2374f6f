//! Cancelling: one job, or all that a filter names.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use sqlx::Row;

use super::Queue;
use super::states::{last_word, moment, word};
use crate::jobs::operate::{COUNT_MAX, CancelFilter, Count, Signed, Walk, Walked};
use crate::jobs::{CancelAnswer, Error};

pub(super) const CANCEL: &str = "select flyball.cancel($1, $2, $3)";

pub(super) const CANCEL_JOBS: &str = "
select cancelled, requested, next
from flyball.cancel_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";

/// A count ends after this time, with what it has found.
const COUNT_TIME: Duration = Duration::from_secs(2);

impl Queue {
    /// Cancels a waiting job at once, asks a running one to stop.
    pub async fn cancel(&self, id: i64) -> Result<CancelAnswer, Error> {
        self.cancel_signed(id, &Signed::default()).await
    }

    /// As [`Queue::cancel`], signed for the audit log.
    pub async fn cancel_signed(&self, id: i64, signed: &Signed) -> Result<CancelAnswer, Error> {
        let said: String = sqlx::query_scalar(CANCEL).bind(id).bind(&signed.by).bind(&signed.why).fetch_one(&self.pool).await?;
        Ok(match said.as_str() {
            "cancelled" => CancelAnswer::Cancelled,
            "requested" => CancelAnswer::Requested,
            "not found" => CancelAnswer::NotFound,
            ended => CancelAnswer::Ended(last_word(ended)),
        })
    }

    /// Cancels jobs that the filter names, at most `walk.max_jobs` in this call; call again from [`Walked::next`] for more.
    pub async fn cancel_jobs(&self, filter: &CancelFilter, walk: &Walk, signed: &Signed) -> Result<Walked, Error> {
        let row = sqlx::query(CANCEL_JOBS)
            .bind(&filter.kind)
            .bind(&filter.throttle)
            .bind(&filter.key)
            .bind(filter.state.map(word))
            .bind(filter.created_after.map(moment))
            .bind(filter.created_before.map(moment))
            .bind(walk.max_jobs as i32)
            .bind(walk.dry_run)
            .bind(&walk.start)
            .bind(&signed.by)
            .bind(&signed.why)
            .fetch_one(&self.pool)
            .await?;
        Ok(Walked { jobs: row.get("cancelled"), requested: row.get("requested"), next: row.get("next") })
    }

    /// How many jobs [`Queue::cancel_jobs`] would take.
    pub async fn count_cancel_jobs(&self, filter: &CancelFilter) -> Result<Count, Error> {
        count(|walk| Box::pin(async move { self.cancel_jobs(filter, &walk, &Signed::default()).await })).await
    }
}

/// Counts by walks that change nothing, until there are many, all was looked at, or it took long enough.
pub(super) async fn count<'a>(mut step: impl FnMut(Walk) -> BoxFuture<'a, Result<Walked, Error>>) -> Result<Count, Error> {
    let begun = Instant::now();
    let mut walk = Walk::count();
    let mut jobs = 0;
    loop {
        let walked = step(walk.clone()).await?;
        jobs += walked.jobs + walked.requested;
        let done = walked.next.is_none();
        if done || jobs > COUNT_MAX || begun.elapsed() > COUNT_TIME {
            return Ok(Count { jobs: jobs.min(COUNT_MAX), more: !done || jobs > COUNT_MAX });
        }
        walk.start = walked.next;
    }
}
