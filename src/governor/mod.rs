//! The governor: adjusts the knob `rps` or `concurrency` so that the signals stay at their
//! setpoints.
//!
//! Read [`state`] first: pure, `State + Observation -> Plan`, every decision with its reason. Its
//! parts are in [`law`] and [`watchdogs`]; [`explain`] only reads. [`run`] is the loop around it:
//! read the throttle and the signals, plan, persist, set the knob, journal. The control law and its
//! measurements are in `docs/governor.md`.
//!
//! This room depends on throttles and signals only. It has no notion of jobs (a queue's depth is
//! passed in as a signal) and does not elect a leader (it is given a term, and all its writes are
//! fenced by it).

pub mod actuator;
pub mod bounds;
pub mod decision;
pub mod explain;
pub mod filter;
pub mod law;
mod line;
pub mod manual_override;
pub mod observation;
pub mod plan;
pub mod policy;
pub mod run;
pub mod score;
pub mod shadow;
mod shared;
mod snapshot;
pub mod state;
pub mod stored;
pub mod time;
pub mod watchdogs;
mod work_unit;
mod written;

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

pub use crate::throttle::RateLimit;
pub use actuator::Actuator;
pub use bounds::Bounds;
pub use decision::Decision;
pub use explain::view::{GovernorView, SignalView};
pub use explain::why;
pub use law::Phase;
pub use observation::{Observation, SignalSample};
pub use plan::Plan;
pub use policy::{ControllerTuning, Policy};
pub use run::governor::Governor;
pub use run::postgres::Journal;
pub use run::report::RoundReport;
pub use run::sources::Sources;
pub use run::{calibration, counters, postgres, sources};
pub use score::Score;
pub use state::ControlState;
pub use watchdogs::{ActiveFinding, Finding};
