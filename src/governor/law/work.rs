//! Jobs and their durations: with `durations` on, the throttle limits *work* (rate x mean
//! duration), so that more expensive jobs lower the rate within seconds, without any metric.
//!
//! If the samples show that durations do not reflect the load ([`DurationEvidence`]), work is
//! counted in jobs.

use super::DurationEvidence;
use super::part::StatePart;
use crate::control::clamp_finite;

/// The time over which durations are averaged, weighted by the number of jobs, in seconds.
const OVER_S: f64 = 15.0;
/// The weight of the previous mean, in jobs.
const BEFORE: f64 = 10.0;
/// The number of jobs before the first mean.
const MIN_FIRST_JOBS: f64 = 5.0;
/// The shortest time in which the mean may halve, in seconds; a rise is not limited.
const RELEASE_S: f64 = 60.0;
/// The number of standard errors by which a tick's own mean must exceed the previous mean to be a
/// step and not noise.
///
/// It must also exceed it by the policy's factor; the memory of cheaper jobs is then dropped. The
/// standard error of a mean of `n` exponential times is the mean divided by the square root of `n`.
const STEP_ERRORS: f64 = 4.0;

/// The unit of work: the mean duration of a job, or the job itself.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct WorkEstimate {
    /// The unit in force: the mean duration of a job, in seconds; 1 while it is unknown or says
    /// nothing of the load.
    pub w: f64,
    /// True once the mean duration is known.
    pub known: bool,
    /// The decaying number of jobs.
    pub jobs: f64,
    /// The decaying sum of their durations, in seconds.
    pub seconds: f64,
    /// The evidence whether durations say anything of the load.
    #[serde(default)]
    pub evidence: DurationEvidence,
}

impl Default for WorkEstimate {
    fn default() -> Self {
        Self {
            w: 1.0,
            known: false,
            jobs: 0.0,
            seconds: 0.0,
            evidence: DurationEvidence::default(),
        }
    }
}

impl WorkEstimate {
    /// Returns false if rates cannot be computed with it, because the stored state is invalid.
    pub(in crate::governor) fn is_sound(&self) -> bool {
        let counts = [self.jobs, self.seconds]
            .into_iter()
            .all(|x| x.is_finite() && x >= 0.0);
        counts && (1e-9..=1e9).contains(&self.w) && self.evidence.is_sound()
    }

    /// Returns the mean duration of the newest jobs, in seconds, whether it counts or not.
    pub(in crate::governor) fn newest_s(&self) -> Option<f64> {
        (self.known && self.jobs > 0.0).then(|| clamp_finite(self.seconds / self.jobs, 1e-6, 1e5))
    }

    /// Returns the mean duration of a job in a tick in which `n` jobs ended with the mean
    /// `duration_s`, in seconds, whether durations count or not; few jobs count for little.
    pub(in crate::governor) fn tick_s(&self, n: f64, duration_s: Option<f64>) -> Option<f64> {
        let newest_s = self.newest_s()?;
        let duration_s = duration_s.filter(|d| d.is_finite() && *d > 0.0);
        Some(duration_s.map_or(newest_s, |d| {
            (n * clamp_finite(d, 1e-6, 1e5) + BEFORE * newest_s) / (n + BEFORE)
        }))
    }

    /// Takes the unit that the evidence chooses, and returns the factor from the previous one.
    pub(in crate::governor) fn choose(&mut self) -> f64 {
        let before = self.w;
        self.w = match self.newest_s() {
            Some(mean_s) if self.evidence.counts() => mean_s,
            _ => 1.0,
        };
        self.evidence.convert();
        self.w / before
    }

    /// Learns that `n` jobs ended in `dt` seconds with the mean duration `duration_s`.
    ///
    /// Returns the factor by which the unit of work changed when it became known, and the mean. A
    /// mean more than `step` times the previous one counts at once. Without `may_fall` a shorter
    /// mean does not count yet, because it would raise the rate.
    pub fn learn(
        &mut self,
        n: f64,
        duration_s: Option<f64>,
        dt: f64,
        step: f64,
        may_fall: bool,
    ) -> (Option<f64>, f64) {
        let Some(duration_s) = duration_s
            .filter(|d| d.is_finite() && *d > 0.0)
            .map(|d| clamp_finite(d, 1e-6, 1e5))
        else {
            return (None, self.w);
        };
        let keep = (-dt / OVER_S).exp();
        if self.known && !self.evidence.counts() {
            self.jobs = self.jobs * keep + n;
            self.seconds = self.seconds * keep + n * duration_s;
            return (None, self.w);
        }
        if self.known
            && n >= MIN_FIRST_JOBS
            && duration_s > self.w * (1.0 + STEP_ERRORS / n.sqrt()).max(step)
        {
            (self.w, self.jobs, self.seconds) = (duration_s, n, n * duration_s);
            return (None, self.w);
        }
        self.jobs = self.jobs * keep + n;
        self.seconds = self.seconds * keep + n * duration_s;
        if self.known {
            let mean = (self.seconds + BEFORE * self.w) / (self.jobs + BEFORE);
            let least = if may_fall {
                0.5f64.powf(dt / RELEASE_S)
            } else {
                1.0
            };
            self.w = mean.max(self.w * least);
            return (None, self.w);
        }
        if self.jobs < MIN_FIRST_JOBS {
            return (None, self.w);
        }
        (self.w, self.known) = (self.seconds / self.jobs, true);
        (Some(self.w), self.w)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_mean_waits_until_it_may_fall_and_a_longer_one_does_not() {
        let mut work = WorkEstimate::default();
        let mut learn = |duration_s, may_fall| {
            (0..12).for_each(|_| {
                work.learn(100.0, Some(duration_s), 5.0, 1.3, may_fall);
            });
            work.w
        };
        assert!((learn(0.1, true) - 0.1).abs() < 1e-9);
        assert!((learn(0.05, false) - 0.1).abs() < 1e-9);
        assert!((learn(0.4, false) - 0.4).abs() < 1e-9);
        let fallen = learn(0.3, true);
        assert!((0.2999..0.31).contains(&fallen), "{fallen}");
    }
}
