//! The clock of a fake: unix time that never goes back.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// The unix time at the start, advanced by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    started_ms: u64,
}

impl Clock {
    /// Starts the clock from one reading of the system's clock.
    #[expect(
        clippy::disallowed_methods,
        reason = "a fake is a server with its own clock"
    )]
    pub fn start() -> Self {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            started: Instant::now(),
            started_ms: u64::try_from(since.as_millis()).unwrap_or_default(),
        }
    }

    /// Returns the unix time in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.started_ms + u64::try_from(self.started.elapsed().as_millis()).unwrap_or_default()
    }
}
