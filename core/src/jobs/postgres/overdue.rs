//! Housekeeping that is overdue, because no process does it.

use sqlx::Row;

use super::Queue;
use crate::jobs::Error;

// Days are created a week ahead, and each is emptied on the day on which its retention ends. As for
// old days, no other relation's name may be taken for a number.
pub(super) const OVERDUE: &str = "
with days as materialized (
    select substr(c.relname, 5)::bigint as day
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'flyball.job'::regclass
)
select (
        select count(*) from generate_series(0, 2) as i
        where to_regclass(format('flyball.job_%s', flyball.day_of(now()) + i)) is null
    ) as missing_days,
    (
        select count(*)
        from days p
        where p.day < flyball.day_of(now()) - $1::bigint - 1
            and not exists (select from flyball.day d where d.day = p.day)
    ) as unpruned_days";

/// Housekeeping that no process has done in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverdueHousekeeping {
    /// Days among the next three that have no partition yet.
    pub missing_days: i64,
    /// Days past their retention for a day that were never emptied.
    pub unpruned_days: i64,
}

impl Queue {
    /// Returns the housekeeping that is overdue, if finished jobs are kept for so many days.
    pub async fn overdue_housekeeping(&self, kept_days: u32) -> Result<OverdueHousekeeping, Error> {
        let row = sqlx::query(OVERDUE)
            .bind(i64::from(kept_days))
            .fetch_one(&self.pool)
            .await?;
        Ok(OverdueHousekeeping {
            missing_days: row.try_get("missing_days")?,
            unpruned_days: row.try_get("unpruned_days")?,
        })
    }
}
