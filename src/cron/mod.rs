//! Schedules: jobs that are made at the times of a cron expression, in a time zone.
//!
//! This room knows when an occurrence comes and sees that it becomes a job exactly once, however many processes look. It
//! runs no jobs: what it makes are jobs like all others, with a throttle, attempts and a history.

pub mod expression;
pub mod occurrence;
pub mod postgres;
pub mod schedule;

mod keep;

pub use expression::{BadExpression, Expression};
pub use keep::keep;
pub use postgres::{Error, Ran, Schedules};
pub use schedule::{CatchUp, NewSchedule, Overlap, Problem, Schedule, Timing};
