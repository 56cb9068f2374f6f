//! The connections of a listener: counted, told of in metrics, and closed where there is no room.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::crowd::{Crowd, Id, Place};
use super::denied::Origin;

/// The same trouble is logged once in this time, with a count.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// The open connections of a process. Cheap to clone.
#[derive(Clone)]
pub struct Connections(Arc<Shared>);

struct Shared {
    crowd: Mutex<Crowd<CancellationToken>>,
    open: Family<State, Gauge>,
    refused: Family<Reason, Counter>,
    told: Mutex<Told>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct State {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Default)]
struct Told {
    at: Option<Instant>,
    since: u64,
}

/// Why a connection was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It said nothing and left for another.
    MadeRoom,
    /// There was no room, and nobody to make some.
    Full,
    /// It had a place in reserve and asked for more than the health of the process.
    Reserve,
    /// The system had no descriptor for it.
    Accept,
}

impl Refusal {
    const ALL: [Self; 4] = [Self::MadeRoom, Self::Full, Self::Reserve, Self::Accept];

    fn word(self) -> &'static str {
        match self {
            Self::MadeRoom => "made_room",
            Self::Full => "full",
            Self::Reserve => "reserve",
            Self::Accept => "accept",
        }
    }
}

impl Connections {
    /// At most so many connections, and a few in reserve.
    pub fn new(most: usize) -> Self {
        let shared = Shared {
            crowd: Mutex::new(Crowd::new(most)),
            open: Family::default(),
            refused: Family::default(),
            told: Mutex::default(),
        };
        for reason in Refusal::ALL {
            // A rate over a series that begins with its first event misses that event.
            let _ = shared.refused.get_or_create(&Reason {
                reason: reason.word(),
            });
        }
        let connections = Self(Arc::new(shared));
        connections.count(&connections.crowd());
        connections
    }

    /// Registers what is counted.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "flyball_connections",
            "Open connections to the API, by what they do",
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

    /// Takes a connection in; `None` where there is no room for it.
    pub fn admit(&self, origin: Origin) -> Option<Seat> {
        let close = CancellationToken::new();
        let mut crowd = self.crowd();
        let admitted = crowd.admit(origin, close.clone());
        self.count(&crowd);
        drop(crowd);
        if let Some(door) = admitted.sent_away {
            door.cancel();
            self.refused(Refusal::MadeRoom);
        }
        match admitted.seat {
            Some((id, place)) => Some(Seat {
                connections: self.clone(),
                id,
                place,
                close,
            }),
            None => {
                self.refused(Refusal::Full);
                None
            }
        }
    }

    /// Counts a connection that was not served, and tells of it now and then.
    pub fn refused(&self, why: Refusal) {
        self.0
            .refused
            .get_or_create(&Reason { reason: why.word() })
            .inc();
        let mut told = self.0.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.since += 1;
        if told.at.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
            let (count, reason) = (told.since, why.word());
            *told = Told {
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

    fn crowd(&self) -> MutexGuard<'_, Crowd<CancellationToken>> {
        // Nothing that runs under the lock leaves it half done.
        self.0.crowd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, crowd: &Crowd<CancellationToken>) {
        let (all, waiting) = crowd.counts();
        self.0
            .open
            .get_or_create(&State { state: "waiting" })
            .set(waiting as i64);
        self.0
            .open
            .get_or_create(&State { state: "busy" })
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

/// An open connection's place; given back when dropped.
#[derive(Debug)]
pub struct Seat {
    connections: Connections,
    id: Id,
    place: Place,
    /// Fires when it has to leave.
    pub close: CancellationToken,
}

impl Seat {
    /// Only the health of the process is told here.
    pub fn is_reserve(&self) -> bool {
        self.place == Place::Reserve
    }

    /// The listener's connections.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// A request has come; `None` if the connection had to leave already. It is being answered until the value is dropped.
    pub fn begin(self: &Arc<Self>) -> Option<Busy> {
        let mut crowd = self.connections.crowd();
        let stays = crowd.begins(self.id);
        self.connections.count(&crowd);
        stays.then(|| Busy(self.clone()))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut crowd = self.connections.crowd();
        crowd.leaves(self.id);
        self.connections.count(&crowd);
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub struct Busy(Arc<Seat>);

impl Drop for Busy {
    fn drop(&mut self) {
        let connections = &self.0.connections;
        let mut crowd = connections.crowd();
        crowd.ends(self.0.id);
        connections.count(&crowd);
    }
}
