//! The governor: turns the knob `rps` or `concurrency` so that the signals stay at their setpoints.
//!
//! Read [`plan`] first: pure, `State + Observation -> Plan`, every decision with its reason. [`reconcile`] is the loop
//! around it: read the throttle and the signals, plan, persist, turn the knob, journal. [`why`] tells people. The law
//! itself, and what was measured for it, is in `docs/governor.md`.
//!
//! This room knows throttles and signals. It knows nothing of jobs (a queue's depth is handed in as a signal) and does not
//! decide who leads (it is told a term, and everything it writes is fenced by it).

pub mod actuator;
pub mod breaker;
pub mod calibration;
pub mod counters;
pub mod decision;
pub mod explain;
pub mod filter;
pub mod hand;
pub mod keys;
pub mod limits;
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
pub use plan::{Observation, Plan, Sample, State};
pub use policy::{Law, Policy};
pub use postgres::Journal;
pub use reconcile::{Governor, Report};
pub use score::Score;
pub use sources::Sources;
pub use view::{SignalView, View};
pub use watchdogs::{Finding, Found};
