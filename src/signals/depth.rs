//! Queue depth and age as signals, handed in from outside so that this room and the governor need not know what a job is.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::Reading;

/// What waits for a throttle, as of a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Depth {
    /// Ready jobs.
    pub ready: f64,
    /// Seconds since the oldest of them was enqueued; 0 if there is none.
    pub oldest_s: f64,
    /// As of when, in unix seconds.
    pub at: f64,
}

impl Depth {
    /// How much waits.
    pub fn jobs(&self) -> Reading {
        Reading { value: self.ready, at: self.at }
    }

    /// How long the oldest has waited, in seconds.
    pub fn age(&self) -> Reading {
        Reading { value: self.oldest_s, at: self.at }
    }
}

/// Answers how much ready work waits for the throttle of that name, and as of when; `None` if it is not known.
pub type DepthSource = Arc<dyn Fn(&str) -> BoxFuture<'static, Option<Depth>> + Send + Sync>;

/// A source that knows no depth.
pub fn no_depth() -> DepthSource {
    Arc::new(|_| Box::pin(std::future::ready(None)))
}
