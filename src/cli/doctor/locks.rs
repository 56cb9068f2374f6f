//! Check for sessions that hold locks on the tables of the queue.

use sqlx::Row;

use super::finding::{Finding, Findings};
use crate::governor::explain::seconds;
use crate::jobs::Queue;

const CHECK: &str = "postgres";

// Locks that let nobody write are told from the time after which Flyball's own statements give up,
// others once their session has been idle for a minute. The age of a transaction of another role
// may be hidden.
const HOLDERS: &str = "
select holder.pid, holder.usename::text as role,
    extract(epoch from clock_timestamp() - holder.xact_start)::float8 as open_s,
    bool_or(held.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')) as is_exclusive
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
struct LockHolder {
    pid: i32,
    role: String,
    /// The age of its transaction, in seconds; `None` if it is hidden from our role.
    open_s: Option<f64>,
    /// True if nobody else can write into one of these tables.
    is_exclusive: bool,
}

/// Reports sessions that hold up others by the locks that they hold.
pub(super) async fn check(queue: &Queue, report: &mut Findings) {
    let read = async {
        let rows = sqlx::query(HOLDERS).fetch_all(&queue.pool).await?;
        let of = |row: &sqlx::postgres::PgRow| {
            Ok::<_, sqlx::Error>(LockHolder {
                pid: row.try_get("pid")?,
                role: row.try_get("role")?,
                open_s: row.try_get("open_s")?,
                is_exclusive: row.try_get("is_exclusive")?,
            })
        };
        rows.iter().map(of).collect::<Result<Vec<_>, _>>()
    };
    // A role that may not read this has no finding, and no other check depends on it.
    if let Ok(holders) = read.await {
        report.extend(holders.iter().map(judge));
    }
}

fn judge(holder: &LockHolder) -> Finding {
    let LockHolder { pid, role, .. } = holder;
    let open = match holder.open_s {
        Some(open_s) => format!(" for {}", seconds(open_s)),
        None => String::new(),
    };
    let todo = format!("end its transaction, or the session: select pg_terminate_backend({pid})");
    match holder.is_exclusive {
        true => Finding::fail(
            CHECK,
            format!(
                "session {pid} of the role {role} has locked a table of the queue{open}, so that \
                 jobs can be neither accepted nor claimed where it is needed"
            ),
            todo,
        ),
        false => Finding::warn(
            CHECK,
            format!(
                "session {pid} of the role {role} is idle in a transaction that has been \
                 open{open}: what it has locked in the queue waits"
            ),
            todo,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Health;
    use super::*;

    #[test]
    fn a_table_that_is_locked_fails_and_a_transaction_that_stays_open_warns() {
        let judged = |open_s, is_exclusive| {
            judge(&LockHolder {
                pid: 7,
                role: "billing".to_owned(),
                open_s,
                is_exclusive,
            })
        };
        let locked = judged(Some(40.0), true);
        assert_eq!(locked.health, Health::Fail);
        assert!(
            locked.seen.starts_with(
                "session 7 of the role billing has locked a table of the queue for 40 s"
            ),
            "{}",
            locked.seen
        );
        assert!(locked.todo.unwrap().ends_with("pg_terminate_backend(7)"));
        assert!(judged(None, true).seen.contains("of the queue, so that"));

        let open = judged(Some(600.0), false);
        assert_eq!(open.health, Health::Warn);
        assert!(open.seen.contains("open for 10 min"), "{}", open.seen);
    }
}
