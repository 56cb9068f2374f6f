//! Sessions that hold locks on the tables of the queue.

use sqlx::Row;

use super::Queue;
use crate::jobs::Error;

// Locks that let nobody write are told from the time after which Flyball's own statements give up,
// others once their session has been idle for a minute. The age of a transaction of another role
// may be hidden.
pub(super) const LOCK_HOLDERS: &str = "
select holder.pid, holder.usename::text as role,
    extract(epoch from clock_timestamp() - holder.xact_start)::float8 as open_s,
    bool_or(held.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')) as is_exclusive,
    bool_and(held.mode = 'AccessShareLock') as has_only_read
from pg_locks held
join pg_class named on named.oid = held.relation
join pg_stat_activity holder on holder.pid = held.pid
where held.locktype = 'relation' and held.granted
  and held.database = (select oid from pg_database where datname = current_database())
  and named.relnamespace = 'flyball'::regnamespace and named.relkind in ('r', 'p')
  and holder.pid <> pg_backend_pid() and holder.usename is not null
group by holder.pid, holder.usename, holder.xact_start, holder.state, holder.state_change
having case
    when bool_or(held.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'))
        then coalesce(holder.xact_start < clock_timestamp() - interval '3 seconds', true)
    else holder.state like 'idle in transaction%'
        and holder.state_change < clock_timestamp() - interval '1 minute'
end
order by 4 desc, 3 desc nulls last
limit 5";

/// A session that holds locks on tables of the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct LockHolder {
    /// The server process of the session.
    pub pid: i32,
    /// Its role.
    pub role: String,
    /// The age of its transaction, in seconds; `None` if it is hidden from our role.
    pub open_s: Option<f64>,
    /// True if nobody else can write into one of these tables.
    pub is_exclusive: bool,
    /// True if it has only read them, as a backup does.
    pub has_only_read: bool,
}

impl Queue {
    /// Returns up to five sessions that hold others up, the worst first. A role that may not read
    /// them gets an error.
    pub async fn lock_holders(&self) -> Result<Vec<LockHolder>, Error> {
        let rows = sqlx::query(LOCK_HOLDERS).fetch_all(&self.pool).await?;
        rows.iter()
            .map(|row| {
                Ok(LockHolder {
                    pid: row.try_get("pid")?,
                    role: row.try_get("role")?,
                    open_s: row.try_get("open_s")?,
                    is_exclusive: row.try_get("is_exclusive")?,
                    has_only_read: row.try_get("has_only_read")?,
                })
            })
            .collect()
    }
}
