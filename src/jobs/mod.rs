//! Jobs, lanes and their outcomes; the queue store in Postgres.
//!
//! This room covers the waiting, running and ending of jobs. It knows neither rates (see
//! [`crate::throttle`]) nor the work of a handler.

pub(crate) mod check;
pub mod context;
pub mod fault;
pub mod handler;
pub mod job;
pub mod ledger;
pub mod operate;
pub mod outcome;
pub mod postgres;
pub mod record;
pub mod retry;
pub mod serving;
pub mod shown;
pub mod typed;

pub use context::{About, Checkpoint, CheckpointError, Checkpoints, Context, Said};
pub use fault::{Fault, IntoOutcome};
pub use handler::{Handler, Issue, Kinds, Tuning};
pub use job::{Job, NewJob, State};
pub use operate::*;
pub use outcome::{OnAmbiguous, Outcome};
pub use postgres::{Client, Queue};
pub use record::*;
pub use serving::Serving;
pub use typed::TypedHandler;

pub use crate::throttle::{Quota, Scope};
