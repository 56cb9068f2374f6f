//! The measurements of one throttle.

use super::pace::Slope;
use crate::governor::GovernorView;
use crate::jobs::{Depth, Failing};
use crate::throttle::{HeldKeys, Status};

/// The measurements of one throttle in one second.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The status in the store; absent for a name that only jobs use and while the store is lost.
    pub status: Option<Status>,
    /// The actual rate.
    pub slope: Option<Slope>,
    /// The jobs of the throttle.
    pub depth: Depth,
    pub governor: Option<GovernorView>,
    /// The keys that hold jobs back.
    pub held: Option<HeldKeys>,
    /// The failures, if all jobs of the throttle fail.
    pub failing: Option<Failing>,
    /// The state that the throttle inherits from one above that grants nothing.
    pub above: Option<&'static str>,
    /// True while its jobs do not start because Postgres or Redis accepts no writes.
    pub is_unwritable: bool,
}
