//! Jobs that a lane gets in one visit, where more lanes are due than a claim can serve. Pure; time
//! is an argument.
//!
//! A visit costs its token request, its probe of the lane and its place in the order of lanes,
//! whether it takes one job or eight. Several jobs of a visit make the round over all lanes longer,
//! and a lane that comes with work waits for one round, so they are taken only where a round stays
//! short.

use std::time::{Duration, Instant};

/// Most jobs of one visit.
pub const MAX_VISIT: u32 = 8;

/// Longest round over all lanes for which visits take several jobs.
const ROUND: Duration = Duration::from_secs(1);

/// Longest round over all lanes, at one job each, for which visits take two.
const LONG_ROUND: Duration = Duration::from_secs(5);

/// Jobs a second of one throttle above which visits are what limits a worker.
const MANY_PER_S: f64 = 2000.0;

/// Interval over which the pace is measured.
const PACE_INTERVAL: Duration = Duration::from_millis(250);

/// Weight of one lane in the share of lanes that had more than one job when they woke up.
const DEEP_WEIGHT: f64 = 0.01;

/// The measured pace of a throttle, and the depth of its lanes.
#[derive(Debug, Default)]
pub struct Visits {
    begun: Option<Instant>,
    jobs: u64,
    per_s: f64,
    is_limited: bool,
    /// Share of lanes that had more than one job when they woke up.
    deep: f64,
}

impl Visits {
    /// Records an answer of the throttle.
    pub fn granted(&mut self, granted: usize, wanted: usize, now: Instant) {
        self.is_limited = granted < wanted;
        let begun = *self.begun.get_or_insert(now);
        let passed = now.saturating_duration_since(begun);
        if passed >= PACE_INTERVAL {
            self.per_s = self.jobs as f64 / passed.as_secs_f64();
            self.begun = Some(now);
            self.jobs = 0;
        }
        self.jobs += granted as u64;
    }

    /// Records if a lane that woke up had more than one job.
    pub fn first_claim(&mut self, has_more: bool) {
        self.deep += (f64::from(u8::from(has_more)) - self.deep) * DEEP_WEIGHT;
    }

    /// Returns the most jobs of a visit while `due` lanes have work, in a plan of `permits` jobs.
    pub fn jobs(&self, due: usize, permits: usize) -> u32 {
        if due <= permits || self.is_limited || self.per_s < MANY_PER_S {
            return 1;
        }
        let round_s = due as f64 / self.per_s;
        let fit = (ROUND.as_secs_f64() / round_s) as u32;
        let least = if round_s <= LONG_ROUND.as_secs_f64() {
            2
        } else {
            1
        };
        fit.clamp(least, MAX_VISIT)
    }

    /// Returns the most jobs of the first visit of a lane, whose depth is unknown: two if most
    /// lanes have as many, because a token without a job costs a refund.
    pub fn first_jobs(&self, due: usize, permits: usize) -> u32 {
        match self.deep > 0.5 {
            true => self.jobs(due, permits).min(2),
            false => 1,
        }
    }
}

#[cfg(test)]
#[path = "visits_tests.rs"]
mod tests;
