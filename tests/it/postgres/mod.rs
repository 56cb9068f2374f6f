//! The executor shared by all stores, and the replica for lists.

mod connections;
mod lost;
mod plans;
mod pooler;
mod replica;
