//! Jobs that wait for others: freed when all have ended, or cancelled.

use std::time::{Duration, Instant};

use sqlx::Row;

use super::Queue;
use crate::jobs::Error;

pub(super) const RELEASE: &str = "
select released, lanes, cancelled_jobs, looked, waiting, more from flyball.release_waiting($1)";

/// The time after which the rest is left to the next call.
const STEPS_TIMEOUT: Duration = Duration::from_secs(5);

/// The result of a check of jobs that wait for others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReleasedJobs {
    /// The number of jobs that wait no more.
    pub jobs: i64,
    /// The jobs that were cancelled, because one that they waited for did not complete.
    pub cancelled: Vec<i64>,
    /// The lanes in which jobs are ready now.
    pub lanes: Vec<i64>,
    /// True if jobs wait for others at all.
    pub waiting: bool,
}

impl Queue {
    /// Frees jobs that waited for `ended` ones, and looks at some of all that others wait for, once
    /// a second for all workers together.
    pub async fn release_waiting(&self, ended: &[i64]) -> Result<ReleasedJobs, Error> {
        self.release_until_done(ended, true).await
    }

    /// Frees jobs that waited for `ended` ones, without the check of all others.
    pub async fn release_waiting_for(&self, ended: &[i64]) -> Result<ReleasedJobs, Error> {
        self.release_until_done(ended, false).await
    }

    async fn release_until_done(&self, ended: &[i64], sweeps: bool) -> Result<ReleasedJobs, Error> {
        let begun = Instant::now();
        let mut released = ReleasedJobs::default();
        let mut look = ended.to_vec();
        let mut has_swept = !sweeps;
        while begun.elapsed() < STEPS_TIMEOUT {
            if !look.is_empty() {
                look = self.release_some(&mut released, Some(&look)).await?;
            } else if !has_swept {
                has_swept = true;
                look = self.release_some(&mut released, None).await?;
            } else {
                break;
            }
        }
        Ok(released)
    }

    /// Looks at these jobs, or at the next of all; returns those to look at again: the same as long
    /// as something changes, and those that were cancelled, for which others may wait.
    async fn release_some(
        &self,
        released: &mut ReleasedJobs,
        ended: Option<&[i64]>,
    ) -> Result<Vec<i64>, Error> {
        let row = sqlx::query(RELEASE)
            .bind(ended)
            .fetch_one(&self.pool)
            .await?;
        let cancelled: Vec<i64> = row.try_get("cancelled_jobs")?;
        let mut next: Vec<i64> = Vec::new();
        if row.try_get("more")? {
            next = row.try_get("looked")?;
            next.extend(&cancelled);
        }
        released.jobs += row.try_get::<i64, _>("released")?;
        released.cancelled.extend(cancelled);
        released.lanes.extend(row.try_get::<Vec<i64>, _>("lanes")?);
        released.waiting = row.try_get("waiting")?;
        Ok(next)
    }
}
