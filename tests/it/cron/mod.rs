//! Schedules.

mod declare;
mod expressions;
mod fixture;
mod interfaces;
mod occurrences;
