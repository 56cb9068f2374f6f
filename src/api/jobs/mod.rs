//! Jobs: enqueue, search, show and change.

pub mod enqueue;
pub mod filters;
pub mod input;
pub mod many;
pub mod moves;
pub mod pause;
pub mod permissions;
pub mod redact;
pub mod show;
pub mod state;
pub mod update;
