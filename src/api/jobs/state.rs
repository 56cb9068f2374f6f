//! The dependencies of the routes of jobs.

use std::sync::Arc;

use crate::api::http::metrics::HttpMetrics;
use crate::jobs::{Kinds, Queue};
use crate::throttle::Store;

pub struct JobsState {
    pub queue: Queue,
    /// The handlers of this process, for their checks of arguments.
    pub kinds: Kinds,
    pub throttles: Arc<dyn Store>,
    pub metrics: HttpMetrics,
}
