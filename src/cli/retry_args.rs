//! The waits of one job after failed attempts.

use super::when;
use crate::jobs::JobRetry;

#[derive(clap::Args, Clone, Copy)]
pub(super) struct RetryArgs {
    /// Longest wait after the first failed attempt, instead of the kind's own waits: a span such as
    /// 30s, or seconds
    #[arg(long, value_name = "SPAN", allow_negative_numbers = true, value_parser = when::seconds)]
    retry_delay: Option<f64>,
    /// Factor by which the wait grows with each further failure, 1 to 100; 2 if absent
    #[arg(
        long,
        value_name = "FACTOR",
        requires = "retry_delay",
        allow_negative_numbers = true
    )]
    retry_factor: Option<f64>,
    /// Longest wait after any failure; an hour if absent
    #[arg(long, value_name = "SPAN", requires = "retry_delay", allow_negative_numbers = true, value_parser = when::seconds)]
    retry_max_delay: Option<f64>,
}

impl RetryArgs {
    /// Returns the waits, if they are given; the queue checks the ranges.
    pub(super) fn waits(self) -> Option<JobRetry> {
        Some(JobRetry {
            delay_s: self.retry_delay?,
            factor: self.retry_factor.unwrap_or(JobRetry::USUAL_FACTOR),
            max_delay_s: self.retry_max_delay,
        })
    }
}
