//! The pulse test: varies a throttle's rate up and down within bounds, and learns the loop's
//! response from the load.
//!
//! [`pulse`] chooses the rates and ends the test; [`fit`] estimates lag, background and cost by
//! least squares; [`margins`] computes the stability margins of the loop; [`edit`] writes the
//! result into a knobs file; `admission` names the states of a throttle that allow a test, and
//! [`outcome`] those in which it ends. All of them are pure. [`run`] runs the test on a live
//! throttle: under a lease that a dead process cannot renew (`knob`), with the breaker's levels
//! armed, and giving way to anyone who turns the knob meanwhile. The governor leaves the knob alone
//! during the test ([`crate::governor::calibration`]).

mod admission;
pub mod edit;
pub mod fit;
mod knob;
pub mod margins;
pub mod outcome;
pub mod pulse;
pub mod run;

pub use fit::Fit;
pub use outcome::{CalibrationError, CalibrationResult};
pub use pulse::{Pulse, Shape};
pub use run::CalibrationSession;
