//! The executor shared by all stores, and the replica for lists.

mod connections;
mod lost;
mod pooler;
mod replica;
