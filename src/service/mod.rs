//! One shape for every background loop, and the lease by which one process leads.
//!
//! A loop ticks at its own pace, may be woken early, and tries again by coming round: there is no other retry. What a tick
//! does is the business of the room that owns it.

mod periodic;
mod postgres;
mod vital;

pub use periodic::{Pace, periodic};
pub use postgres::{Leader, STATEMENTS};
pub use vital::Vital;
