//! Jobs and their durations: with `durations` on, the throttle lets *work* through (rate x mean duration), so that dearer
//! jobs lower the rate within seconds, without any metric.

use crate::control::within;

/// Durations are a mean over this long, in seconds, weighted by the number of jobs.
const OVER_S: f64 = 15.0;
/// The mean before counts as this many jobs.
const BEFORE: f64 = 10.0;
/// The first mean needs this many jobs.
const FIRST: f64 = 5.0;
/// The mean may halve in this time, in seconds; it rises at once.
const RELEASE_S: f64 = 60.0;
/// A tick's own mean this many standard errors above the mean before, and at least a factor that the policy says, is a step and
/// no noise: the memory of cheaper jobs is dropped. (The standard error of a mean of `n` exponential times is one part in the
/// root of `n`.)
const STEP_ERRORS: f64 = 4.0;

/// The unit of work.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Work {
    /// Mean duration of a job, in seconds; 1 while it is not known.
    pub w: f64,
    /// It is known.
    pub known: bool,
    /// Decaying number of jobs, and of their seconds.
    pub jobs: f64,
    /// See `jobs`.
    pub seconds: f64,
}

impl Default for Work {
    fn default() -> Self {
        Self { w: 1.0, known: false, jobs: 0.0, seconds: 0.0 }
    }
}

impl Work {
    /// False if rates cannot be computed with it, because somebody spoilt what was stored.
    pub(super) fn is_sound(&self) -> bool {
        let counts = [self.jobs, self.seconds].into_iter().all(|x| x.is_finite() && x >= 0.0);
        counts && (1e-9..=1e9).contains(&self.w)
    }

    /// Learns that `n` jobs ended in `dt` seconds and took `duration_s` each. Answers the factor by which the
    /// unit of work changed when it became known, and the mean. A mean `step` times the one before is taken at once.
    pub fn learn(&mut self, n: f64, duration_s: Option<f64>, dt: f64, step: f64) -> (Option<f64>, f64) {
        let Some(duration_s) = duration_s.filter(|d| d.is_finite() && *d > 0.0).map(|d| within(d, 1e-6, 1e5)) else {
            return (None, self.w);
        };
        let keep = (-dt / OVER_S).exp();
        if self.known && n >= FIRST && duration_s > self.w * (1.0 + STEP_ERRORS / n.sqrt()).max(step) {
            (self.w, self.jobs, self.seconds) = (duration_s, n, n * duration_s);
            return (None, self.w);
        }
        self.jobs = self.jobs * keep + n;
        self.seconds = self.seconds * keep + n * duration_s;
        if self.known {
            let mean = (self.seconds + BEFORE * self.w) / (self.jobs + BEFORE);
            self.w = mean.max(self.w * 0.5f64.powf(dt / RELEASE_S));
            return (None, self.w);
        }
        if self.jobs < FIRST {
            return (None, self.w);
        }
        (self.w, self.known) = (self.seconds / self.jobs, true);
        (Some(self.w), self.w)
    }
}
