//! Throttles whose jobs all fail, by the heartbeats of the live workers.

use jiff_sqlx::Timestamp;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::Queue;
use crate::jobs::{Error, Failing};

/// The number of attempts that must have failed in a row.
const MIN_FAILED_ATTEMPTS: i64 = 5;

/// The most throttles that are read.
const MAX_FAILING_READ: i64 = 1_000;

// A throttle without a failure for ten minutes is left out: its jobs wait for their next attempts,
// or there are none. One success in the last minute, in any worker, is enough to be healthy.
macro_rules! failing {
    () => {
        "
select f.throttle, sum(f.failed - f.failed_before)::bigint as failures, max(f.succeeded_at) as succeeded_at
from flyball.worker w
join flyball.feedback f on f.worker_id = w.id
where w.stopped_at is null and w.heartbeat_at + w.ttl >= clock_timestamp() and ($1::text is null or f.throttle = $1)
group by f.throttle
having sum(f.failed - f.failed_before) >= $2
    and max(f.failed_at) > clock_timestamp() - interval '10 minutes'
    and (max(f.succeeded_at) is null
        or max(f.succeeded_at) < least(max(f.failed_at), clock_timestamp() - interval '1 minute'))
limit $3"
    };
}

pub(super) const FAILING: &str = failing!();

// The brokers that hand jobs to remote workers are none.
pub(super) const WORKERS_AND_FAILING: &str = concat!(
    "
select w.workers, w.runners, f.*
from (
    select count(*) as workers, count(*) filter (where role = 'runner') as runners
    from flyball.worker
    where stopped_at is null and heartbeat_at + ttl >= clock_timestamp() and role <> 'broker'
) w
left join (",
    failing!(),
    ") f on true"
);

// The error of the newest failure of a throttle among the recent ones.
pub(super) const LAST_ERROR: &str = "
select f.error
from (select * from flyball.failure order by id desc limit 1000) f
cross join lateral (select throttle from flyball.job where id = f.job_id limit 1) j
where j.throttle = $1 and f.error is not null
order by f.id desc
limit 1";

/// The live workers at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountedWorkers {
    /// All of them, those in other programs as well.
    pub all: i64,
    /// The processes with the role `runner`.
    pub runners: i64,
}

impl Queue {
    /// Returns the number of live workers, and the throttles whose last several attempts failed, with
    /// no success for a minute.
    pub async fn workers_and_failing(&self) -> Result<(CountedWorkers, Vec<Failing>), Error> {
        let rows = sqlx::query(WORKERS_AND_FAILING)
            .bind(None::<&str>)
            .bind(MIN_FAILED_ATTEMPTS)
            .bind(MAX_FAILING_READ)
            .fetch_all(&self.pool)
            .await?;
        let workers = rows.first().map(|row| CountedWorkers {
            all: row.get("workers"),
            runners: row.get("runners"),
        });
        let is_failing = |row: &&PgRow| row.get::<Option<&str>, _>("throttle").is_some();
        Ok((
            workers.unwrap_or_default(),
            rows.iter().filter(is_failing).map(failing).collect(),
        ))
    }

    /// Returns the failures of one throttle, with the error of the newest; `None` if it is not
    /// failing.
    pub async fn failing_of(&self, throttle: &str) -> Result<Option<Failing>, Error> {
        let row = sqlx::query(FAILING)
            .bind(throttle)
            .bind(MIN_FAILED_ATTEMPTS)
            .bind(1_i64)
            .fetch_optional(&self.pool)
            .await?;
        let Some(row) = row else { return Ok(None) };
        let error: Option<String> = sqlx::query_scalar(LAST_ERROR)
            .bind(throttle)
            .fetch_optional(&self.pool)
            .await?;
        Ok(Some(Failing {
            error: error.unwrap_or_default(),
            ..failing(&row)
        }))
    }
}

fn failing(row: &PgRow) -> Failing {
    Failing {
        throttle: row.get("throttle"),
        failures: row.get("failures"),
        succeeded_at: row
            .get::<Option<Timestamp>, _>("succeeded_at")
            .map(Timestamp::to_jiff),
        error: String::new(),
    }
}
