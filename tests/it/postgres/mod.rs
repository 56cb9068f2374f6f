//! The executor that every store uses.

mod pooler;
