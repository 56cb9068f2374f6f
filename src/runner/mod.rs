//! Runs jobs: permits, then tokens, then claim. Nothing is claimed that cannot run at once.
//!
//! The runner knows lanes, throttles and handlers, but no kind by name: whoever composes the process registers handlers.

mod answers;
mod bell;
mod board;
mod depth;
mod discover;
mod dispatch;
mod doubts;
mod execute;
mod finisher;
mod heartbeat;
mod lane;
mod metrics;
mod running;
mod runs;
mod settle;
mod shared;
mod strangers;
mod tallies;
mod tell;
mod upkeep;
mod worker;

pub use depth::keep_depth;
pub use metrics::Metrics;
pub use shared::Config;
pub use worker::Worker;
