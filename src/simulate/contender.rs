//! The controllers that are compared, by name.

use crate::governor::RateLimit;
use std::collections::VecDeque;

use super::bare_pid::BarePid;
use super::controller::{Aimd, Controller, Fixed, Governed, Newest, Oracle};
use crate::governor::policy::Policy;
use crate::governor::{Bounds, ControlState};

/// A controller to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// The governor, as `flyball serve` runs it.
    Flyball,
    /// The crate `pid` by itself.
    Pid,
    /// Additive increase, multiplicative decrease.
    Aimd,
    /// No controller: the rate that a person once set.
    Fixed,
    /// The greatest rate that was possible 35 seconds ago, with exact knowledge of the plant.
    Oracle,
}

impl Contender {
    /// All contenders, the governor first.
    pub const ALL: [Self; 5] = [
        Self::Flyball,
        Self::Pid,
        Self::Aimd,
        Self::Fixed,
        Self::Oracle,
    ];

    /// Returns the contender's name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flyball => "flyball",
            Self::Pid => "pid",
            Self::Aimd => "aimd",
            Self::Fixed => "fixed",
            Self::Oracle => "oracle",
        }
    }

    /// Returns a controller that takes over at `rps`.
    pub fn start(self, policy: &Policy, bounds: Bounds, rps: f64) -> Box<dyn Controller> {
        match self {
            Self::Flyball => Box::new(Governed {
                state: ControlState::new(policy, bounds, RateLimit::new(rps), 0.0),
                policy: policy.clone(),
                bounds,
                plan: None,
            }),
            Self::Pid => Box::new(BarePid::new(policy, bounds, rps)),
            Self::Aimd => Box::new(Aimd {
                values: Newest::new(policy),
                bounds,
                rps,
                step: 0.02 * rps,
            }),
            Self::Fixed => Box::new(Fixed(rps)),
            Self::Oracle => Box::new(Oracle {
                possible: VecDeque::new(),
                rps,
            }),
        }
    }
}
