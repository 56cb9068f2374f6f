//! Schedules.

mod scheduler;
