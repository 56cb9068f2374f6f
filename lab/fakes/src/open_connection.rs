//! The state of an open connection, and the count of all.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::server::FakeServer;

/// The state of one connection.
pub(super) struct FakeConnection {
    /// The time until which the connection serves one request at a time, in unix milliseconds.
    narrow_until_ms: AtomicU64,
    one: Semaphore,
}

impl FakeConnection {
    pub(super) fn new() -> Self {
        Self {
            narrow_until_ms: AtomicU64::new(0),
            one: Semaphore::new(1),
        }
    }

    /// Waits for this request's turn while the connection serves one request at a time.
    pub(super) async fn turn(&self, server: &FakeServer) -> Option<SemaphorePermit<'_>> {
        if self.narrow_until_ms.load(Ordering::Relaxed) <= server.clock.now_ms() {
            return None;
        }
        self.one.acquire().await.ok()
    }

    /// Limits the connection to one request at a time for a while, if the fake is set to do so.
    pub(super) fn rejected(&self, server: &FakeServer) {
        let narrow_ms = server.narrow_ms.load(Ordering::Relaxed);
        if narrow_ms > 0 {
            self.narrow_until_ms
                .store(server.clock.now_ms() + narrow_ms, Ordering::Relaxed);
        }
    }
}

/// Counts a connection while it is open.
pub(super) struct OpenConnection<'a>(pub &'a FakeServer);

impl<'a> OpenConnection<'a> {
    pub(super) fn new(server: &'a FakeServer) -> Self {
        server.opened.fetch_add(1, Ordering::Relaxed);
        server.open.fetch_add(1, Ordering::Relaxed);
        Self(server)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
