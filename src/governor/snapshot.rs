//! A governor's state as explanations and watchdogs see it.

use std::collections::BTreeMap;

use super::actuator::Actuator;
use super::law::{Breaker, Hold, Signal, Week, WorkEstimate};
use super::manual_override::ManualOverride;
use super::plan::Plan;
use super::watchdogs::sharing::FollowerRatio;
use crate::control::History;

/// A governor's state, to be read.
#[derive(Clone, Copy)]
pub(super) struct Snapshot<'a> {
    /// The kind of knob that is set.
    pub actuator: Actuator,
    /// The log work rate in force.
    pub u: f64,
    /// The knob of the newest plan, in jobs per second or slots.
    pub knob: f64,
    /// The unit of work.
    pub work: &'a WorkEstimate,
    /// The work rate that was let through.
    pub history: &'a History,
    /// The breaker.
    pub breaker: &'a Breaker,
    /// The manual rate that is not exceeded.
    pub hold: Option<Hold>,
    /// True if a person wrote 0.
    pub stopped: bool,
    /// The signals, in the order of the policy.
    pub signals: &'a [Signal],
    /// The newest plan.
    pub plan: Option<&'a Plan>,
    /// The last manual change of mode or rate.
    pub manual_override: Option<&'a ManualOverride>,
    /// The ratio to each leader's rate, by signal.
    pub links: &'a BTreeMap<String, FollowerRatio>,
    /// The rate that each hour of the week has sustained.
    pub week: &'a Week,
}
