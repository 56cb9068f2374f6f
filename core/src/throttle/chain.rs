//! A chain of throttles, the demands of lanes on it, and the answers to them.

use std::sync::Arc;

use super::bucket::{Bucket, Rate, UsageCounters};
use super::rolling_window::{WindowGrants, WindowLimit};
use super::throttle_refusal::ThrottleRefusal;

/// A throttle of the chain.
#[derive(Clone, Debug)]
pub struct Level {
    /// The rate in force.
    pub rate: Rate,
    /// The throttle's bucket.
    pub bucket: Bucket,
    /// The throttle's rolling windows.
    pub windows: Vec<WindowLimit>,
    /// The grants that they remember.
    pub grants: Vec<WindowGrants>,
    /// The throttle's counters.
    pub meter: UsageCounters,
    /// The jobs that may still begin under its concurrency limit; `None` for no limit.
    pub room: Option<f64>,
    /// True if it may take what it lacks from the spare tokens of the level above.
    pub borrows: bool,
    /// The last refusal that concerned the whole throttle.
    pub refusal: Option<ThrottleRefusal>,
    /// True if its concurrency limit records the greatest number of holders and the caller is not
    /// among them.
    pub is_full: bool,
    /// The reason of a stop because of zero capacity; empty otherwise.
    pub stopped_because: String,
}

/// The request of one lane.
#[derive(Clone, Debug)]
pub struct LaneDemand<'a> {
    /// The key; empty for none.
    pub key: &'a str,
    /// The number of units wanted.
    pub want: f64,
    /// The cost of one unit, in tokens.
    pub cost: f64,
    /// The end of the key's pause, unix milliseconds.
    pub paused_until_ms: Option<i64>,
    /// The jobs of the key that may still begin under its concurrency limit; `None` for no limit.
    pub room: Option<f64>,
}

impl LaneDemand<'_> {
    /// Returns true if the levels alone decide.
    pub(super) fn is_plain(&self, key_rate: Rate, now: f64) -> bool {
        let is_paused = self
            .paused_until_ms
            .is_some_and(|until| until as f64 * 1000.0 > now);
        !is_paused && self.room.is_none() && (self.key.is_empty() || key_rate.rps.is_unlimited())
    }

    /// Returns true if both want the same at the same cost.
    pub(super) fn is_like(&self, other: &LaneDemand<'_>) -> bool {
        self.want == other.want && self.cost == other.cost
    }
}

/// The use of a key's concurrency limit by the lanes of that key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeySlots {
    /// The jobs that may still begin.
    pub left: f64,
    /// The jobs granted.
    pub granted: f64,
}

/// The answer to one lane.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneAnswer {
    /// The number of units granted.
    pub granted: f64,
    /// The microseconds until the next unit fits, if fewer were granted than wanted.
    pub wait_us: f64,
    /// The place that limits, if fewer were granted than wanted.
    pub limit: Option<LimitedBy>,
    /// The microseconds charged per unit, root first, then the key; empty if nothing was granted. 0
    /// where another bucket may have paid for the unit: at a level that borrows, and at a key with
    /// learned state.
    pub charge_us: Arc<[f64]>,
    /// True if learned state of the key or a refusal of a level requires a report of how the
    /// granted jobs end.
    pub watched: bool,
}

/// The place in the tree that limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitedBy {
    /// The rate of the throttle at this index of the chain, root first.
    Level(usize),
    /// The rolling windows of the throttle at this index of the chain.
    Windows(usize),
    /// The key's own rate.
    Key,
    /// The learned rate of the key.
    Learned,
    /// The pause of the key.
    Paused,
    /// The pause after a refusal of the throttle at this index of the chain.
    LevelPaused(usize),
    /// The probe limit of the throttle at this index of the chain, after a pause.
    Probing(usize),
    /// The probe limit of the key, after a pause.
    KeyProbing,
    /// The stop of the throttle at this index of the chain.
    Stopped(usize),
    /// The concurrency limit of the throttle at this index of the chain.
    Crowded(usize),
    /// The limit of holders recorded by the throttle at this index of the chain.
    Full(usize),
    /// The key's concurrency limit.
    KeyCrowded,
}

/// Clamps a cost to the range of the law: above 0 and at most 1e9 tokens.
pub fn sane_cost(cost: f64) -> f64 {
    if cost.is_nan() {
        1.0
    } else {
        cost.clamp(1e-9, 1e9)
    }
}

/// The parts of the learned state that an ask must respect.
#[derive(Clone, Copy, Debug)]
pub struct LearnedParts {
    /// True if learned rates apply.
    pub rates: bool,
    /// True if probe limits apply. They do not apply to work that runs already, which would wait
    /// for its own end.
    pub probes: bool,
}
