//! The common form of background loops, leadership by a lease, and the batching of small writes.
//!
//! A loop ticks at its own pace, may be woken early, and retries only at its next tick. The content
//! of a tick is the business of the room that owns it.

mod batch;
mod due_work;
mod periodic;
mod postgres;
mod supervisor;

pub use batch::{BatchBroken, Batcher, in_waves};
pub use due_work::{DueWork, UNWOKEN_EVERY};
pub use periodic::{FailureLog, LoopOptions, housekeeping, periodic, periodic_unless_watched};
pub use postgres::{Leader, STATEMENTS};
pub use supervisor::TaskSupervisor;
