//! The entries of the journals that a follower has seen already.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::api::audit::entry::AuditEntry;
use crate::governor::Decision;
use crate::jobs::FailedAttempt;

/// The age up to which the first read for a new listener reports events; a listener that has one
/// already recognizes its number.
pub const FIRST_LOOK: Duration = Duration::from_secs(3);
/// The most events of one kind that are read at a time.
pub const FOLLOWED_MAX: i64 = 50;

/// The numbers of the entries that the last read of each journal had.
#[derive(Default)]
pub struct SeenIds {
    decisions: Option<BTreeSet<i64>>,
    failures: Option<BTreeSet<(i64, i32, Timestamp)>>,
    audit: Option<BTreeSet<i64>>,
}

impl SeenIds {
    /// Returns the decisions that are new, oldest first; at the first read those since `lately`.
    pub fn new_decisions(&mut self, items: Vec<Decision>, lately: Timestamp) -> Vec<Decision> {
        fresh(&mut self.decisions, items, |it| it.id, |it| it.at >= lately)
    }

    /// Returns the failures that are new, like [`SeenIds::new_decisions`].
    pub fn new_failures(
        &mut self,
        items: Vec<FailedAttempt>,
        lately: Timestamp,
    ) -> Vec<FailedAttempt> {
        fresh(
            &mut self.failures,
            items,
            |it| (it.job_id, it.attempt, it.at),
            |it| it.at >= lately,
        )
    }

    /// Returns the entries of the audit log that are new, like [`SeenIds::new_decisions`].
    pub fn new_entries(&mut self, items: Vec<AuditEntry>, lately: Timestamp) -> Vec<AuditEntry> {
        fresh(&mut self.audit, items, |it| it.id, |it| it.at >= lately)
    }
}

/// Returns the items (given newest first) that the last read did not have, oldest first; at the
/// first read, the recent ones.
fn fresh<T, K: Ord + Copy>(
    seen: &mut Option<BTreeSet<K>>,
    items: Vec<T>,
    key: impl Fn(&T) -> K,
    is_recent: impl Fn(&T) -> bool,
) -> Vec<T> {
    let keys: BTreeSet<K> = items.iter().map(&key).collect();
    let before = seen.replace(keys);
    let is_new = |item: &T| {
        before
            .as_ref()
            .map_or_else(|| is_recent(item), |before| !before.contains(&key(item)))
    };
    items.into_iter().filter(is_new).rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_gets_what_is_new_once_and_oldest_first() {
        let mut seen = None;
        assert_eq!(fresh(&mut seen, vec![3, 2, 1], |n| *n, |n| *n > 2), [3]);
        assert_eq!(fresh(&mut seen, vec![5, 4, 3], |n| *n, |_| true), [4, 5]);
        assert_eq!(
            fresh(&mut seen, vec![5, 4, 3], |n| *n, |_| true),
            Vec::<i32>::new()
        );
        assert_eq!(fresh(&mut seen, vec![6, 5, 4], |n| *n, |_| true), [6]);
    }

    #[test]
    fn the_first_entry_of_an_empty_journal_is_new() {
        let mut seen = None;
        assert!(fresh(&mut seen, Vec::<i32>::new(), |n| *n, |_| true).is_empty());
        assert_eq!(fresh(&mut seen, vec![1], |n| *n, |_| true), [1]);
    }
}
