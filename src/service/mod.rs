//! One shape for every background loop, the lease by which one process leads, and many small writes as few large ones.
//!
//! A loop ticks at its own pace, may be woken early, and tries again by coming round: there is no other retry. What a tick
//! does is the business of the room that owns it.

mod batch;
mod periodic;
mod postgres;
mod vital;

pub use batch::{Batcher, Broken};
pub use periodic::{Pace, periodic};
pub use postgres::{Leader, STATEMENTS};
pub use vital::Vital;
