//! Admission of tenants' messages: at most so many of each tenant, and of each of its modules,
//! within any minute. Further messages are accepted and wait in a lane, from which the runner
//! releases them.

mod expand;
mod postgres;
mod service;
mod usage;

pub use expand::{BATCH, ExpandBatch};
pub use postgres::{
    AcceptRequest, Acceptance, BATCH_STATEMENTS, Batch, BatchAcceptance, BatchRequest, Batches,
    CancelledBatch, Digests, INLINE_MAX, RECIPIENTS_MAX, STATEMENTS,
};
pub use service::{Admission, Slots, WaitingMessage};
pub use usage::{AdmissionLevel, AdmissionUsage, LevelUsage};
