//! Evidence from the samples on durations: do they show what a job costs the resource?
//!
//! Two models of each load predict every sample before it is learned from: one counts our work in
//! seconds of job time, the other in jobs. Each is an [`Observer`] with a background and a cost of
//! its own, so neither is judged by a wrong share of others. The better prediction gains the
//! difference of the two log likelihoods (Student's t, so that one outlier decides nothing):
//!
//! ```text
//! score += f(e_jobs^2 / s) - f(e_work^2 / s),      f(q) = 2.5 ln(1 + q / 4)
//! ```
//!
//! with the smaller of the two predictive variances as `s`. While durations do not vary, both
//! models predict the same and nothing is learned. Durations count until the evidence is against
//! them, and then again once it is as clearly for them.

use std::collections::{BTreeMap, VecDeque};

use super::part::{StatePart, all_finite};
use crate::control::lag_filter::delag;
use crate::control::{Observer, clamp_finite};
use crate::governor::law::Signal;
use crate::governor::observation::{AHEAD_S, SignalSample};
use crate::governor::policy::{Policy, SignalKind, SignalPolicy, SignalSource};

/// The score at which durations count as informative or as uninformative: odds of fifty to one.
const SCORE_DECIDES: f64 = 4.0;
/// The largest score, so that a plant that changes its nature is found out within minutes.
const SCORE_MAX: f64 = 6.0;
/// The time over which old evidence fades, in seconds.
const FADE_S: f64 = 3600.0;
/// The age at which stretches of work are dropped, in seconds: no older samples arrive.
const KEEP_S: f64 = 400.0;
/// The maximum number of stretches, whatever the tick.
const KEEP_MAX: usize = 400;
/// The largest de-lagged sample that is judged, in setpoints: a saturated resource follows neither
/// model.
const Z_MAX: f64 = 3.0;
/// The longest time that one sample covers, in seconds.
const SPAN_MAX_S: f64 = 120.0;

/// The finding about durations.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    serde::Serialize,
    serde::Deserialize,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "snake_case")]
pub enum Verdict {
    /// Nothing is known yet; they count.
    #[default]
    Unknown,
    /// They follow the cost of the jobs; they count.
    Informative,
    /// They do not reflect the load; jobs are counted instead.
    Uninformative,
}

impl Verdict {
    /// Returns its name in terms, metrics and the API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The stretch of work between two ticks.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct WorkStretch {
    end: f64,
    span_s: f64,
    /// The jobs per second.
    jobs: f64,
    /// The mean duration of a job, in seconds.
    mean_s: f64,
    /// The unit of work that was in force.
    w: f64,
}

/// The two models of one load.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
struct Trial {
    /// The newest sample, `(at, x)`.
    newest: Option<(f64, f64)>,
    by_work: Observer,
    by_jobs: Observer,
}

impl Trial {
    fn is_sound(&self) -> bool {
        self.by_work.is_sound() && self.by_jobs.is_sound()
    }
}

/// The evidence so far.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct DurationEvidence {
    /// The log odds that durations show the load.
    pub score: f64,
    /// The verdict.
    pub verdict: Verdict,
    /// The time of the verdict, in unix seconds.
    pub since: Option<f64>,
    trials: BTreeMap<String, Trial>,
    stretches: VecDeque<WorkStretch>,
}

impl DurationEvidence {
    /// Records the `span_s` seconds until `end`: `jobs` per second of `mean_s` seconds each, with
    /// the unit of work `w` in force.
    pub(in crate::governor) fn push(
        &mut self,
        end: f64,
        span_s: f64,
        jobs: f64,
        mean_s: f64,
        w: f64,
    ) {
        let in_order = self.stretches.back().is_none_or(|last| end > last.end);
        if !(in_order && all_finite([end, span_s, jobs, mean_s, w])) {
            return;
        }
        self.stretches.push_back(WorkStretch {
            end,
            span_s,
            jobs,
            mean_s,
            w,
        });
        while self.stretches.len() > KEEP_MAX
            || self.stretches.front().is_some_and(|s| s.end < end - KEEP_S)
        {
            self.stretches.pop_front();
        }
    }

    /// Judges the new samples of all loads at `now`.
    pub(in crate::governor) fn judge(
        &mut self,
        policy: &Policy,
        signals: &[Signal],
        readings: &[SignalSample],
        now: f64,
        dt: f64,
    ) {
        self.score *= (-dt / FADE_S).exp();
        for (signal, about) in signals.iter().zip(&policy.signals) {
            if about.kind != SignalKind::Load || about.source == SignalSource::Depth {
                continue;
            }
            let mut samples: Vec<&SignalSample> = readings
                .iter()
                .filter(|sample| sample.signal == about.name && sample.at.is_finite())
                .collect();
            samples.sort_by(|a, b| a.at.total_cmp(&b.at));
            for sample in samples {
                self.learn(about, signal.front.tau_s, sample, now);
            }
        }
        let names = |name: &String| policy.signals.iter().any(|about| about.name == *name);
        self.trials.retain(|name, _| names(name));
        let verdict = match self.score {
            score if score >= SCORE_DECIDES => Verdict::Informative,
            score if score <= -SCORE_DECIDES => Verdict::Uninformative,
            _ => self.verdict,
        };
        if verdict != self.verdict {
            (self.verdict, self.since) = (verdict, Some(now));
        }
    }

    /// Returns true while durations count.
    pub fn counts(&self) -> bool {
        self.verdict != Verdict::Uninformative
    }

    /// Returns the model of the load `signal` in the unit of work that the verdict chooses.
    pub(in crate::governor) fn model(&self, signal: &str) -> Option<&Observer> {
        let trial = self.trials.get(signal)?;
        Some(if self.counts() {
            &trial.by_work
        } else {
            &trial.by_jobs
        })
    }

    /// Returns the factor from the unit of work in force at `end` to the one that the verdict
    /// chooses.
    pub(in crate::governor) fn factor(&self, end: f64) -> f64 {
        let mut stretches = self.stretches.iter();
        let stretch = stretches.find(|s| s.end >= end - 1e-6);
        let newest = self.stretches.back();
        stretch.or(newest).map_or(1.0, |s| self.unit(s) / s.w)
    }

    /// Records that the past is now counted in the unit that the verdict chooses.
    pub(in crate::governor) fn convert(&mut self) {
        let counts = self.counts();
        for stretch in &mut self.stretches {
            stretch.w = if counts { stretch.mean_s } else { 1.0 };
        }
    }

    fn unit(&self, stretch: &WorkStretch) -> f64 {
        if self.counts() { stretch.mean_s } else { 1.0 }
    }

    fn learn(&mut self, about: &SignalPolicy, tau_s: f64, sample: &SignalSample, now: f64) {
        let Some(value) = sample.value.filter(|v| v.is_finite() && *v >= 0.0) else {
            return;
        };
        let trial = self.trials.entry(about.name.clone()).or_default();
        let (at, x) = (sample.at, (value / about.setpoint).min(1e6));
        if at > now + AHEAD_S || trial.newest.is_some_and(|(newest, _)| at <= newest) {
            return;
        }
        let Some((then, before)) = trial.newest.replace((at, x)) else {
            return;
        };
        let dt_s = at - then;
        let z = delag(x, before, dt_s, tau_s);
        let Some((jobs, work)) = mean(&self.stretches, then, at).filter(|_| z <= Z_MAX) else {
            return;
        };
        if let (Some(by_work), Some(by_jobs)) =
            (trial.by_work.forecast(work), trial.by_jobs.forecast(jobs))
        {
            let variance = by_work.1.min(by_jobs.1);
            let missed = |forecast: f64| {
                let q = (z - forecast).powi(2) / variance;
                2.5 * (q / 4.0).ln_1p()
            };
            let gain = missed(by_jobs.0) - missed(by_work.0);
            self.score = clamp_finite(self.score + gain, -SCORE_MAX, SCORE_MAX);
        }
        let span_s = dt_s.min(SPAN_MAX_S);
        trial.by_work.update(z, work, span_s);
        trial.by_jobs.update(z, jobs, span_s);
        if !trial.is_sound() {
            *trial = Trial::default();
        }
    }
}

/// Returns the mean rates over `(from, to]`, in jobs and in work; `None` without a record there.
fn mean(stretches: &VecDeque<WorkStretch>, from: f64, to: f64) -> Option<(f64, f64)> {
    let (mut jobs, mut work, mut weight) = (0.0, 0.0, 0.0);
    for s in stretches.iter().rev().take_while(|s| s.end > from) {
        let overlap = s.end.min(to) - (s.end - s.span_s).max(from);
        if overlap > 0.0 {
            jobs += overlap * s.jobs;
            work += overlap * s.jobs * s.mean_s;
            weight += overlap;
        }
    }
    (weight > 0.0).then(|| (jobs / weight, work / weight))
}

impl StatePart for DurationEvidence {
    fn shift(&mut self, by_s: f64) {
        self.since = self.since.map(|at| at + by_s);
        self.stretches.iter_mut().for_each(|s| s.end += by_s);
        for trial in self.trials.values_mut() {
            trial.newest = trial.newest.map(|(at, x)| (at + by_s, x));
        }
    }

    fn is_sound(&self) -> bool {
        self.score.is_finite() && self.trials.values().all(Trial::is_sound)
    }
}
