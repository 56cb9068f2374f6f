//! A replica for reads that may be some seconds old, with its lag and the decision to use it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::Row;

use super::options::connect_options;
use super::replica_lag::{ReplicaFacts, ReplicaLag};
use super::{Access, Db};

/// The longest wait for a connection to the replica, and for its answer about its lag. The primary
/// takes over then, within the time that a request has.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

// Received and replayed positions are equal on a replica that has everything, whatever the time of
// the last transaction. The row of the receiver is there while there is one, but only members of
// pg_read_all_stats see more of it than that.
const FACTS: &str = "
select r.is_replica,
    r.is_replica and exists (select from pg_stat_wal_receiver) as is_receiving,
    case when r.is_replica then coalesce(pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn(), false) else true end as has_replayed_all,
    case when r.is_replica then pg_is_wal_replay_paused() else false end as is_paused,
    extract(epoch from clock_timestamp() - pg_last_xact_replay_timestamp())::float8 as last_replayed_s
from (select pg_is_in_recovery() as is_replica) r";

/// The statement of this file, for the test that prepares all on the migrated schema.
pub const STATEMENTS: [(&str, &str); 1] = [("facts of a replica", FACTS)];

/// The state of a replica at the last check.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaState {
    /// The lag at the last check that had an answer; `None` before the first one, and if it is not
    /// known.
    pub lag: Option<Duration>,
    /// The facts of that check.
    pub facts: ReplicaFacts,
    /// The reason for which reads go to the primary; `None` if they go to the replica.
    pub unused: Option<String>,
}

/// The numbers of reads by the server that answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaReads {
    /// Reads that the replica answered.
    pub replica: u64,
    /// Reads that the primary answered because the replica could not, or lags too much.
    pub primary: u64,
}

/// A replica and the decision whether reads go to it. A clone is another handle to the same.
#[derive(Clone)]
pub struct Replica(Arc<ReplicaInner>);

struct ReplicaInner {
    db: Db,
    lag_max: Duration,
    seen: Mutex<Seen>,
    from_replica: AtomicU64,
    from_primary: AtomicU64,
}

struct Seen {
    lag: ReplicaLag,
    state: ReplicaState,
    /// False until the first check, whose bad news is logged like that of a change.
    is_known: bool,
}

impl Replica {
    /// Creates the pool without connecting yet; reads go to the primary until
    /// [`Replica::measure`] has found that the replica lags by at most `lag_max`.
    pub fn new(access: &Access, connections: u32, lag_max: Duration) -> Result<Self, sqlx::Error> {
        let options = connect_options(&access.url)?;
        let state = ReplicaState {
            unused: Some("it has not been looked at yet".to_owned()),
            ..ReplicaState::default()
        };
        Ok(Self(Arc::new(ReplicaInner {
            db: Db::lazy(options, access.pooler, connections, CHECK_TIMEOUT),
            lag_max,
            seen: Mutex::new(Seen {
                lag: ReplicaLag::default(),
                state,
                is_known: false,
            }),
            from_replica: AtomicU64::new(0),
            from_primary: AtomicU64::new(0),
        })))
    }

    /// Returns the pool of the replica, for reads that must have its data whatever their age.
    pub fn db(&self) -> &Db {
        &self.0.db
    }

    /// Returns the largest lag with which the replica is used.
    pub fn lag_max(&self) -> Duration {
        self.0.lag_max
    }

    /// Asks the replica for its lag and decides whether reads go to it. A change is logged.
    pub async fn measure(&self) -> ReplicaState {
        let asked = tokio::time::timeout(CHECK_TIMEOUT, facts(&self.0.db)).await;
        let answer = match asked {
            Ok(Ok(facts)) => Ok(facts),
            Ok(Err(error)) => Err(format!("it cannot be reached: {error}")),
            Err(_) => Err(format!(
                "it does not answer within {} s",
                CHECK_TIMEOUT.as_secs()
            )),
        };
        self.note(answer, Instant::now())
    }

    fn note(&self, answer: Result<ReplicaFacts, String>, now: Instant) -> ReplicaState {
        let mut seen = self.0.seen.lock();
        let was_used = seen.state.unused.is_none();
        match answer {
            Ok(facts) => {
                let lag = seen.lag.observe(&facts, now);
                seen.state.unused = judge(lag, &facts, self.0.lag_max);
                (seen.state.lag, seen.state.facts) = (lag, facts);
            }
            Err(reason) => seen.state.unused = Some(reason),
        }
        match &seen.state.unused {
            Some(reason) if was_used || !seen.is_known => {
                tracing::warn!(%reason, "lists are read from the primary and not from the replica");
            }
            None if !was_used => tracing::info!("lists are read from the replica"),
            _ => {}
        }
        seen.is_known = true;
        seen.state.clone()
    }

    /// Returns the state at the last check.
    pub fn state(&self) -> ReplicaState {
        self.0.seen.lock().state.clone()
    }

    /// Returns the lag if reads go to the replica now.
    pub fn usable(&self) -> Option<Duration> {
        let seen = self.0.seen.lock();
        match seen.state.unused {
            None => seen.state.lag,
            Some(_) => None,
        }
    }

    /// Counts a read by the server that answered it.
    pub fn count(&self, is_from_replica: bool) {
        let counter = match is_from_replica {
            true => &self.0.from_replica,
            false => &self.0.from_primary,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the numbers of reads so far.
    pub fn reads(&self) -> ReplicaReads {
        ReplicaReads {
            replica: self.0.from_replica.load(Ordering::Relaxed),
            primary: self.0.from_primary.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica")
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// Returns the reason for which a replica with this lag is not used.
fn judge(lag: Option<Duration>, facts: &ReplicaFacts, max: Duration) -> Option<String> {
    let paused = match facts.is_paused {
        true => "; its replay is paused",
        false => "",
    };
    match lag {
        None => Some(format!("its lag is unknown{paused}")),
        Some(lag) if lag > max => Some(format!(
            "it lags by {:.1} s, more than {} s{paused}",
            lag.as_secs_f64(),
            max.as_secs_f64()
        )),
        Some(_) => None,
    }
}

async fn facts(db: &Db) -> Result<ReplicaFacts, sqlx::Error> {
    let row = sqlx::query(FACTS).fetch_one(db).await?;
    let last_replayed_s: Option<f64> = row.try_get("last_replayed_s")?;
    // The clock of the primary may be ahead of the replica's.
    let last_replayed = last_replayed_s.and_then(|s| Duration::try_from_secs_f64(s.max(0.0)).ok());
    Ok(ReplicaFacts {
        is_replica: row.try_get("is_replica")?,
        is_receiving: row.try_get("is_receiving")?,
        has_replayed_all: row.try_get("has_replayed_all")?,
        is_paused: row.try_get("is_paused")?,
        last_replayed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_replica_is_used_while_its_lag_is_known_and_within_the_bound() {
        let access = Access::from("postgres://nobody@localhost/none");
        let replica = Replica::new(&access, 2, 30 * S).unwrap();
        assert_eq!(replica.usable(), None, "nobody has looked yet");
        let now = Instant::now();
        let behind = |s: u32| ReplicaFacts {
            is_replica: true,
            is_receiving: true,
            last_replayed: Some(s * S),
            ..ReplicaFacts::default()
        };

        replica.note(Ok(behind(30)), now);
        assert_eq!(replica.usable(), Some(30 * S));
        let state = replica.note(Ok(behind(31)), now);
        assert_eq!(replica.usable(), None);
        assert_eq!(
            state.unused.as_deref(),
            Some("it lags by 31.0 s, more than 30 s")
        );
        let lost = replica.note(Err("it cannot be reached: cut".to_owned()), now);
        assert_eq!(lost.lag, Some(31 * S), "the last one that is known");
        replica.note(Ok(behind(1)), now);
        assert_eq!(replica.usable(), Some(S));
    }
}
