//! Operations on one lane: set its weight, cancel its waiting jobs, count them.

use sqlx::Row;

use super::Queue;
use super::cancel::count;
use crate::jobs::Error;
use crate::jobs::operate::{Attribution, BulkCursor, BulkResult, Count};

pub(super) const SET_WEIGHT: &str = "select flyball.set_weight($1, $2, $3, $4, $5)";

pub(super) const PURGE_LANE: &str =
    "select cancelled, next from flyball.purge_lane($1, $2, $3, $4, $5, $6, $7, $8)";

impl Queue {
    /// Sets the share of a lane relative to the other lanes of its throttle, 0.001 to 1000; returns
    /// the weight before.
    pub async fn set_weight(
        &self,
        throttle: &str,
        key: &str,
        weight: f64,
        signed: &Attribution,
    ) -> Result<f64, Error> {
        let statement = sqlx::query_scalar(SET_WEIGHT)
            .bind(throttle)
            .bind(key)
            .bind(weight)
            .bind(signed.line())
            .bind(&signed.why);
        Ok(statement.fetch_one(&self.pool).await?)
    }

    /// Cancels waiting jobs of a lane, at most `walk.max_jobs` in this call; running jobs go on.
    pub async fn purge_lane(
        &self,
        throttle: &str,
        key: &str,
        walk: &BulkCursor,
        signed: &Attribution,
    ) -> Result<BulkResult, Error> {
        let row = sqlx::query(PURGE_LANE)
            .bind(throttle)
            .bind(key)
            .bind(walk.max_jobs as i32)
            .bind(walk.dry_run)
            .bind(&walk.start)
            .bind(signed.line())
            .bind(&signed.why)
            .bind(&signed.identity.tenant)
            .fetch_one(&self.pool)
            .await?;
        Ok(BulkResult {
            jobs: row.get("cancelled"),
            requested: 0,
            next: row.get("next"),
        })
    }

    /// Returns the number of waiting jobs of a lane.
    pub async fn count_lane(
        &self,
        throttle: &str,
        key: &str,
        signed: &Attribution,
    ) -> Result<Count, Error> {
        count(|walk| Box::pin(async move { self.purge_lane(throttle, key, &walk, signed).await }))
            .await
    }
}
