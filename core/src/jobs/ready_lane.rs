//! Lanes with ready jobs, as discovery finds them.

/// A lane with at least one ready job.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadyLane {
    /// The id of the lane.
    pub lane_id: i64,
    /// The name of its throttle.
    pub throttle: String,
    /// The rate-limit key; empty for none.
    pub key: String,
    /// The share relative to the other lanes of the throttle, 1 by default.
    pub weight: f32,
}

/// A lane, with the priorities in which it holds ready jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyPriorities {
    /// The id of the lane.
    pub lane_id: i64,
    /// The priorities as bits 0 to 3: bit 0 for priority 0, and so on.
    pub priorities: u8,
    /// The first job of the most urgent priority; `i64::MAX`, as for a job that has just come, if
    /// it was not read.
    pub head: i64,
}
