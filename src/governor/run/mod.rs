//! The governor at work: the loop that reads the throttle and the signals, ticks the state,
//! persists it, sets the knob and journals the decision.

pub mod calibration;
pub mod counters;
pub mod governor;
pub mod postgres;
pub mod sources;
