//! The pulse test: turns a throttle's rate up and down within bounds, and learns from the load how the loop answers.
//!
//! [`pulse`] says which rate when, and when to stop; [`fit`] finds lag, background and cost by least squares; [`margins`] says
//! how far the loop is from swinging; [`edit`] writes what was found into a knobs file. All of them are pure. [`run`] does it on
//! a live throttle: under a lease that a dead process cannot renew, with the breaker's levels armed, and so that whoever turns the
//! knob meanwhile wins. The governor keeps its hands off for as long ([`crate::governor::calibration`]).

pub mod edit;
pub mod fit;
pub mod margins;
pub mod pulse;
pub mod run;

pub use fit::Fit;
pub use pulse::{Pulse, Shape};
pub use run::{Ended, Refusal, Session};
