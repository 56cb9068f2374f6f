//! The audit log.

pub mod entry;
pub mod log;
