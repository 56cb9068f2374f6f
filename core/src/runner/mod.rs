//! Runs jobs: permits, then tokens, then claim. Only jobs that can run at once are claimed, or
//! within milliseconds.
//!
//! The runner knows lanes, throttles and handlers, but no kind by name: the composition root
//! registers handlers. `remote/` hands jobs to workers in other programs instead of running them.

mod attempt_span;
mod claim;
mod completions;
mod depth;
mod discover;
mod dispatch;
mod ending;
mod execute;
mod finish_pace;
mod finisher;
mod heartbeat;
mod hold_reports;
mod housekeeping_log;
mod ids;
mod lane;
mod lane_scheduler;
mod look;
mod maintenance;
mod metrics;
mod notifier;
mod release;
mod remote;
mod report_completions;
mod running;
mod runs;
mod secrets;
mod served;
mod settle;
mod shared;
mod slots;
mod tallies;
mod throttle_metrics;
mod uncertain_claims;
mod unserved;
mod visits;
mod waits;
mod worker;

pub use depth::keep_depth;
pub use metrics::WorkerMetrics;
pub use remote::Brokers;
pub use shared::Config;
pub use worker::Worker;
