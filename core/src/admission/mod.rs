//! Admission of tenants' messages: at most so many of each tenant, and of each of its modules,
//! within any minute. Further messages are accepted and wait in a lane, from which the runner
//! releases them.

mod accept_excess;
mod excess;
mod expand;
mod pause;
mod postgres;
mod service;
mod survey;
mod usage;

pub use excess::ExcessAnswer;
pub use expand::{BATCH, ExpandBatch};
pub use pause::{ModulePause, PAUSED_RETRY_S, PausedBy, is_author, tenant_author};
pub use postgres::{
    AcceptRequest, Acceptance, BATCH_STATEMENTS, Batch, BatchAcceptance, BatchFilter, BatchPage,
    BatchRequest, Batches, CancelledBatch, Digests, ExcessMessage, INLINE_MAX, PENDING_COUNTED_MAX,
    RECIPIENTS_MAX, STATEMENTS, TENANT_STATEMENTS, TenantFilter, TenantQueue,
};
pub use service::{Admission, Slots, waiting};
pub use usage::{
    AdmissionLevel, AdmissionUsage, LevelUsage, ModuleLimit, TenantUsage, WaitingMessage,
};
