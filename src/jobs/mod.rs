//! Jobs, lanes and their outcomes; the queue store in Postgres.
//!
//! This room knows how jobs wait, run and end. It does not know rates (see [`crate::throttle`]) nor what a handler does.

pub mod handler;
pub mod job;
pub mod outcome;
pub mod postgres;
pub mod record;
pub mod retry;

pub use handler::{Checkpoint, CheckpointError, Checkpoints, Context, Handler, Issue, Kinds};
pub use job::{Job, NewJob, State};
pub use outcome::Outcome;
pub use postgres::Queue;
pub use record::*;
