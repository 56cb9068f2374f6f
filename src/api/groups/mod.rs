//! Groups of jobs: create, seal, list, show, cancel.

pub mod change;
pub mod create;
