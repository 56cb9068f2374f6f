//! The lease of the windows that hold while the store of throttles is away.
//!
//! Each process has windows of its own, so only one of them may use its own at a time. It renews
//! the lease while it collects. Another gets it two seconds after the last use at the earliest,
//! when all that the first let go is older than a window.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::postgres::Db;
use crate::service::Leader;

/// The name of the lease.
const NAME: &str = "gateway windows";

/// The validity of the lease.
const TTL: Duration = Duration::from_secs(3);

/// The time that is left of it after each use at least.
const LEFT_MIN: Duration = Duration::from_secs(2);

/// The lease, as a process sees it. Cheap to clone; clones share everything.
#[derive(Clone)]
pub(super) struct WindowLease {
    leader: Leader,
    until: Arc<Mutex<Option<Instant>>>,
}

impl WindowLease {
    /// Creates the lease of a process that has this name.
    pub fn new(db: &Db, process: &str) -> Self {
        Self {
            leader: Leader::sharing(db, NAME, process, TTL),
            until: Arc::default(),
        }
    }

    /// Takes or renews the lease; returns true if this process has it now.
    pub async fn holds(&self) -> bool {
        let now = Instant::now();
        if self
            .until
            .lock()
            .is_some_and(|until| now + LEFT_MIN < until)
        {
            return true;
        }
        let is_held = matches!(self.leader.hold().await, Ok(Some(_)));
        *self.until.lock() = is_held.then_some(now + TTL);
        is_held
    }
}
