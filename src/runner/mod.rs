//! Runs jobs: permits, then tokens, then claim. Only jobs that can run at once are claimed.
//!
//! The runner knows lanes, throttles and handlers, but no kind by name: the composition root
//! registers handlers.

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
