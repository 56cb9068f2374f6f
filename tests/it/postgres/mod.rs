//! The executor shared by all stores.

mod pooler;
