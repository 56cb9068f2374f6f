//! Queue depth and age as signals, injected from outside so that this room and the governor need
//! not know jobs.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{Error, Missing, Reading};

/// The ready work of a throttle at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Depth {
    /// Ready jobs.
    pub ready: f64,
    /// Seconds for which the oldest of them has waited; 0 if there is none.
    pub oldest_s: f64,
    /// The time of the measurement, in unix seconds.
    pub at: f64,
}

impl Depth {
    /// Returns the number of ready jobs as a reading.
    pub fn jobs(&self) -> Reading {
        Reading {
            value: self.ready,
            at: self.at,
        }
    }

    /// Returns the age of the oldest ready job as a reading, in seconds.
    pub fn age(&self) -> Reading {
        Reading {
            value: self.oldest_s,
            at: self.at,
        }
    }
}

/// Returns the ready work of the throttle of that name, or the reason for which it is not known.
pub type DepthSource = Arc<dyn Fn(&str) -> BoxFuture<'static, Result<Depth, Error>> + Send + Sync>;

/// Returns a source without readings.
pub fn no_depth() -> DepthSource {
    Arc::new(|_| Box::pin(std::future::ready(Err(Error::from(Missing::Absent)))))
}
