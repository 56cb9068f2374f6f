//! Check for sessions that hold locks on the tables of the queue.

use super::finding::{Finding, Findings};
use crate::governor::explain::seconds;
use crate::jobs::Queue;
use crate::jobs::postgres::LockHolder;

const CHECK: &str = "postgres";

/// Reports sessions that hold up others by the locks that they hold.
pub(super) async fn check(queue: &Queue, report: &mut Findings) {
    // A role that may not read them has no finding, and no other check depends on it.
    if let Ok(holders) = queue.lock_holders().await {
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
        false => {
            let waiting = match holder.has_only_read {
                true => "it has read the queue, and migrations and the emptying of old days wait",
                false => "what it has locked in the queue waits",
            };
            Finding::warn(
                CHECK,
                format!(
                    "session {pid} of the role {role} is idle in a transaction that has been \
                     open{open}: {waiting}"
                ),
                todo,
            )
        }
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
                has_only_read: false,
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
        assert!(
            open.seen
                .ends_with("open for 10 min: what it has locked in the queue waits"),
            "{}",
            open.seen
        );
        let reader = judge(&LockHolder {
            pid: 7,
            role: "backup".to_owned(),
            open_s: Some(600.0),
            is_exclusive: false,
            has_only_read: true,
        });
        assert!(
            reader
                .seen
                .contains(": it has read the queue, and migrations")
        );
    }
}
