//! The governor on simulated plants: the same `ControlState::tick` that `flyball serve` runs, closed
//! over a model of the governed resource, in virtual time, beside common alternative controllers.
//!
//! A [`scenario`] is a knobs file with tables about its plant. All quantities that a run cannot
//! influence (background work, the cost of a job, noise, delays) are drawn once from the seed
//! ([`disturbance`]), so that every controller meets the same day. [`plant`] computes the load
//! caused by a rate, [`exporter`] the observed load and its delay, and [`controller`] the response;
//! [`run`] closes the loop, [`score`] judges it, [`compare`] adds up many days, [`plot`] draws one.

pub mod bare_pid;
pub mod compare;
pub mod contender;
pub mod controller;
pub mod curve;
pub mod disturbance;
pub mod exporter;
pub mod library;
pub mod mail;
pub mod plant;
pub mod plot;
pub mod random_plant;
pub mod random_table;
pub mod run;
pub mod scenario;
mod scenario_faults;
pub mod score;

#[cfg(test)]
mod goals_tests;

pub use contender::Contender;
pub use run::{SimulatedSecond, SimulationRecord, run};
pub use scenario::Scenario;
pub use score::Score;
