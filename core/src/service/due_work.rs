//! The loops of a process that wait for work in Postgres, woken by the one that looks for all.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

/// The time after which a loop looks by itself, although nothing woke it.
pub const UNWOKEN_EVERY: Duration = Duration::from_secs(10);

/// Notifications of due work. A worker looks once a second for all of it, in one statement, so that
/// an idle process costs Postgres next to nothing. Cheap to clone; clones share everything.
#[derive(Clone, Debug, Default)]
pub struct DueWork {
    /// Occurrences of schedules.
    pub schedules: Arc<Notify>,
    /// Messages that are to be planned.
    pub messages: Arc<Notify>,
    /// Digests that close.
    pub digests: Arc<Notify>,
}
