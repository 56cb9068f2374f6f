//! Notifications over HTTP, on a real Postgres, with the signatures of a real provider.

mod admission;
mod events;
pub mod fixture;
mod messages;
