//! The unit in which a governor counts work: the mean duration of a job, or the job itself.
//!
//! Every change of the unit leaves the rate as it is.

use super::law::{Verdict, WorkEstimate, signals};
use super::observation::Observation;
use super::policy::Policy;
use super::state::ControlState;

impl ControlState {
    /// Learns from the durations of the jobs that ended in the last `dt` seconds.
    pub(super) fn learn_work(
        &mut self,
        policy: &Policy,
        seen: &Observation,
        achieved: Option<f64>,
        dt: f64,
    ) {
        let law = &policy.law;
        if !law.durations {
            return;
        }
        let may_fall = !(law.durations_check && signals::any_above(&self.signals, policy));
        let (n, mean_s) = (seen.ended_jobs(achieved, dt), seen.mean_duration_s);
        let learned = self.work.learn(n, mean_s, dt, law.duration_step, may_fall);
        if let (Some(factor), _) = learned {
            self.history.scale(factor);
            self.scale_rates(factor);
        }
    }

    /// Records that `achieved` jobs per second ran in the `span_s` seconds until `now`.
    pub(super) fn push_work(
        &mut self,
        seen: &Observation,
        now: f64,
        (span_s, dt): (f64, f64),
        achieved: f64,
    ) {
        let w = self.work.w;
        self.history.push(now, span_s, achieved * w);
        let n = seen.ended_jobs(Some(achieved), dt);
        if let Some(mean_s) = self.work.tick_s(n, seen.mean_duration_s) {
            (self.work.evidence).push(now, span_s, achieved, mean_s, w);
        }
    }

    /// Learns from the new samples whether durations say anything of the load; work is counted
    /// accordingly.
    pub(super) fn judge_durations(
        &mut self,
        policy: &Policy,
        seen: &Observation,
        now: f64,
        dt: f64,
    ) {
        let counted = self.work.evidence.counts();
        if policy.checks_durations() && self.work.known {
            let signals = &self.signals;
            (self.work.evidence).judge(policy, signals, &seen.readings, now, dt);
        } else if !counted && policy.law.durations {
            // The policy has stopped asking.
            self.work.evidence.verdict = Verdict::Unknown;
        }
        if self.work.evidence.counts() != counted {
            self.change_unit(policy, now);
        }
    }

    /// Takes over what the governor of the real throttle has found: a shadow sees no durations of
    /// its own.
    pub(super) fn adopt_durations(&mut self, real: &WorkEstimate, policy: &Policy, now: f64) {
        if self.work.evidence.counts() != real.evidence.counts() {
            self.work.evidence.verdict = real.evidence.verdict;
            self.change_unit(policy, now);
        }
        self.work.evidence = real.evidence.clone();
    }

    /// Multiplies rates by `factor` after the unit of work changed.
    fn scale_rates(&mut self, factor: f64) {
        self.u += factor.ln();
        self.breaker.v_trip *= factor;
        self.usual *= factor;
        self.week.scale(factor);
        for signal in &mut self.signals {
            signal.scale(factor);
        }
    }

    /// Counts work in the unit that the evidence on durations chooses: the past too, and with the
    /// models that have learned in that unit.
    fn change_unit(&mut self, policy: &Policy, now: f64) {
        let evidence = &self.work.evidence;
        self.history.convert(|end| evidence.factor(end));
        let factor = self.work.choose();
        self.scale_rates(factor);
        for signal in &mut self.signals {
            let model = self.work.evidence.model(&signal.name);
            if let (Some(model), Some(pid)) = (model, signal.controller.pid_mut()) {
                pid.observer = model.clone();
            }
        }
        self.rebase(policy, now);
    }
}

#[cfg(test)]
#[path = "work_unit_tests.rs"]
mod tests;
