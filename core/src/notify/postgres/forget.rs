//! Retention: deletes old records in bounded steps.

use sqlx::Row;

use super::Deliveries;
use crate::jobs::Error;

/// Rows that one statement examines.
const LOOKED_AT: i64 = 5_000;

/// Most runs of each statement in one round.
const STEPS_MAX: usize = 100;

/// The same of the search for dead messages among all dead letters.
const DEAD_STEPS_MAX: usize = 10;

// An id begins with its day, so old messages are a range of ids. Messages with a recent change or
// with a job are kept.
pub(super) const FORGET_DELIVERIES: &str = "
with walk as materialized (
    select d.job_id, d.updated_at
    from flyball.delivery d
    where d.job_id > $1 and d.job_id < (flyball.day_of(now()) - $2::int) << 38
    order by d.job_id
    limit $3
),
old as materialized (
    select w.job_id
    from walk w
    left join lateral (select j.id from flyball.job j where j.id = w.job_id limit 1) j on true
    where j.id is null and w.updated_at < now() - make_interval(days => $2)
),
deleted as (
    delete from flyball.delivery where job_id = any(array(select job_id from old)) returning 1
)
select (select count(*) from walk) as walked, (select max(job_id) from walk) as walked_to, (select count(*) from deleted) as deleted";

pub(super) const FORGET_EVENTS: &str = "
delete from flyball.delivery_event
where ctid = any(array(
    select ctid from flyball.delivery_event where received_at < now() - make_interval(days => $1) order by received_at limit $2
))";

// The hourly rows are few, and a year of them explains an account's reputation.
pub(super) const FORGET_TALLIES: &str = "
delete from flyball.account_tally
where ctid = any(array(
    select ctid from flyball.account_tally where hour < now() - make_interval(days => greatest($1, 90)) order by hour limit $2
))";

pub(super) const FORGET_TENANT_TALLIES: &str = "
delete from flyball.tenant_tally
where ctid = any(array(
    select ctid from flyball.tenant_tally where hour < now() - make_interval(days => greatest($1, 90)) order by hour limit $2
))";

pub(super) const FORGET_ACCOUNT_EVENTS: &str = "
delete from flyball.account_event
where id = any(array(
    select id from flyball.account_event where created_at < now() - make_interval(days => greatest($1, 90)) order by created_at limit $2
))";

// No message has gone to the recipient since its rest ended; the next one tries it afresh.
pub(super) const FORGET_RESTS: &str = "
delete from flyball.recipient_backoff
where ctid = any(array(
    select ctid from flyball.recipient_backoff
    where backoff_until < now() - make_interval(days => least($1, 1)) order by backoff_until limit $2
    for update skip locked
))";

// The contents of messages are private and must not be kept for ever, so their dead letters do not
// wait for a person. The delivery record stays.
pub(super) const FORGET_DEAD_MESSAGES: &str = "
with walk as materialized (
    select d.job_id, d.died_at
    from flyball.dead d
    where d.died_at < now() - make_interval(days => $1) and d.died_at >= coalesce($3, '-infinity'::timestamptz)
        and (d.died_at, d.job_id) > (coalesce($3, '-infinity'::timestamptz), $4::bigint)
    order by d.died_at, d.job_id
    limit $2
),
old as materialized (
    select w.job_id
    from walk w
    cross join lateral (select j.kind from flyball.job j where j.id = w.job_id limit 1) j
    where j.kind = 'notification'
),
deleted as (
    delete from flyball.dead where job_id = any(array(select job_id from old)) returning job_id, attempt
),
recorded as (
    insert into flyball.attempt (job_id, attempt, outcome, error)
    select job_id, attempt, 'cancelled', format('this dead letter expired after %s days', $1) from deleted
),
cleared as (
    update flyball.job j
    set args = j.args - array['subject', 'body', 'html', 'template', 'data', 'extra']
    where j.id = any(array(select job_id from deleted))
    returning 1
)
select (select count(*) from deleted) as deleted, (select count(*) from walk) as walked, w.died_at, w.job_id
from (select died_at, job_id from walk order by died_at desc, job_id desc limit 1) w";

impl Deliveries {
    /// Discards dead letters of messages that are older than `days`, and wipes their contents.
    /// Returns their number, which is 0 if `days` is 0.
    pub async fn forget_dead(&self, days: u32) -> Result<u64, Error> {
        if days == 0 {
            return Ok(0);
        }
        let days = days.min(36_500) as i32;
        let mut forgotten = 0;
        // Dead letters of other kinds are skipped. They may be many and stay, so the next round goes
        // on from here, and after the last one begins again.
        let mut from = *self.places.forget_dead.lock();
        for _ in 0..DEAD_STEPS_MAX {
            let statement = sqlx::query(FORGET_DEAD_MESSAGES)
                .bind(days)
                .bind(LOOKED_AT)
                .bind(from.0)
                .bind(from.1);
            let row = statement.fetch_optional(&self.db).await?;
            let mut walked = 0;
            if let Some(row) = &row {
                forgotten += row.try_get::<i64, _>("deleted")?.unsigned_abs();
                walked = row.try_get("walked")?;
                from = (Some(row.try_get("died_at")?), row.try_get("job_id")?);
            }
            let is_over = walked < LOOKED_AT;
            if is_over {
                from = (None, 0);
            }
            *self.places.forget_dead.lock() = from;
            if is_over {
                break;
            }
        }
        Ok(forgotten)
    }

    /// Deletes rows that are older than `days` and have no job. Returns their number. Suppressions
    /// are kept for ever.
    pub async fn forget(&self, days: u32) -> Result<u64, Error> {
        let days = days.min(36_500) as i32;
        let mut forgotten = self.forget_deliveries(days).await?;
        for statement in [
            FORGET_EVENTS,
            FORGET_TALLIES,
            FORGET_TENANT_TALLIES,
            FORGET_ACCOUNT_EVENTS,
            FORGET_RESTS,
        ] {
            for _ in 0..STEPS_MAX {
                let rows = sqlx::query(statement)
                    .bind(days)
                    .bind(LOOKED_AT)
                    .execute(&self.db)
                    .await?
                    .rows_affected();
                forgotten += rows;
                if rows < LOOKED_AT as u64 {
                    break;
                }
            }
        }
        Ok(forgotten)
    }

    /// Continues after the last round, because dead letters, which stay, may be many.
    async fn forget_deliveries(&self, days: i32) -> Result<u64, Error> {
        let mut forgotten = 0;
        for _ in 0..STEPS_MAX {
            let from = *self.places.forget.lock();
            let row = sqlx::query(FORGET_DELIVERIES)
                .bind(from)
                .bind(days)
                .bind(LOOKED_AT)
                .fetch_one(&self.db)
                .await?;
            forgotten += row.try_get::<i64, _>("deleted")?.unsigned_abs();
            let is_over = row.try_get::<i64, _>("walked")? < LOOKED_AT;
            *self.places.forget.lock() = if is_over {
                0
            } else {
                row.try_get::<Option<i64>, _>("walked_to")?.unwrap_or(0)
            };
            if is_over {
                break;
            }
        }
        Ok(forgotten)
    }
}
