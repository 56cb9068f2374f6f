//! The depths last read, shared by the clones of a queue.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use crate::jobs::Depth;

/// The figures of all throttles, as last read from their table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Depths {
    /// The depths, in the order of the throttles' names; throttles without jobs are left out.
    pub throttles: Vec<Depth>,
    /// A lower bound of the time at which the figures were counted; `None` before the first walk
    /// has ended.
    pub at: Option<jiff::Timestamp>,
    /// The age of the figures when they were read, by the clock of Postgres.
    pub age: Option<Duration>,
    /// True if a live process keeps the figures.
    pub is_kept: bool,
    /// A lower bound of the time at which the figures of lanes were counted; `None` before all were
    /// written once.
    pub lanes_at: Option<jiff::Timestamp>,
}

/// The figures last read, with the time of that read.
#[derive(Default)]
pub(super) struct DepthCache(pub(super) Mutex<Option<(Instant, Depths)>>);
