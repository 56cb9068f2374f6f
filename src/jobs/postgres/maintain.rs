//! Housekeeping: days ahead, days past, and small tables kept small.

use super::Queue;
use crate::jobs::Error;

/// What one round of housekeeping did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Days that were emptied.
    pub pruned_days: u64,
    /// Rows of small tables that were forgotten.
    pub forgotten: u64,
}

pub(super) const ENSURE_DAYS: &str = "select flyball.ensure_day(flyball.day_of(now()) + i) from generate_series(0, 7) as i";

pub(super) const OLD_DAYS: &str = "
select substr(c.relname, 5)::bigint as day
from pg_inherits i
join pg_class c on c.oid = i.inhrelid
where i.inhparent = 'flyball.job'::regclass and substr(c.relname, 5)::bigint < flyball.day_of(now()) - $1::bigint
order by 1";

pub(super) const PRUNE_DAY: &str = "select flyball.prune_day($1)";

pub(super) const FORGET_UNIQUE: &str = "delete from flyball.uniq where expires_at < now()";

pub(super) const FORGET_FAILURES: &str = "delete from flyball.failure where id < (select max(id) - 10000 from flyball.failure)";

pub(super) const FORGET_WORKERS: &str = "
delete from flyball.worker w
where w.stopped_at < now() - interval '1 day' and not exists (select 1 from flyball.lease l where l.worker_id = w.id)";

impl Queue {
    /// Makes the partitions of the coming week, empties days older than `retention_days`, and trims small tables.
    pub async fn maintain(&self, retention_days: u32) -> Result<Maintained, Error> {
        sqlx::query(ENSURE_DAYS).execute(&self.pool).await?;
        let mut done = Maintained::default();
        let old: Vec<i64> = sqlx::query_scalar(OLD_DAYS).bind(i64::from(retention_days)).fetch_all(&self.pool).await?;
        for day in old {
            sqlx::query(PRUNE_DAY).bind(day).execute(&self.pool).await?;
            done.pruned_days += 1;
        }
        for statement in [FORGET_UNIQUE, FORGET_FAILURES, FORGET_WORKERS] {
            done.forgotten += sqlx::query(statement).execute(&self.pool).await?.rows_affected();
        }
        Ok(done)
    }
}
