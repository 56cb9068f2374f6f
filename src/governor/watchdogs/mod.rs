//! Watchdogs: they observe a governor from outside and report conditions that no single tick can
//! detect.
//!
//! Each is a pure type in its own file, called once per tick, and stored in the state, so that a
//! successor continues to watch. A finding has a name, a time and one sentence for a person
//! ([`ActiveFinding`]). Two watchdogs act: [`oscillation`] lowers the gain, and [`sharing`] lets
//! one of two governors of the same signal follow the other. None of them stops any work.

pub mod idle;
pub mod oscillation;
pub mod saturation;
pub mod sharing;
pub mod unresponsive;
pub mod watch;

#[cfg(test)]
mod sharing_tests;
#[cfg(test)]
mod watch_tests;

pub use sharing::{Sharing, SharingRole};
pub use watch::{ActiveFinding, Finding, Watchdogs};
