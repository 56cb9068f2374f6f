//! Notifications over HTTP, on a real Postgres, with the signatures of a real provider.

mod admission;
mod admission_again;
mod admission_answers;
mod admission_batches;
mod admission_excess;
mod admission_limits;
mod admission_repeats;
mod admission_told;
mod events;
pub mod fixture;
mod messages;
mod planned;
mod tenants_listed;
