//! Replays a recording of loads and of the rate let through, with the governor on it in closed
//! loop.
//!
//! [`record`] is the recording, from a file or from Prometheus. [`smooth`] separates the background
//! from the cost of our work, at every moment. [`run`] lets the governor of `flyball serve`
//! ([`crate::governor::ControlState`], no copy) work on that, at the recorded times of the samples
//! and with their recorded noise. [`report`] compares the two, and states the uncertainty.
//!
//! This room invents no load: if a recording does not determine our share of it, the answer is a
//! range. Simulated plants are in another room.

pub mod plot;
pub mod prometheus;
pub mod record;
pub mod report;
pub mod run;
pub mod smooth;

#[cfg(test)]
mod truth_tests;

pub use record::{Recording, RecordingProblem};
pub use report::{ReplayReport, replay};
pub use run::ReplaySettings;
