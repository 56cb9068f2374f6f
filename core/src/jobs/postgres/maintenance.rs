//! Housekeeping: partitions for the days ahead, pruning of past days, trimming of small tables.
//!
//! Every step is bounded, none waits for long for a lock, and one that fails stops no other.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row};

use super::Queue;
use super::feedback::DELETE_OLD_REPORTS;
use super::groups;
use crate::jobs::Error;
use crate::postgres::Transaction;

/// The result of one round of housekeeping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    /// Days that were emptied.
    pub pruned_days: u64,
    /// Days past their retention that are still to be emptied.
    pub unpruned_days: u64,
    /// Rows deleted from small tables.
    pub forgotten: u64,
    /// The steps that failed; the others were done.
    pub failed: Vec<FailedStep>,
}

/// A step of housekeeping that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedStep {
    /// The name of the step, such as `prune`.
    pub step: &'static str,
    /// The reason.
    pub error: String,
}

impl MaintenanceReport {
    /// Adds the rows that one step deleted, or its failure. Fails only without a server, because
    /// the steps that follow need it too.
    fn note(&mut self, step: &'static str, done: Result<u64, Error>) -> Result<(), Error> {
        match done {
            Ok(rows) => self.forgotten += rows,
            Err(Error::Lost(lost)) => return Err(Error::Lost(lost)),
            Err(error) if self.failed.iter().all(|one| one.step != step) => {
                let error = error.to_string();
                self.failed.push(FailedStep { step, error });
            }
            Err(_) => {}
        }
        Ok(())
    }
}

/// The retention of finished jobs and dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Days for which finished jobs are kept.
    pub days: u32,
    /// Days for which dead letters are kept; 0 keeps them until they are requeued or discarded.
    pub dead_days: u32,
}

/// The retention of one kind, instead of that of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindRetention {
    /// The kind.
    pub kind: String,
    /// The retention of its finished jobs; `None` for that of all kinds.
    pub finished: Option<Duration>,
    /// The retention of its dead letters; `None` for that of all kinds.
    pub dead: Option<Duration>,
}

impl Retention {
    /// Returns a retention of `days` for finished jobs and without end for dead letters.
    pub fn days(days: u32) -> Self {
        Self { days, dead_days: 0 }
    }
}

/// The longest wait of one step for a lock. A transaction of a producer that stays open may have
/// locked one of the rows; the step comes again in the next round.
const LOCK_TIMEOUT: &str = "set local lock_timeout = '2s'";

/// The most rows that one statement deletes.
const MAX_ROWS_DELETED: i64 = 5_000;

/// The most repetitions of one statement in one round.
const STEPS_MAX: usize = 100;

/// The most lanes that one round checks.
const LANES_LOOKED_AT: i64 = 10_000;

/// The most jobs that one step through a day with many live jobs reads.
const MAX_ROWS_THINNED: i32 = 5_000;

/// The time after which a round begins to prune no further day, and leaves the rest to the next
/// round.
const PRUNING: Duration = Duration::from_secs(10);

/// The time for thinning, apart from that for pruning, so that days that cannot be pruned do not
/// hold up those that must be thinned.
const THINNING: Duration = Duration::from_secs(15);

/// The time of all kinds together in a round, and that of batches; the next round goes on from
/// there.
const EXPIRING: Duration = Duration::from_secs(10);

/// The duty cycle of expiring jobs of a kind: it works for one part in this many of the time.
const EXPIRE_DUTY: u32 = 3;

/// The duty cycle of thinning: it works for one part in this many of the time.
const THIN_DUTY: u32 = 5;

pub(super) const ENSURE_DAYS: &str =
    "select flyball.ensure_day(flyball.day_of(now()) + i) from generate_series(0, 7) as i";

// Days without an entry come first, then those that have waited longest. The names are read before
// anything is asked of their numbers: with some dozens of days the planner would look at all
// relations first, and most names have no number.
pub(super) const OLD_DAYS: &str = "
with days as materialized (
    select substr(c.relname, 5)::bigint as day
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'flyball.job'::regclass
)
select p.day, d.next is not null as crowded
from days p
left join flyball.day d on d.day = p.day
where p.day < flyball.day_of(now()) - $1::bigint
    and (d.day is null or d.next is not null or d.pruned_at < now() - interval '1 day')
order by d.pruned_at nulls first, 1";

// A job is as old as its last attempt: one that waited for weeks and ran today keeps its result as
// long as any other.
pub(super) const PRUNE_DAY: &str =
    "select flyball.prune_day($1, now() - make_interval(days => $2))";

pub(super) const THIN_DAY: &str =
    "select next from flyball.thin_day($1, now() - make_interval(days => $2), $3)";

// A producer that takes an expired key over has locked its row until it commits.
pub(super) const FORGET_UNIQUE: &str = "
delete from flyball.unique_holder
where digest = any(array(
    select digest from flyball.unique_holder where expires_at < now() order by expires_at limit $1 for update skip locked
))";

pub(super) const FORGET_RESULTS: &str = "
delete from flyball.result
where job_id = any(array(select job_id from flyball.result where kept_until < now() order by kept_until limit $1))";

pub(super) const FORGET_FAILURES: &str = "
delete from flyball.failure
where id = any(array(
    select id from flyball.failure where id < (select max(id) - 10000 from flyball.failure) order by id limit $1
))";

// Each change by a person or the governor writes a line. The newest hundred thousand are kept, and of
// each tenant the newest ten thousand, so that no tenant takes the place of others. A short log is not
// looked at.
pub(super) const FORGET_AUDIT: &str = "
with recursive tenants as (
    (
        select (select a.tenant from flyball.audit a where a.tenant is not null order by a.tenant limit 1) as tenant
        where (select max(a.id) - min(a.id) from flyball.audit a) >= 10000
    )
    union all
    select (select a.tenant from flyball.audit a where a.tenant > t.tenant order by a.tenant limit 1)
    from tenants t where t.tenant is not null
),
old as materialized (
    select o.id
    from tenants t
    cross join lateral (
        select a.id from flyball.audit a
        where a.tenant = t.tenant and a.id <= (
            select b.id from flyball.audit b where b.tenant = t.tenant order by b.tenant desc, b.id desc offset 10000 limit 1
        )
        order by a.tenant, a.id limit $1
    ) o
    union all
    (
        select a.id from flyball.audit a
        where a.tenant is null and a.id <= (
            select b.id from flyball.audit b
            where b.tenant is null and (select max(m.id) - min(m.id) from flyball.audit m) >= 100000
            order by b.tenant desc, b.id desc offset 100000 limit 1
        )
        order by a.tenant, a.id limit $1
    )
)
delete from flyball.audit where id = any(array(select o.id from old o limit $1))";

// The leases, which no index serves by worker, are read once and looked up in memory.
pub(super) const FORGET_WORKERS: &str = "
delete from flyball.worker w
where w.id = any(array(
    select o.id from flyball.worker o
    where o.stopped_at < now() - interval '1 day' and o.id not in (select l.worker_id from flyball.lease l)
    order by o.id
    limit $1
))";

// A job that was asked to stop and neither runs nor waits has ended by itself. One that waits again
// must still be cancelled, however long it waits.
pub(super) const FORGET_CANCELS: &str = "
delete from flyball.cancel c
where c.job_id = any(array(
    select o.job_id from flyball.cancel o
    where o.requested_at < now() - interval '1 minute' and not exists (select 1 from flyball.lease l where l.job_id = o.job_id)
        and coalesce(flyball.job_state(o.job_id), 'deleted') not in ('ready', 'scheduled', 'retryable')
    order by o.job_id
    limit $1
    for update of o skip locked
))";

// A lease whose job cannot be found is run by no worker, and nothing else would ever end it.
pub(super) const FORGET_UNREADABLE: &str = "
delete from flyball.lease
where job_id = any(array(
    select o.job_id from flyball.lease o
    where o.claimed_at < now() - interval '1 minute' and (select 1 from flyball.job j where j.id = o.job_id limit 1) is null
    order by o.job_id
    limit $1
))
returning job_id";

// The job stays in the history of its day; its last attempt records its end. A dead letter whose job
// is gone has no history, and its day may have no place for one.
pub(super) const FORGET_DEAD: &str = "
with old as materialized (
    select job_id from flyball.dead where died_at < now() - make_interval(days => $2) order by died_at limit $1
    for update skip locked
),
deleted as (
    delete from flyball.dead where job_id = any(array(select job_id from old)) returning job_id, attempt
),
history as (
    insert into flyball.attempt (job_id, attempt, outcome, error)
    select d.job_id, d.attempt, 'cancelled', format('this dead letter expired after %s days', $2)
    from deleted d
    where (select 1 from flyball.job j where j.id = d.job_id limit 1) is not null
)
select job_id from deleted";

// A lane in use is written at least once a day, whatever the state of its jobs, and the walk that
// does so must have passed since. A weight set by a person is kept. The two pages make sure that
// all of a short directory is checked.
pub(super) const FORGET_LANES: &str = "
delete from flyball.lane
where depth = 0 and weight = 1 and lane_id = any(array(
    select d.lane_id from (
        (select * from flyball.lane where lane_id >= $1 order by lane_id limit $2)
        union all
        (select * from flyball.lane where lane_id < $1 order by lane_id limit $2)
    ) d
    cross join flyball.sweep s
    where s.one and d.depth = 0 and d.weight = 1 and d.first_seen < now() - make_interval(days => $3)
        and d.depth_at < least(now() - make_interval(days => $3), s.walked_at - interval '2 days')
        and (select r.lane_id from flyball.ready r where r.lane_id = d.lane_id limit 1) is null
))";

// Kinds that are kept shorter than all others, and those whose dead letters are kept otherwise.
pub(super) const KIND_RETENTIONS: &str = "
select kind, retention < make_interval(days => $1) as is_shorter, dead_retention is not null as keeps_dead
from flyball.kind_retention where kind <> '*' order by kind";

pub(super) const EXPIRE_JOBS: &str = "select deleted, more from flyball.expire_jobs($1, $2)";

pub(super) const EXPIRE_DEAD: &str = "
select e.deleted, e.more
from flyball.kind_retention k
cross join lateral flyball.expire_dead(k.kind, k.dead_retention, $2) e
where k.kind = $1";

pub(super) const EXPIRE_OTHER_DEAD: &str =
    "select deleted, more from flyball.expire_dead('*', make_interval(days => $1), $2)";

pub(super) const SET_RETENTION: &str = "
select flyball.set_retention($1, make_interval(secs => $2), make_interval(secs => $3))";

// A batch stays as long as a record of any of its messages.
pub(super) const FORGET_BATCHES: &str = "select deleted, more from flyball.forget_batches($1)";

pub(super) const FORGET_DEPTHS: &str = "
delete from flyball.depth
where throttle = any(array(
    select throttle from flyball.depth
    where ready = 0 and scheduled = 0 and running = 0 and dead = 0 and counted_at < now() - interval '1 day'
    order by throttle
    limit $1
))";

impl Queue {
    /// Creates the partitions of the coming week, empties days past their retention, and trims
    /// small tables.
    ///
    /// A step that fails is reported, and the others go on; without a server the round ends.
    pub async fn maintain(&self, retention: Retention) -> Result<MaintenanceReport, Error> {
        let mut done = MaintenanceReport::default();
        let days = self.create_days().await;
        done.note("create days", days.map(|()| 0))?;
        let small = [
            ("forget unique keys", FORGET_UNIQUE),
            ("forget results", FORGET_RESULTS),
            ("forget failures", FORGET_FAILURES),
            ("forget audit", FORGET_AUDIT),
            ("forget workers", FORGET_WORKERS),
            ("forget cancels", FORGET_CANCELS),
            ("forget depths", FORGET_DEPTHS),
            ("forget reports", DELETE_OLD_REPORTS),
        ];
        for (step, statement) in small {
            let forgotten = self.forget(statement, None).await;
            done.note(step, forgotten)?;
        }
        let forgotten = self.forget(groups::FORGET, Some(retention.days)).await;
        done.note("forget groups", forgotten)?;
        let batches = || self.expire_some(sqlx::query(FORGET_BATCHES).bind(retention.days as i32));
        let forgotten = steps(batches, EXPIRING).await;
        done.note("forget batches", forgotten)?;
        let expired = self.expire(retention, &mut done).await;
        done.note("expire jobs", expired.map(|()| 0))?;
        // Each round checks another part of the directory; the ids of lanes are spread evenly.
        let lanes = sqlx::query(FORGET_LANES)
            .bind(rand::random::<i64>())
            .bind(LANES_LOOKED_AT)
            .bind(retention.days as i32);
        let forgotten = self.change(lanes).await;
        done.note("forget lanes", forgotten)?;
        let unreadable = self.forget_unreadable().await;
        done.note("forget leases", unreadable.map(|()| 0))?;
        let pruned = self.prune(retention, &mut done).await;
        done.note("prune", pruned.map(|()| 0))?;
        Ok(done)
    }

    /// Creates the parts of the tables for the attempts of this day and of the next ones.
    pub async fn create_days(&self) -> Result<(), Error> {
        self.rows(sqlx::query(ENSURE_DAYS)).await.map(drop)
    }

    /// Sets the retention of a kind's finished jobs and of its dead letters; `None` is that of all
    /// kinds.
    pub async fn set_retention(
        &self,
        kind: &str,
        finished: Option<Duration>,
        dead: Option<Duration>,
    ) -> Result<(), Error> {
        sqlx::query(SET_RETENTION)
            .bind(kind)
            .bind(finished.map(|span| span.as_secs_f64()))
            .bind(dead.map(|span| span.as_secs_f64()))
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Deletes leases whose jobs cannot be found.
    async fn forget_unreadable(&self) -> Result<(), Error> {
        let rows = self
            .rows(sqlx::query(FORGET_UNREADABLE).bind(MAX_ROWS_DELETED))
            .await?;
        let jobs: Vec<i64> = rows
            .iter()
            .map(|row| row.try_get("job_id"))
            .collect::<Result<_, sqlx::Error>>()?;
        if !jobs.is_empty() {
            tracing::error!(
                ?jobs,
                "deleted leases of jobs that no longer exist in flyball.job"
            );
        }
        Ok(())
    }

    /// Discards dead letters past their retention, and deletes finished jobs of kinds that are kept
    /// shorter than all others.
    async fn expire(
        &self,
        retention: Retention,
        done: &mut MaintenanceReport,
    ) -> Result<(), Error> {
        let kinds: Vec<(String, Option<bool>, bool)> = sqlx::query_as(KIND_RETENTIONS)
            .bind(retention.days as i32)
            .fetch_all(&self.pool)
            .await?;
        // Each gets its share, and at least one step.
        let share = EXPIRING / (2 * kinds.len() as u32 + 1);
        let keep_dead = kinds.iter().any(|(_, _, keeps_dead)| *keeps_dead);
        if retention.dead_days > 0 && !keep_dead {
            let forgotten = self.forget(FORGET_DEAD, Some(retention.dead_days)).await;
            done.note("forget dead letters", forgotten)?;
        } else if retention.dead_days > 0 {
            let step = || {
                let statement = sqlx::query(EXPIRE_OTHER_DEAD)
                    .bind(retention.dead_days as i32)
                    .bind(MAX_ROWS_DELETED as i32);
                self.expire_some(statement)
            };
            let expired = steps(step, share).await;
            done.note("expire dead letters", expired)?;
        }
        for (kind, is_shorter, keeps_dead) in &kinds {
            for (name, statement, is_due) in [
                ("expire dead letters of kinds", EXPIRE_DEAD, *keeps_dead),
                (
                    "expire jobs of kinds",
                    EXPIRE_JOBS,
                    is_shorter.unwrap_or(false),
                ),
            ] {
                let step = || {
                    let statement = sqlx::query(statement)
                        .bind(kind)
                        .bind(MAX_ROWS_DELETED as i32);
                    self.expire_some(statement)
                };
                if is_due {
                    let expired = steps(step, share).await;
                    done.note(name, expired)?;
                }
            }
        }
        Ok(())
    }

    /// Runs one step of expiry; returns the rows that it deleted, and true if there are more.
    async fn expire_some(
        &self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<Option<(i64, bool)>, Error> {
        let rows = self.rows(statement).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        Ok(Some((row.try_get("deleted")?, row.try_get("more")?)))
    }

    /// Empties the days past their retention; those in which too many jobs stay are thinned
    /// instead.
    async fn prune(&self, retention: Retention, done: &mut MaintenanceReport) -> Result<(), Error> {
        let began = Instant::now();
        let kept_days = retention.days as i32;
        let old: Vec<(i64, bool)> = sqlx::query_as(OLD_DAYS)
            .bind(i64::from(retention.days))
            .fetch_all(&self.pool)
            .await?;
        let mut crowded: VecDeque<i64> = old
            .iter()
            .filter(|(_, is_crowded)| *is_crowded)
            .map(|(day, _)| *day)
            .collect();
        let due = old.iter().filter(|(_, is_crowded)| !is_crowded);
        done.unpruned_days = (old.len() - crowded.len()) as u64;
        for (day, _) in due {
            if began.elapsed() >= PRUNING {
                break;
            }
            match self.prune_day(*day, kept_days).await {
                // Another process is pruning.
                Ok(None) => return Ok(()),
                Ok(Some(..0)) => {
                    done.unpruned_days -= 1;
                    crowded.push_back(*day);
                }
                Ok(Some(_)) => {
                    done.unpruned_days -= 1;
                    done.pruned_days += 1;
                }
                // A transaction that reads this day and does not end must not hold up the other
                // days.
                Err(error) => done.note("prune", Err(error))?,
            }
        }
        let thinned = self.thin(crowded, kept_days).await;
        done.note("thin", thinned.map(|()| 0))
    }

    /// Empties one day; returns the number of jobs that stay, below 0 for too many, and `None` if
    /// another process is pruning.
    async fn prune_day(&self, day: i64, kept_days: i32) -> Result<Option<i64>, Error> {
        let statement = sqlx::query(PRUNE_DAY).bind(day).bind(kept_days);
        let rows = self.rows(statement).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        Ok(row.try_get(0)?)
    }

    /// Repeats a bounded statement until it finds no more rows, up to [`STEPS_MAX`] times.
    async fn forget(&self, statement: &'static str, days: Option<u32>) -> Result<u64, Error> {
        let mut forgotten = 0;
        for _ in 0..STEPS_MAX {
            let mut step = sqlx::query(statement).bind(MAX_ROWS_DELETED);
            if let Some(days) = days {
                step = step.bind(days as i32);
            }
            let rows = self.change(step).await?;
            forgotten += rows;
            if rows < MAX_ROWS_DELETED as u64 {
                break;
            }
        }
        Ok(forgotten)
    }

    /// Walks through days with many live jobs, a step of each in turn, and deletes the jobs that
    /// are not live.
    ///
    /// Each step stores its position, so that the next round goes on from there.
    async fn thin(&self, mut days: VecDeque<i64>, kept_days: i32) -> Result<(), Error> {
        let began = Instant::now();
        while began.elapsed() < THINNING
            && let Some(day) = days.pop_front()
        {
            let step = Instant::now();
            let statement = sqlx::query(THIN_DAY)
                .bind(day)
                .bind(kept_days)
                .bind(MAX_ROWS_THINNED);
            let rows = self.rows(statement).await?;
            let next: Option<i64> = match rows.first() {
                Some(row) => row.try_get("next")?,
                None => None,
            };
            days.extend(next.map(|_| day));
            tokio::time::sleep(step.elapsed() * (THIN_DUTY - 1)).await;
        }
        Ok(())
    }

    /// Runs a statement in a transaction of its own, and returns the number of its rows.
    async fn change(&self, statement: Query<'_, Postgres, PgArguments>) -> Result<u64, Error> {
        let mut transaction = self.begin_step().await?;
        let statement = statement.persistent(false);
        let done = statement.execute(&mut *transaction).await;
        Ok(transaction.end(done).await?.rows_affected())
    }

    /// Runs a statement in a transaction of its own, and returns its rows.
    async fn rows(&self, statement: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>, Error> {
        let mut transaction = self.begin_step().await?;
        let statement = statement.persistent(false);
        let rows = statement.fetch_all(&mut *transaction).await;
        Ok(transaction.end(rows).await?)
    }

    /// Begins a transaction in which a statement waits for no lock for long.
    async fn begin_step(&self) -> Result<Transaction, sqlx::Error> {
        let mut transaction = self.pool.begin().await?;
        sqlx::raw_sql(LOCK_TIMEOUT)
            .execute(&mut *transaction)
            .await?;
        Ok(transaction)
    }
}

/// Repeats a bounded step until it has nothing more to do, for a while, and rests in between so that
/// it takes a part of the time only; returns the rows that it deleted.
async fn steps<F>(step: impl Fn() -> F, share: Duration) -> Result<u64, Error>
where
    F: Future<Output = Result<Option<(i64, bool)>, Error>>,
{
    let began = Instant::now();
    let mut deleted = 0;
    loop {
        let begun = Instant::now();
        let Some((rows, more)) = step().await? else {
            return Ok(deleted);
        };
        deleted += rows.unsigned_abs();
        if !more || began.elapsed() >= share {
            return Ok(deleted);
        }
        tokio::time::sleep(begun.elapsed() * (EXPIRE_DUTY - 1)).await;
    }
}
