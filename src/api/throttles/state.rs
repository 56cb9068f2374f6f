//! The dependencies of the routes of throttles and their lanes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::wait_queue::WaitQueues;
use crate::api::http::token_metrics::TokenMetrics;
use crate::api::journal::Decisions;
use crate::api::stream::live::Live;
use crate::jobs::Queue;
use crate::providers::Pools;
use crate::signals::Prometheus;
use crate::throttle::{CallerKnobs, KnobProblem, Store};

/// The check of knobs that a person wrote: fields with JSON values in, fields with the texts for
/// the hash out. The composition root passes `throttle::Knobs::check`.
pub type CheckKnobs =
    fn(&BTreeMap<String, Value>) -> Result<BTreeMap<String, Option<String>>, Vec<KnobProblem>>;

pub struct ThrottlesState {
    pub throttles: Arc<dyn Store>,
    pub queue: Queue,
    pub decisions: Arc<dyn Decisions>,
    pub check_knobs: CheckKnobs,
    pub pools: Arc<Pools>,
    pub live: Live,
    /// The requests that wait for tokens.
    pub lines: WaitQueues,
    /// The knobs that callers bring along.
    pub caller_knobs: CallerKnobs,
    /// The number of throttles beyond which none is made on first use.
    pub throttles_created_max: usize,
    /// The Prometheus that has the metrics of the throttles.
    pub prometheus: Arc<Prometheus>,
    /// The counters of requests for tokens.
    pub tokens: TokenMetrics,
    pub cancel: CancellationToken,
}
