//! What all connections of a fake share.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::clock::Clock;
use super::events::Told;
use super::ledger::{Ledger, Verdict};
use super::wire::{Asked, Came, House};
use super::{Events, Latency, Speaks};

/// How long answers take, and the room for those that are worked on.
pub(super) struct Pace {
    latency: Latency,
    room: Semaphore,
}

impl Pace {
    pub(super) fn new(latency: Latency) -> Self {
        Self { latency, room: Semaphore::new(latency.at_once.max(1)) }
    }
}

/// The same number for the same content.
pub(super) fn mark(content: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

/// What all connections of a fake share.
pub(super) struct Server {
    pub speaks: Speaks,
    pub house: Arc<House>,
    pub ledger: Mutex<Ledger>,
    pub clock: Clock,
    pub seed: u64,
    pub tells_delay: bool,
    pub tells_quota: bool,
    pub pace: Mutex<Option<Arc<Pace>>>,
    pub stop: CancellationToken,
    /// Rung when every HTTP/2 connection shall say goodbye.
    pub goodbye: Notify,
    /// Connections are closed as soon as they come.
    pub is_closed: AtomicBool,
    /// Connections that were ever opened, and that are open.
    pub opened: AtomicU64,
    pub open: AtomicU64,
    /// Requests that came and are not answered yet.
    pub under_way: AtomicU64,
    /// For so long a connection serves one request at a time after a rejected one, in milliseconds; 0 for never.
    pub narrow_ms: AtomicU64,
    /// The last request that came.
    pub last: Mutex<Option<Came>>,
    pub events: Option<(Events, mpsc::UnboundedSender<(Duration, Told)>)>,
}

impl Server {
    /// The ledger; nothing waits while it is locked.
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what becomes of a message; the time is read under the lock, so that it never goes back in the ledger.
    pub(super) fn judge(&self, asked: &Asked, mark: u64) -> (Verdict, u64) {
        let mut ledger = self.ledger();
        let now_ms = self.clock.now_ms();
        (ledger.judge(asked, mark, now_ms), now_ms)
    }

    /// Remembers an accepted message, and its events with it.
    pub(super) fn remember(&self, asked: &Asked, id: &str, number: u64, now_ms: u64) {
        self.ledger().remember(asked, id, now_ms);
        let Some((events, poster)) = &self.events else { return };
        let Some((fate, times)) = events.fate(self.seed, number) else { return };
        let told = Told {
            event_id: format!("event-{number:016x}"),
            account: asked.account.clone(),
            id: id.to_owned(),
            to: asked.to.clone(),
            fate,
            callback: asked.callback.clone().unwrap_or_else(|| events.callback(&asked.account).to_owned()),
            at_ms: now_ms + u64::try_from(events.delay.as_millis()).unwrap_or_default(),
        };
        for delay in times {
            let _ = poster.send((delay, told.clone()));
        }
    }

    /// Takes the time that an answer takes.
    pub(super) async fn work(&self) {
        let pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(pace) = pace {
            let _place = pace.room.acquire().await;
            sleep(pace.latency.base).await;
        }
    }
}
