//! An acquire: the request for tokens and slots, and its answer.

use std::sync::Arc;
use std::time::Duration;

use crate::throttle::knobs::MAX_COST;
use crate::throttle::{Name, OverLimit, RateLimit};

/// The number of lanes that one ask should carry, so that Redis is never blocked for more than half
/// a millisecond. Larger asks take several calls, and so do smaller ones whose lanes have limits of
/// their own.
pub const MAX_LANES_PER_ASK: usize = 256;

/// The longest rate-limit key, in bytes.
pub const MAX_KEY_BYTES: usize = 512;

/// Returns an error text if `key` cannot be a rate-limit key.
pub fn check_key(key: &str) -> Result<(), String> {
    if key.len() <= MAX_KEY_BYTES && !key.contains('\0') {
        return Ok(());
    }
    Err(format!(
        "the key has {} bytes; allowed: at most {MAX_KEY_BYTES} without NUL",
        key.len()
    ))
}

/// A request for tokens of one throttle, for many lanes at once.
#[derive(Clone, Debug, PartialEq)]
pub struct AcquireRequest {
    /// The throttle; its tiers are charged as well.
    pub throttle: Name,
    /// The lanes in the order in which they are served; at most [`MAX_LANES_PER_ASK`].
    pub lanes: Vec<LaneRequest>,
    /// The holder that will run the granted jobs, counted by the concurrency limits. `None` asks
    /// for tokens alone, for work that runs already: no concurrency limit applies to it.
    pub holder: Option<Holder>,
}

/// A process that runs jobs, as the concurrency limits know it. All its numbers are absolute, so
/// that the next report corrects an answer or a release that got lost; its jobs lapse `ttl` after
/// its last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The id, unique for each start of a process.
    pub id: String,
    /// The time for which this report counts; at most an hour.
    pub ttl: Duration,
    /// The jobs of the throttle that it runs now, including granted jobs not yet claimed.
    pub held: u32,
}

/// The request of one lane.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneRequest {
    /// The rate-limit key; empty if jobs name none.
    pub key: String,
    /// The number of units of work wanted.
    pub want: u32,
    /// The cost of one unit in tokens; above 0, at most 1e9.
    pub cost: f64,
    /// The jobs of this lane that the holder runs now, counted as [`Holder::held`]; ignored without
    /// a holder.
    pub held: u32,
}

impl Default for LaneRequest {
    /// Returns a request for one unit of one token, without a key.
    fn default() -> Self {
        Self {
            key: String::new(),
            want: 1,
            cost: 1.0,
            held: 0,
        }
    }
}

/// The answer to an [`AcquireRequest`].
#[derive(Clone, Debug, PartialEq)]
pub struct AcquireResponse {
    /// The grants, one per lane, in the order of the ask.
    pub lanes: Vec<Grant>,
    /// The rate in force for the throttle itself.
    pub effective_rps: RateLimit,
    /// The store's clock, unix microseconds; 0 if the store could not be asked.
    pub at_us: i64,
    /// The knobs' `seq` at that time.
    pub seq: u64,
    /// The knob `weight`: the throttle's share beside others in a worker.
    pub weight: f64,
    /// True if the throttle, a level above it or its keys have a concurrency limit, so that
    /// releases must be reported with [`super::Store::hold`].
    pub limits_concurrency: bool,
    /// True if the throttle and those above it decide alone: none of its keys has a rate, a pause
    /// or learned state. False if unknown.
    pub levels_decide: bool,
    /// True if the throttle, a level above it or its keys have rolling windows, which allow nothing
    /// to be charged later. False if unknown.
    pub has_windows: bool,
    /// The knob `over_limit`: the fate of jobs that were not granted.
    pub over_limit: OverLimit,
    /// The highest charged cost of one unit, in tokens; a more expensive unit was charged this.
    pub max_cost: f64,
    /// The server's error if the store counts as lost although the server answers.
    pub server_error: Option<&'static str>,
}

impl Default for AcquireResponse {
    /// Returns an answer that grants nothing to no lane.
    fn default() -> Self {
        Self {
            lanes: Vec::new(),
            effective_rps: RateLimit::Stopped,
            at_us: 0,
            seq: 0,
            weight: 1.0,
            limits_concurrency: false,
            levels_decide: false,
            has_windows: false,
            over_limit: OverLimit::Wait,
            max_cost: MAX_COST,
            server_error: None,
        }
    }
}

impl AcquireResponse {
    /// Returns true if the store decided: false while it is away, or does not know the throttle, as
    /// after it was emptied and until its knobs are back.
    pub fn is_decided(&self) -> bool {
        let is_unknown = |lane: &Grant| matches!(lane.limit, Some(Limit::Unknown { .. }));
        self.at_us != 0 && !self.lanes.iter().any(is_unknown)
    }
}

/// The answer to one lane.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grant {
    /// The number of units of work granted, 0 to `want`.
    pub granted: u32,
    /// The time until the next unit fits, if fewer were granted than wanted.
    pub wait: Duration,
    /// The level that limits, if fewer were granted than wanted.
    pub limit: Option<Limit>,
    /// True if the rolling windows of the throttle in `limit` cause the wait, and not its rate;
    /// false if a key limits.
    pub by_windows: bool,
    /// The microseconds that one unit was charged at each level, root first, then the key, for
    /// [`super::Store::refund_many`]. Empty if nothing was granted or the store was lost. Lanes
    /// with the same charges share it.
    pub charge_us: Arc<[f64]>,
    /// True if a server has refused the lane before or reported its quota, so that
    /// [`super::Store::ended`] must report how its jobs end.
    pub watched: bool,
}

impl Grant {
    /// Returns true if nothing is granted because the throttle that was asked does not exist.
    pub fn says_unknown(&self, asked: &Name) -> bool {
        matches!(&self.limit, Some(Limit::Unknown { name }) if name == asked)
    }
}

/// The level that granted less than was wanted.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "level", rename_all = "snake_case")]
pub enum Limit {
    /// A throttle above the one that was asked.
    Tier {
        /// The name of that throttle.
        name: Name,
    },
    /// The throttle itself.
    Throttle,
    /// The key's own rate.
    Key,
    /// The pause of the key, for instance after a 429, or of the whole throttle.
    Paused {
        /// The end of the pause, unix milliseconds.
        until_ms: i64,
        /// The reason of the pause.
        why: String,
        /// The throttle, if all of it is paused and not the key alone.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<Name>,
    },
    /// The key's rate as learned from refusals or from a reported quota.
    Learned,
    /// The limit of probes after a pause, while it is unknown if the server accepts jobs again.
    /// Their answers cannot be foreseen, so the wait is a guess.
    Probing {
        /// The throttle that probes.
        name: Name,
        /// True if only this lane is affected.
        key: bool,
    },
    /// A rate or a capacity of 0, or a pause by a person, of this throttle or of one above.
    Stopped {
        /// The stopped throttle.
        name: Name,
        /// The reason of zero capacity; empty if a person or the governor stopped the throttle.
        #[serde(skip_serializing_if = "String::is_empty")]
        why: String,
    },
    /// The concurrency limit. A release cannot be foreseen, so the wait is a guess.
    Concurrency {
        /// The throttle that has the limit.
        name: Name,
        /// True for `key_concurrency`, which limits this lane alone; false for `concurrency`, which
        /// limits all lanes.
        key: bool,
    },
    /// The limit of holders that a throttle's concurrency limit records; this one is not among
    /// them.
    Holders {
        /// The throttle.
        name: Name,
    },
    /// The absence of a throttle of that name.
    Unknown {
        /// The missing throttle.
        name: Name,
    },
    /// The loss of the store.
    StoreLost,
}
