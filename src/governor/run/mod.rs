//! The governor at work: the loop that reads the throttle and the signals, ticks the state,
//! persists it, sets the knob and journals the decision.

mod authorship;
pub mod calibration;
pub mod counters;
mod fast_path;
mod governed;
pub mod governor;
mod knob_writer;
mod observe;
pub mod postgres;
mod reconciler;
mod records;
pub mod report;
mod silence;
pub mod sources;
mod tick;
