//! Admission in Postgres: acceptance of messages, and batches.

mod batches;
mod requests;

pub use batches::{
    BATCH_STATEMENTS, Batch, BatchAcceptance, BatchRequest, Batches, CancelledBatch, INLINE_MAX,
    RECIPIENTS_MAX,
};
pub use requests::{AcceptRequest, Acceptance, Digests, STATEMENTS};
pub(super) use requests::{accept, find_request, has_waiting, place};
