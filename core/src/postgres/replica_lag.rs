//! The age of the data of a replica. Pure.

use std::time::{Duration, Instant};

/// Facts that a server tells of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplicaFacts {
    /// False for a primary, whose data are never old.
    pub is_replica: bool,
    /// True while a connection to the primary brings new data.
    pub is_receiving: bool,
    /// True if all that was received is in effect.
    pub has_replayed_all: bool,
    /// True if an operator has paused the replay.
    pub is_paused: bool,
    /// The age of the last transaction of the primary that is in effect; `None` before the first
    /// one since the replica started.
    pub last_replayed: Option<Duration>,
}

/// The measurement of one replica's lag, which remembers when it last had everything.
///
/// The last replayed transaction is old on a replica whose primary is idle, although nothing is
/// missing. A replica that receives and has replayed all it received therefore lags by nothing, and
/// one that did so a moment ago by no more than that moment, whatever the age of the transaction.
/// If nothing is received any more, having replayed all of it proves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplicaLag {
    complete_at: Option<Instant>,
}

impl ReplicaLag {
    /// Returns the lag by these facts; `None` if they do not show it.
    pub fn observe(&mut self, facts: &ReplicaFacts, now: Instant) -> Option<Duration> {
        if !facts.is_replica || facts.is_receiving && facts.has_replayed_all {
            self.complete_at = Some(now);
            return Some(Duration::ZERO);
        }
        let since_complete = self.complete_at.map(|at| now.saturating_duration_since(at));
        let bounds = [facts.last_replayed, since_complete];
        bounds.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn behind(last_replayed: Option<Duration>) -> ReplicaFacts {
        ReplicaFacts {
            is_replica: true,
            is_receiving: true,
            last_replayed,
            ..ReplicaFacts::default()
        }
    }

    #[test]
    fn a_replica_of_an_idle_primary_does_not_lag() {
        let mut lag = ReplicaLag::default();
        let now = Instant::now();
        let idle = ReplicaFacts {
            has_replayed_all: true,
            ..behind(Some(3600 * S))
        };
        assert_eq!(lag.observe(&idle, now), Some(Duration::ZERO));
        // The first transaction after the idle hour was received and is not in effect yet.
        let first = behind(Some(3601 * S));
        assert_eq!(lag.observe(&first, now + S), Some(S));
    }

    #[test]
    fn a_replica_that_receives_nothing_is_as_old_as_its_last_transaction() {
        let mut lag = ReplicaLag::default();
        let now = Instant::now();
        let cut_off = ReplicaFacts {
            is_receiving: false,
            has_replayed_all: true,
            ..behind(Some(90 * S))
        };
        assert_eq!(lag.observe(&cut_off, now), Some(90 * S));
    }

    #[test]
    fn a_paused_replica_is_older_with_each_look() {
        let mut lag = ReplicaLag::default();
        let now = Instant::now();
        assert_eq!(lag.observe(&behind(Some(2 * S)), now), Some(2 * S));
        assert_eq!(lag.observe(&behind(Some(5 * S)), now + 3 * S), Some(5 * S));
    }

    #[test]
    fn without_a_transaction_the_lag_is_unknown_and_a_primary_has_none() {
        let mut lag = ReplicaLag::default();
        let now = Instant::now();
        assert_eq!(lag.observe(&behind(None), now), None);
        let primary = ReplicaFacts::default();
        assert_eq!(lag.observe(&primary, now), Some(Duration::ZERO));
    }
}
