//! The input of one tick.

use super::policy::FeedbackKind;
use super::watchdogs::SharingRole;
use crate::throttle::RateLimit;

/// The share of the time with waiters above which the throttle counts as the bottleneck.
const BOTTLENECK: f64 = 0.5;

/// The lead of a sample over the clock of the tick from which it is none, in seconds.
pub(super) const AHEAD_S: f64 = 60.0;

/// The observations since the last tick; times are unix seconds of one clock.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// The time of this tick.
    pub now: f64,
    /// The new samples; earlier ones may be repeated, as a sample of the same time is ignored.
    #[serde(default)]
    pub readings: Vec<SignalSample>,
    /// The jobs let through per second since the last tick, or the slots in use; `None` if the
    /// counter restarted.
    #[serde(default)]
    pub achieved_rps: Option<f64>,
    /// The share of the time since the last tick with waiters for this throttle's tokens or slots,
    /// 0 to 1.
    #[serde(default)]
    pub limiting_share: Option<f64>,
    /// The mean duration of the jobs that succeeded since the last tick, in seconds.
    #[serde(default)]
    pub mean_duration_s: Option<f64>,
    /// The number of jobs that succeeded since the last tick.
    #[serde(default)]
    pub completed: f64,
    /// The number of jobs that were refused since the last tick.
    #[serde(default)]
    pub rejected: f64,
    /// True if no job ran since the last tick: missing feedback is then not silence.
    #[serde(default)]
    pub idle: bool,
    /// True if jobs succeeded since the last tick, but too few had a usable duration.
    ///
    /// A duration signal without a new sample is then not stale; its last sample stays valid.
    #[serde(default)]
    pub discounted: bool,
    /// The knob, if it was changed by anyone else since the last tick.
    #[serde(default)]
    pub knob_rps: Option<RateLimit>,
    /// True if the knob holds the breaker's own zero, which nobody else writes.
    #[serde(skip)]
    pub is_breakers_stop: bool,
    /// The number of jobs that wait for this throttle, if known.
    #[serde(default)]
    pub waiting: Option<f64>,
    /// The role of this governor among those that control the same signals.
    #[serde(skip)]
    pub shared: Option<SharingRole>,
    /// The current capacity of a pool of accounts behind the throttle, in jobs per second; such a
    /// pool routes around refusals by itself.
    #[serde(skip)]
    pub capacity_rps: Option<f64>,
}

/// A sample of a signal; one without a value does not count.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SignalSample {
    /// The name of the signal in the policy.
    pub signal: String,
    /// The value, in the signal's own unit.
    pub value: Option<f64>,
    /// The time of the sample, in unix seconds.
    pub at: f64,
}

impl Observation {
    /// Returns true if the jobs use the whole rate; false if that is not known.
    pub(super) fn is_limited(&self) -> bool {
        self.limiting_share.is_some_and(|share| share > BOTTLENECK)
    }

    /// Returns the number of jobs behind a mean duration: the reported successes, or else all jobs
    /// let through in `dt` seconds.
    ///
    /// A job that takes tokens throughout its life is one job, however many it takes.
    pub(super) fn ended_jobs(&self, achieved: Option<f64>, dt: f64) -> f64 {
        if self.completed > 0.0 {
            self.completed.min(1e12)
        } else {
            achieved.unwrap_or(0.0) * dt
        }
    }

    /// Returns the feedback of the throttle's own work for signals without a reading: the refused
    /// share, or the mean duration.
    pub(super) fn feedback(&self, kind: FeedbackKind) -> Option<f64> {
        let all = self.completed + self.rejected;
        match kind {
            FeedbackKind::Refused if all > 0.0 => Some(self.rejected / all),
            FeedbackKind::Refused => Some(0.0),
            FeedbackKind::Latency => self.mean_duration_s,
            FeedbackKind::Errors | FeedbackKind::LatencyP99 => None,
        }
    }
}
