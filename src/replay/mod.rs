//! What Flyball would have done: a recording of loads and of the rate let through, and the governor on it in closed loop.
//!
//! [`record`] is the recording, from a file or from Prometheus. [`smooth`] tells the background from the cost of our work, at
//! every time of it. [`run`] lets the governor of `flyball serve` ([`crate::governor::State`], no copy) work on that, at the
//! recorded times of the samples and with their recorded noise. [`report`] compares, and says how far it may be believed.
//!
//! This room invents no load: where a recording cannot tell what is ours, the answer is a range. Plants of one's own making are
//! another room's business.

pub mod plot;
pub mod prometheus;
pub mod record;
pub mod report;
pub mod run;
pub mod smooth;

#[cfg(test)]
mod truth_tests;

pub use record::{Problem, Record};
pub use report::{Report, replay};
pub use run::Settings;
