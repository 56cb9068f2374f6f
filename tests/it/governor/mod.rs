//! The governor: its loop, its leadership, and closed loops with real parts.

mod apns_by_latency;
mod capacity;
mod complaints;
mod failover;
mod fast_path;
mod feedback;
mod modes;
mod process;
mod quota_halved;
mod reconcile;
mod rig;
mod slots;
mod step;
mod trip;
mod watchdogs;

pub use process::POLICY;
pub use rig::Rig;
