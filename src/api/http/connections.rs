//! The connections of a listener: counted, reported in metrics, and closed beyond the limit.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::connection_slots::{ConnectionClass, ConnectionSlots, Id};
use super::denied::Origin;

/// The shortest time between two log lines about connections that were not served; each line has
/// their count.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The open connections of a process. Cheap to clone.
#[derive(Clone)]
pub struct Connections(Arc<ConnectionsShared>);

struct ConnectionsShared {
    crowd: Mutex<ConnectionSlots<CancellationToken>>,
    open: Family<StateLabels, Gauge>,
    refused: Family<Reason, Counter>,
    log_limit: Mutex<LogLimiter>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Default)]
struct LogLimiter {
    at: Option<Instant>,
    since: u64,
}

/// The reason for which a connection was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum ConnectionRefusal {
    /// It was idle and made room for another.
    MadeRoom,
    /// There was no room, and no idle connection could be closed.
    Full,
    /// It had a reserved place and asked for something other than the health of the process.
    Reserve,
    /// The system had no file descriptor for it.
    Accept,
}

impl ConnectionRefusal {
    const ALL: [Self; 4] = [Self::MadeRoom, Self::Full, Self::Reserve, Self::Accept];

    fn as_str(self) -> &'static str {
        self.into()
    }
}

impl Connections {
    /// Creates a table of at most `most` connections and a few reserved ones.
    pub fn new(most: usize) -> Self {
        let shared = ConnectionsShared {
            crowd: Mutex::new(ConnectionSlots::new(most)),
            open: Family::default(),
            refused: Family::default(),
            log_limit: Mutex::default(),
        };
        for reason in ConnectionRefusal::ALL {
            // A series that begins with its first event hides that event from `rate`.
            let _ = shared.refused.get_or_create(&Reason {
                reason: reason.as_str(),
            });
        }
        let connections = Self(Arc::new(shared));
        connections.count(&connections.crowd());
        connections
    }

    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "flyball_connections",
            "Open connections to the API, by state",
            self.0.open.clone(),
        );
        registry.register(
            "flyball_connections_refused",
            "Connections that were not served, by reason",
            self.0.refused.clone(),
        );
        let most = Gauge::<i64>::default();
        most.set(self.crowd().bound() as i64);
        registry.register(
            "flyball_connections_max",
            "Connections to the API that may be open at once",
            most,
        );
    }

    /// Admits a connection; `None` beyond the limit.
    pub fn admit(&self, origin: Origin) -> Option<ConnectionPermit> {
        let close = CancellationToken::new();
        let mut crowd = self.crowd();
        let admitted = crowd.admit(origin, close.clone());
        self.count(&crowd);
        drop(crowd);
        if let Some(connection) = admitted.sent_away {
            connection.cancel();
            self.refused(ConnectionRefusal::MadeRoom);
        }
        match admitted.seat {
            Some((id, place)) => Some(ConnectionPermit {
                connections: self.clone(),
                id,
                place,
                close,
            }),
            None => {
                self.refused(ConnectionRefusal::Full);
                None
            }
        }
    }

    /// Counts a connection that was not served, and logs it at most once per minute.
    pub fn refused(&self, why: ConnectionRefusal) {
        self.0
            .refused
            .get_or_create(&Reason {
                reason: why.as_str(),
            })
            .inc();
        let mut log_limit = self.0.log_limit.lock();
        log_limit.since += 1;
        if log_limit.at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            let (count, reason) = (log_limit.since, why.as_str());
            *log_limit = LogLimiter {
                at: Some(Instant::now()),
                since: 0,
            };
            tracing::warn!(
                count,
                reason,
                "connections to the API were closed for lack of room (setting http_connections, the limit of open files)"
            );
        }
    }

    fn crowd(&self) -> MutexGuard<'_, ConnectionSlots<CancellationToken>> {
        self.0.crowd.lock()
    }

    fn count(&self, crowd: &ConnectionSlots<CancellationToken>) {
        let (all, waiting) = crowd.counts();
        self.0
            .open
            .get_or_create(&StateLabels { state: "waiting" })
            .set(waiting as i64);
        self.0
            .open
            .get_or_create(&StateLabels { state: "busy" })
            .set((all - waiting) as i64);
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("counts", &self.crowd().counts())
            .finish_non_exhaustive()
    }
}

/// An open connection's place; released when dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    connections: Connections,
    id: Id,
    place: ConnectionClass,
    /// The token that is cancelled when the connection must close.
    pub close: CancellationToken,
}

impl ConnectionPermit {
    /// Returns true for a reserved place, on which only the health of the process is served.
    pub fn is_reserve(&self) -> bool {
        self.place == ConnectionClass::Reserve
    }

    /// Returns the listener's connections.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Marks the connection as busy until the returned value is dropped; `None` if the connection
    /// must already close.
    pub fn begin(self: &Arc<Self>) -> Option<RequestGuard> {
        let mut crowd = self.connections.crowd();
        let stays = crowd.begins(self.id);
        self.connections.count(&crowd);
        stays.then(|| RequestGuard(self.clone()))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut crowd = self.connections.crowd();
        crowd.leaves(self.id);
        self.connections.count(&crowd);
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub struct RequestGuard(Arc<ConnectionPermit>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let connections = &self.0.connections;
        let mut crowd = connections.crowd();
        crowd.ends(self.0.id);
        connections.count(&crowd);
    }
}
