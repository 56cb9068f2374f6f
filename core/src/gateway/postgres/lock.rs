//! The lock under which publications are moved and channels are forgotten.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::{Row, query};

use crate::jobs::Error;
use crate::postgres::Transaction;

// The lock is that of a row, which no other role can take. A program of before the first
// version takes an advisory lock instead, so both are taken: a row tells that the first is held by
// this transaction, and its column whether the second is as well.
pub(super) const LOCK: &str = "
select pg_try_advisory_xact_lock(hashtextextended('flyball.publications', 0)) as is_free_of_older
from (select from flyball.mutex where name = 'publications' for update skip locked) held";

/// The time for which the advisory lock of older collectors is respected. A collector holds it for a
/// moment, but every role that may connect can take it and keep it.
const RESPECTED_FOR: Duration = Duration::from_secs(5);

/// The collectors of programs of before the first version, as far as their lock tells of them.
#[derive(Debug, Default)]
pub struct OlderCollectors {
    held: Mutex<Option<HeldLock>>,
}

/// A lock that was held at every poll.
#[derive(Debug)]
struct HeldLock {
    since: Instant,
    is_reported: bool,
}

impl OlderCollectors {
    /// Returns true if the work may go on, given whether their lock is free.
    pub(super) fn let_go_on(&self, is_free: bool, now: Instant) -> bool {
        let mut held = self.held.lock();
        if is_free {
            *held = None;
            return true;
        }
        let held = held.get_or_insert(HeldLock {
            since: now,
            is_reported: false,
        });
        if now.duration_since(held.since) < RESPECTED_FOR {
            return false;
        }
        if !held.is_reported {
            held.is_reported = true;
            tracing::warn!(
                "a session keeps the advisory lock of collectors of an older version; messages of \
                 channels are moved without it"
            );
        }
        true
    }
}

/// Takes the lock until the end of the transaction; returns false if somebody else has it.
pub(super) async fn lock(
    transaction: &mut Transaction,
    older: &OlderCollectors,
) -> Result<bool, Error> {
    let Some(row) = query(LOCK).fetch_optional(transaction).await? else {
        return Ok(false);
    };
    let is_free = row.try_get("is_free_of_older")?;
    Ok(older.let_go_on(is_free, Instant::now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_a_stranger_keeps_holds_the_work_up_for_a_moment_only() {
        let older = OlderCollectors::default();
        let began = Instant::now();

        assert!(older.let_go_on(true, began));
        assert!(!older.let_go_on(false, began));
        assert!(!older.let_go_on(false, began + RESPECTED_FOR / 2));
        assert!(older.let_go_on(false, began + RESPECTED_FOR));
        assert!(older.let_go_on(false, began + RESPECTED_FOR * 2));

        // The next one that is held may be that of a collector.
        assert!(older.let_go_on(true, began + RESPECTED_FOR * 3));
        assert!(!older.let_go_on(false, began + RESPECTED_FOR * 4));
    }
}
