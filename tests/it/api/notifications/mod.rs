//! Notifications over HTTP, on a real Postgres, with the signatures of a real provider.

mod admission;
mod admission_batches;
mod events;
pub mod fixture;
mod messages;
mod tenants_listed;
