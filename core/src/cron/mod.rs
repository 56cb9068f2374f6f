//! Schedules: jobs created at the times of a cron expression, in a time zone.
//!
//! This room computes the occurrences and makes each a job exactly once, however many processes
//! check. It runs no jobs: those that it creates are jobs like all others, with a throttle,
//! attempts and a history.

pub mod expression;
pub mod occurrence;
pub mod postgres;
pub mod schedule;

mod scheduler;

pub use expression::{BadExpression, Expression};
pub use postgres::{Error, RunNowOutcome, Schedules};
pub use schedule::{CatchUp, NewSchedule, Overlap, Schedule, ScheduleProblem, Timing};
pub use scheduler::run_schedules;
