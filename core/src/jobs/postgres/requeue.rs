//! Operations on dead letters and waiting jobs: retry, reschedule, discard.

use sqlx::Row;

use super::Queue;
use super::cancel::count;
use super::list::bind_search;
use super::states::{last_word, moment};
use crate::jobs::operate::{Attribution, BulkCursor, BulkResult, Count, DeadFilter, MoveAnswer};
use crate::jobs::{Error, RetryAnswer};

pub(super) const RETRY: &str = "select flyball.retry($1, $2, $3, $4, $5)";

pub(super) const DISCARD: &str = "select flyball.discard($1, $2, $3, $4)";

pub(super) const RESCHEDULE: &str = "select flyball.reschedule($1, $2, $3, $4, $5)";

pub(super) const REQUEUE_DEAD: &str = "
select jobs, next
from flyball.requeue_dead($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)";

pub(super) const DISCARD_DEAD: &str = "
select jobs, next
from flyball.discard_dead($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)";

impl Queue {
    /// Makes a dead, retryable or scheduled job ready now; a dead one starts over with all its
    /// attempts.
    pub async fn retry(&self, id: i64) -> Result<RetryAnswer, Error> {
        self.retry_signed(id, false, &Attribution::default()).await
    }

    /// Retries a job like [`Queue::retry`], signed for the audit log.
    ///
    /// With `keep_attempts` a dead job gets only the attempts that it has left, and one if it has
    /// none.
    pub async fn retry_signed(
        &self,
        id: i64,
        keep_attempts: bool,
        signed: &Attribution,
    ) -> Result<RetryAnswer, Error> {
        let statement = sqlx::query_scalar(RETRY)
            .bind(id)
            .bind(keep_attempts)
            .bind(signed.line())
            .bind(&signed.why)
            .bind(&signed.identity.tenant);
        let answer: String = statement.fetch_one(&self.pool).await?;
        Ok(match answer.as_str() {
            "ready" | "already ready" => RetryAnswer::Ready,
            "not found" => RetryAnswer::NotFound,
            other => RetryAnswer::Refused(last_word(other)?),
        })
    }

    /// Makes a waiting job wait until `run_at` instead; no attempt is used.
    pub async fn reschedule(
        &self,
        id: i64,
        run_at: jiff::Timestamp,
        signed: &Attribution,
    ) -> Result<MoveAnswer, Error> {
        let statement = sqlx::query_scalar(RESCHEDULE)
            .bind(id)
            .bind(moment(run_at))
            .bind(signed.line())
            .bind(&signed.why)
            .bind(&signed.identity.tenant);
        let answer: String = statement.fetch_one(&self.pool).await?;
        moved(&answer, "scheduled")
    }

    /// Gives up a dead job for good; it ends as cancelled.
    pub async fn discard(&self, id: i64, signed: &Attribution) -> Result<MoveAnswer, Error> {
        let statement = sqlx::query_scalar(DISCARD)
            .bind(id)
            .bind(signed.line())
            .bind(&signed.why)
            .bind(&signed.identity.tenant);
        let answer: String = statement.fetch_one(&self.pool).await?;
        moved(&answer, "cancelled")
    }

    /// Makes dead jobs that match the filter ready again, at most `walk.max_jobs` in this call.
    pub async fn requeue_dead(
        &self,
        filter: &DeadFilter,
        keep_attempts: bool,
        walk: &BulkCursor,
        signed: &Attribution,
    ) -> Result<BulkResult, Error> {
        let query = sqlx::query(REQUEUE_DEAD)
            .bind(&filter.kind)
            .bind(&filter.throttle)
            .bind(&filter.key)
            .bind(&filter.error_like)
            .bind(walk.max_jobs as i32)
            .bind(filter.died_after.map(moment))
            .bind(filter.died_before.map(moment))
            .bind(keep_attempts)
            .bind(walk.dry_run)
            .bind(&walk.start)
            .bind(signed.line())
            .bind(&signed.why)
            .bind(signed.identity.tenant.as_ref().or(filter.tenant.as_ref()))
            .bind(filter.group);
        let row = bind_search(query, &filter.search)
            .fetch_one(&self.pool)
            .await?;
        Ok(BulkResult {
            jobs: row.get("jobs"),
            requested: 0,
            next: row.get("next"),
        })
    }

    /// Gives up dead jobs that match the filter for good, at most `walk.max_jobs` in this call.
    pub async fn discard_dead(
        &self,
        filter: &DeadFilter,
        walk: &BulkCursor,
        signed: &Attribution,
    ) -> Result<BulkResult, Error> {
        let query = sqlx::query(DISCARD_DEAD)
            .bind(&filter.kind)
            .bind(&filter.throttle)
            .bind(&filter.key)
            .bind(&filter.error_like)
            .bind(walk.max_jobs as i32)
            .bind(filter.died_after.map(moment))
            .bind(filter.died_before.map(moment))
            .bind(walk.dry_run)
            .bind(&walk.start)
            .bind(signed.line())
            .bind(&signed.why)
            .bind(signed.identity.tenant.as_ref().or(filter.tenant.as_ref()))
            .bind(filter.group);
        let row = bind_search(query, &filter.search)
            .fetch_one(&self.pool)
            .await?;
        Ok(BulkResult {
            jobs: row.get("jobs"),
            requested: 0,
            next: row.get("next"),
        })
    }

    /// Returns the number of dead jobs that match the filter.
    pub async fn count_dead(
        &self,
        filter: &DeadFilter,
        signed: &Attribution,
    ) -> Result<Count, Error> {
        count(|walk| Box::pin(async move { self.discard_dead(filter, &walk, signed).await })).await
    }
}

pub(super) fn moved(answer: &str, done: &str) -> Result<MoveAnswer, Error> {
    Ok(match answer {
        "not found" => MoveAnswer::NotFound,
        answer if answer == done => MoveAnswer::Moved,
        other => MoveAnswer::Refused(last_word(other)?),
    })
}
