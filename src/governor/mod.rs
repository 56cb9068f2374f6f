//! The governor: adjusts the knob `rps` or `concurrency` so that the signals stay at their
//! setpoints.
//!
//! Read [`plan`] first: pure, `State + Observation -> Plan`, every decision with its reason.
//! [`reconcile`] is the loop around it: read the throttle and the signals, plan, persist, set the
//! knob, journal. [`why`] explains the rate to people. The control law and its measurements are in
//! `docs/governor.md`.
//!
//! This room depends on throttles and signals only. It has no notion of jobs (a queue's depth is
//! passed in as a signal) and does not elect a leader (it is given a term, and all its writes are
//! fenced by it).

pub mod actuator;
pub mod breaker;
pub mod calibration;
pub mod counters;
pub mod decision;
pub mod explain;
pub mod filter;
pub mod keys;
pub mod limits;
pub mod manual_override;
mod parse;
pub mod plan;
pub mod policy;
pub mod postgres;
mod ratio;
pub mod reconcile;
pub mod score;
pub mod shadow;
pub mod signal;
pub mod sources;
pub mod tripped;
pub mod view;
pub mod watchdogs;
pub mod week;
pub mod why;
pub mod work;

#[cfg(test)]
mod complaints_tests;
#[cfg(test)]
mod levels_tests;
#[cfg(test)]
mod plant_tests;
#[cfg(test)]
mod properties_tests;
#[cfg(test)]
mod slots_tests;
#[cfg(test)]
mod vectors_tests;

pub use actuator::Actuator;
pub use breaker::Phase;
pub use decision::Decision;
pub use limits::Bounds;
pub use plan::{ControlState, Observation, Plan, SignalSample};
pub use policy::{ControllerTuning, Policy};
pub use postgres::Journal;
pub use reconcile::{Governor, RoundReport};
pub use score::Score;
pub use sources::Sources;
pub use view::{SignalView, View};
pub use watchdogs::{ActiveFinding, Finding};
