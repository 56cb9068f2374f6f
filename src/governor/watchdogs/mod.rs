//! Watchdogs: they look at a governor from outside and say what no single tick can know.
//!
//! Each is a pure type in a file of its own, fed once per tick, and kept in the state, so that a successor goes on watching.
//! What they find has a word, a time and one sentence for a person ([`Found`]). Two of them act: [`oscillation`] lowers the
//! gain, and [`sharing`] lets one of two governors of the same signal follow the other. None of them stops any work.

pub mod deaf;
pub mod idle;
pub mod oscillation;
pub mod reach;
pub mod sharing;
pub mod watch;

#[cfg(test)]
mod sharing_tests;
#[cfg(test)]
mod watch_tests;

pub use sharing::{Role, Sharing};
pub use watch::{Finding, Found, Watchdogs};
