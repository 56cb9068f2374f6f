//! Admission of tenants' messages: at most so many of each tenant, and of each of its modules, within
//! any minute. Further messages are accepted and wait in a lane, from which the runner releases them.

mod door;
mod expand;
mod postgres;
mod standing;
mod survey;

pub use door::{Admission, Slots, WaitingMessage};
pub use expand::{BATCH, ExpandBatch};
pub use postgres::{
    AcceptRequest, Acceptance, BATCH_STATEMENTS, Batch, BatchAcceptance, BatchPage, BatchRequest,
    Batches, BatchesWanted, CancelledBatch, Digests, INLINE_MAX, PENDING_COUNTED_MAX,
    RECIPIENTS_MAX, STATEMENTS, TENANT_STATEMENTS, TenantQueue, TenantsWanted,
};
pub use standing::{AdmissionLevel, LevelStanding, ModuleLimit, Standing, TenantStanding};
