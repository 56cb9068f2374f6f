//! The routes of workers in other programs: they claim jobs, extend their leases, and end them.

pub mod claim;
pub mod endings;
pub mod heartbeat;
pub mod input;
