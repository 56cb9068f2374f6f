//! Expiry of messages, and requeueing of those that died for lack of an account.

use std::time::Duration;

use sqlx::Row;

use super::Deliveries;
use crate::jobs::{Attribution, Error};
use crate::notify::StepResult;

pub(super) const EXPIRE: &str =
    "select jobs, next from flyball.expire_notifications($1, $2, $3, $4)";

pub(super) const EXPIRE_WAITING: &str =
    "select jobs, next from flyball.expire_waiting($1, $2, $3, $4)";

pub(super) const REQUEUE_UNSENT: &str =
    "select examined, jobs, skipped from flyball.requeue_unsent($1, $2, $3, $4)";

/// Most messages of one step.
const MAX_MESSAGES_PER_STEP: i32 = 1_000;

impl Deliveries {
    /// Ends messages that wait in lanes of the throttle and whose deadline has passed, at most
    /// `limit`.
    ///
    /// The deadline is their own `valid_for_s`, or else `valid_for`, counted from the latest of
    /// their enqueue time, their time to run, and their requeue time; `valid_for` also from the end
    /// of their last hold by a gate. Messages that a worker claims concurrently are left to it.
    /// Each call examines a bounded part and continues after the last one.
    pub async fn expire(
        &self,
        throttle: &str,
        valid_for: Duration,
        limit: u32,
    ) -> Result<StepResult, Error> {
        self.expire_by(EXPIRE, throttle.to_owned(), throttle, valid_for, limit)
            .await
    }

    /// Ends messages of a pool that wait for the limits of their tenants and whose deadline has
    /// passed, at most about `limit`, so that they use no slot. Each call examines the next
    /// messages of some lanes and continues after the last one.
    pub async fn expire_waiting(
        &self,
        pool: &str,
        valid_for: Duration,
        limit: u32,
    ) -> Result<StepResult, Error> {
        // No throttle has a space in its name.
        let place = format!("waiting {pool}");
        self.expire_by(EXPIRE_WAITING, place, pool, valid_for, limit)
            .await
    }

    async fn expire_by(
        &self,
        statement: &'static str,
        place: String,
        throttle: &str,
        valid_for: Duration,
        limit: u32,
    ) -> Result<StepResult, Error> {
        let start = self.places.expire().get(&place).cloned();
        let row = sqlx::query(statement)
            .bind(throttle)
            .bind(valid_for.as_secs_f64())
            .bind(step(limit))
            .bind(start)
            .fetch_one(&self.db)
            .await?;
        let next: Option<String> = row.try_get("next")?;
        let swept = StepResult {
            jobs: row.try_get::<i64, _>("jobs")?.unsigned_abs(),
            more: next.is_some(),
            skipped: 0,
        };
        let mut places = self.places.expire();
        match next {
            Some(next) => places.insert(place, next),
            None => places.remove(&place),
        };
        Ok(swept)
    }

    /// Requeues messages of the throttle that died for lack of an account, at most `limit`, the
    /// oldest first. Their deadlines count from now on. One that an open transaction has locked is
    /// left.
    pub async fn requeue_unsent(
        &self,
        throttle: &str,
        limit: u32,
        signed: &Attribution,
    ) -> Result<StepResult, Error> {
        let limit = step(limit);
        let row = sqlx::query(REQUEUE_UNSENT)
            .bind(throttle)
            .bind(limit)
            .bind(signed.line())
            .bind(&signed.why)
            .fetch_one(&self.db)
            .await?;
        let examined: i64 = row.try_get("examined")?;
        let skipped: i64 = row.try_get("skipped")?;
        if skipped > 0 {
            tracing::warn!(
                pool = throttle,
                messages = skipped,
                "left messages that had found no account, because open transactions hold their unique keys"
            );
        }
        Ok(StepResult {
            jobs: row.try_get::<i64, _>("jobs")?.unsigned_abs(),
            more: examined >= i64::from(limit),
            skipped: skipped.unsigned_abs(),
        })
    }
}

fn step(limit: u32) -> i32 {
    i32::try_from(limit)
        .unwrap_or(MAX_MESSAGES_PER_STEP)
        .clamp(1, MAX_MESSAGES_PER_STEP)
}
