//! Control mechanics: small pure pieces of arithmetic, independent of throttles, jobs and signals.
//!
//! Nothing here reads a clock, waits or fails: time, randomness and measurements are arguments, and
//! every result is finite for any input. The room imports nothing of ours; the governor assembles
//! the pieces into a control law, and [`crate::jobs`] uses [`backoff`] and [`durations`].

pub mod backoff;
pub mod clamp;
pub mod durations;
pub mod ewma;
pub mod history;
pub mod lag_filter;
pub mod load_model;
pub mod observer;
pub mod pid;
pub mod slew;
pub mod trip;

pub use clamp::clamp_finite;
pub use history::History;
pub use lag_filter::LagFilter;
pub use load_model::{LINEAR_MAX, LoadModel, LoadSample};
pub use observer::Observer;
pub use pid::LogPid;
