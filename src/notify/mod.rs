//! tmp
pub mod args;
