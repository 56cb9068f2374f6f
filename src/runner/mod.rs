//! Runs jobs: permits, then tokens, then claim. Nothing is claimed that cannot run at once.
//!
//! The runner knows lanes, throttles and handlers, but no kind by name: whoever composes the process registers handlers.

mod board;
mod dispatch;
mod doubts;
mod execute;
mod finisher;
mod heartbeat;
mod metrics;
mod running;
mod upkeep;
mod worker;

pub use board::Board;
pub use metrics::Metrics;
pub use worker::{Config, Worker};
