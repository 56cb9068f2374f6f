//! The rows by which workers are known to live.

use std::time::Duration;

use sqlx::Row;

use super::Queue;
use crate::jobs::Error;

/// What a worker says of itself when it starts.
#[derive(Clone, Debug)]
pub struct NewWorker {
    /// A name for people.
    pub name: String,
    /// Its machine.
    pub host: String,
    /// Its process.
    pub pid: i32,
    /// Seconds without a heartbeat after which it counts as dead.
    pub ttl: Duration,
    /// The kinds it runs.
    pub kinds: Vec<String>,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// False when the worker was declared dead meanwhile: its leases are gone.
    pub alive: bool,
    /// Jobs of this worker that somebody wants cancelled.
    pub cancel: Vec<i64>,
}

pub(super) const REGISTER: &str = "
insert into flyball.worker (name, host, pid, ttl, kinds)
values ($1, $2, $3, make_interval(secs => $4), $5)
returning id";

pub(super) const REGISTER_KINDS: &str = "insert into flyball.kind (name) select unnest($1::text[]) on conflict do nothing";

pub(super) const PULSE: &str = "
with beat as (
    update flyball.worker set heartbeat_at = clock_timestamp()
    where id = $1 and stopped_at is null and heartbeat_at + ttl >= clock_timestamp()
    returning id
)
select exists (select 1 from beat) as alive,
    coalesce((select array_agg(c.job_id) from flyball.cancel c join flyball.lease l using (job_id) where l.worker_id = $1), '{}') as cancel";

pub(super) const LIVE: &str =
    "select count(*) from flyball.worker where stopped_at is null and heartbeat_at + ttl >= clock_timestamp()";

pub(super) const HAND_BACK: &str = "
with mine as (
    delete from flyball.lease where worker_id = $1 returning *
)
insert into flyball.ready (lane_id, priority, job_id, attempt, cost)
select lane_id, priority, job_id, attempt - 1, cost from mine
on conflict do nothing";

pub(super) const DISOWN: &str = "
with mine as (
    delete from flyball.lease where worker_id = $1 and fence = $2 returning *
)
insert into flyball.ready (lane_id, priority, job_id, attempt, cost)
select lane_id, priority, job_id, attempt - 1, cost from mine
on conflict do nothing";

pub(super) const STOP: &str = "update flyball.worker set stopped_at = clock_timestamp() where id = $1 and stopped_at is null";

impl Queue {
    /// Registers a worker under a fresh identity, and the kinds it runs.
    pub async fn register(&self, worker: &NewWorker) -> Result<i32, Error> {
        sqlx::query(REGISTER_KINDS).bind(&worker.kinds).execute(&self.pool).await?;
        Ok(sqlx::query_scalar(REGISTER)
            .bind(&worker.name)
            .bind(&worker.host)
            .bind(worker.pid)
            .bind(worker.ttl.as_secs_f64())
            .bind(&worker.kinds)
            .fetch_one(&self.pool)
            .await?)
    }

    /// Beats, and asks which of the worker's jobs shall stop. One row, whatever the number of running jobs.
    pub async fn pulse(&self, worker_id: i32) -> Result<Pulse, Error> {
        let row = sqlx::query(PULSE).bind(worker_id).fetch_one(&self.lifeline).await?;
        Ok(Pulse { alive: row.get("alive"), cancel: row.get("cancel") })
    }

    /// How many workers live.
    pub async fn live_workers(&self) -> Result<i64, Error> {
        Ok(sqlx::query_scalar(LIVE).fetch_one(&self.pool).await?)
    }

    /// Gives back what a claim took whose answer got lost: nobody runs those jobs. Answers how many there were.
    pub async fn disown(&self, worker_id: i32, fence: i64) -> Result<u64, Error> {
        Ok(sqlx::query(DISOWN).bind(worker_id).bind(fence).execute(&self.pool).await?.rows_affected())
    }

    /// Gives every job that the worker still holds back to its lane, without using an attempt, and marks the worker stopped.
    pub async fn retire(&self, worker_id: i32) -> Result<u64, Error> {
        let handed = sqlx::query(HAND_BACK).bind(worker_id).execute(&self.pool).await?.rows_affected();
        sqlx::query(STOP).bind(worker_id).execute(&self.pool).await?;
        Ok(handed)
    }
}
