//! Hands jobs to workers in other programs, which ask for them, hold them under leases of their own,
//! and report their ends.
//!
//! A broker claims for all workers that ask for the same jobs, as a runner claims: the same lanes,
//! tokens and fences. It claims only while such a worker waits. The lease is then the worker's, so
//! any process can extend or end it, and a process that dies loses no job that was handed over.

mod broker;
mod broker_state;
mod brokers;
mod count;
mod hand_over;
mod kind;
mod leases;
mod metrics;
mod polls;
mod worker_names;

pub(super) use broker_state::BrokerState;
pub use brokers::Brokers;
pub(super) use hand_over::hand_over;
pub use metrics::RemoteMetrics;
