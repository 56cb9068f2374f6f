//! The state that all connections of a fake share.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::clock::Clock;
use super::events::PendingEvent;
use super::ledger::{Ledger, RequestDecision};
use super::wire::{FakeRequest, FormatState, IncomingRequest};
use super::{Events, FakeProvider, Latency};

/// The latency of answers, with a permit for each request that is worked on.
pub(super) struct LatencyModel {
    latency: Latency,
    room: Semaphore,
}

impl LatencyModel {
    pub(super) fn new(latency: Latency) -> Self {
        Self {
            latency,
            room: Semaphore::new(latency.at_once.max(1)),
        }
    }
}

/// Returns a hash that is the same for the same content.
pub(super) fn mark(content: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

/// The state that all connections of a fake share.
pub(super) struct FakeServer {
    pub speaks: FakeProvider,
    pub format_state: Arc<FormatState>,
    pub ledger: Mutex<Ledger>,
    pub clock: Clock,
    pub seed: u64,
    pub tells_delay: bool,
    pub tells_quota: bool,
    pub pace: Mutex<Option<Arc<LatencyModel>>>,
    pub stop: CancellationToken,
    /// Notifies every HTTP/2 connection to send GOAWAY.
    pub goodbye: Notify,
    /// The number of connections ever opened.
    pub opened: AtomicU64,
    pub open: AtomicU64,
    /// The number of requests not answered yet.
    pub under_way: AtomicU64,
    /// The time for which a connection serves one request at a time after a rejected one, in
    /// milliseconds; 0 for never.
    pub narrow_ms: AtomicU64,
    /// The last HTTP request.
    pub last: Mutex<Option<IncomingRequest>>,
    pub events: Option<(Events, mpsc::UnboundedSender<(Duration, PendingEvent)>)>,
}

impl FakeServer {
    /// Locks the ledger; no task waits for anything else while it holds the lock.
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// Decides on a message and returns the time of the decision, in unix milliseconds.
    ///
    /// The time is read under the lock, so that it never goes back in the ledger.
    pub(super) fn judge(&self, requested: &FakeRequest, mark: u64) -> (RequestDecision, u64) {
        let mut ledger = self.ledger();
        let now_ms = self.clock.now_ms();
        (ledger.judge(requested, mark, now_ms), now_ms)
    }

    /// Stores an accepted message and schedules its events.
    pub(super) fn remember(&self, requested: &FakeRequest, id: &str, number: u64, now_ms: u64) {
        self.ledger().remember(requested, id, now_ms);
        let Some((events, poster)) = &self.events else {
            return;
        };
        let Some((fate, times)) = events.fate(self.seed, number) else {
            return;
        };
        let answer = PendingEvent {
            event_id: format!("event-{number:016x}"),
            account: requested.account.clone(),
            id: id.to_owned(),
            to: requested.to.clone(),
            fate,
            callback: requested
                .callback
                .clone()
                .unwrap_or_else(|| events.callback(&requested.account).to_owned()),
            at_ms: now_ms + u64::try_from(events.delay.as_millis()).unwrap_or_default(),
        };
        for delay in times {
            let _ = poster.send((delay, answer.clone()));
        }
    }

    /// Waits for the time that an answer takes.
    pub(super) async fn work(&self) {
        let pace = self.pace.lock().clone();
        if let Some(pace) = pace {
            let _place = pace.room.acquire().await;
            sleep(pace.latency.base).await;
        }
    }
}
