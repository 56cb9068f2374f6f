//! Admission in Postgres: acceptance of messages, batches, and what tenants have
//! pending.

mod batches;
mod requests;
mod tenants;

pub use batches::{
    BATCH_STATEMENTS, Batch, BatchAcceptance, BatchFilter, BatchPage, BatchRequest, Batches,
    CancelledBatch, INLINE_MAX, RECIPIENTS_MAX,
};
pub use requests::{AcceptRequest, Acceptance, Digests, ExcessMessage, STATEMENTS};
pub(super) use requests::{
    CountedPlace, Place, accept, accept_excess, behind, find_request, has_waiting, places,
};
pub(super) use tenants::list_tenants;
pub use tenants::{PENDING_COUNTED_MAX, TENANT_STATEMENTS, TenantFilter, TenantQueue};
