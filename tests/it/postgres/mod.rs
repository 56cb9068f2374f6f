//! The executor shared by all stores, and the replica for lists.

mod pooler;
mod replica;
