//! One signal at work: its samples, its trip levels, and the rate that its controller asks for.

use std::collections::VecDeque;

use super::controller::Controller;
use super::part::{StatePart, all_finite};
use super::tick_context::TickContext;
use crate::control::lag_filter::Tuning;
use crate::control::{History, LagFilter, LoadSample, clamp_finite, trip};
use crate::governor::observation::AHEAD_S;
use crate::governor::policy::{ControllerTuning, SignalKind, SignalPolicy};

/// The height of trip levels above the setpoint, in sigmas of the signal's own noise.
const TRIP_SIGMAS: f64 = 5.0;
/// The same, in sigmas of the noise that a model has learned: a count of few tasks has long tails.
const MODEL_SIGMAS: f64 = 8.0;
/// The largest value that is computed with, in setpoints: arithmetic stays finite and decisions the
/// same.
const X_MAX: f64 = 1e6;
/// The maximum number of fast-path looks that are kept.
const LOOKS_MAX: usize = 64;
/// The patience with a silent signal, in usual spacings of its samples.
const STALE_GAPS: f64 = 3.5;

/// The state of one signal between ticks.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Signal {
    /// The name in the policy.
    pub name: String,
    /// The newest value, in the signal's own unit.
    pub value: Option<f64>,
    /// The setpoint in the source's own unit, which is the unit of everything that was learned;
    /// `None` in states stored without it.
    #[serde(default)]
    unit: Option<f64>,
    /// The samples, their noise and their lag.
    pub front: LagFilter,
    /// The controller.
    pub controller: Controller,
    /// The log work rate that it asks for.
    pub u: f64,
    /// The relative error of the newest decision.
    pub e: f64,
    /// The trip level in setpoints for samples as received.
    pub trip_x: f64,
    /// The trip level in setpoints for de-lagged samples.
    pub trip_z: f64,
    /// The newest look of the fast path, `(at, x)`; stored, because it may be a successor's only
    /// record of a trip.
    #[serde(default)]
    pub looked: Option<(f64, f64)>,
    /// The recent looks of the fast path, `(at, x)`.
    #[serde(skip)]
    looks: VecDeque<(f64, f64)>,
    /// The number of consecutive looks of the fast path above a trip level.
    #[serde(skip)]
    pub alarms: u32,
    /// True if the jobs that ended since the newest sample carry no information about it.
    #[serde(skip)]
    pub discounted: bool,
    /// The reason why the last reading failed, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Signal {
    /// Creates a signal without samples that tracks the log work rate `u`.
    pub fn new(policy: &SignalPolicy, law: &ControllerTuning, u: f64) -> Self {
        let least = policy.trip / policy.setpoint;
        Self {
            name: policy.name.clone(),
            value: None,
            unit: Some(unit(policy)),
            front: LagFilter::new(policy.lag_s),
            controller: Controller::new(policy.kind, u, policy.lag_s.max(law.integral_min_s)),
            u,
            e: 0.0,
            trip_x: least,
            trip_z: 1.5 * least,
            looked: None,
            looks: VecDeque::new(),
            alarms: 0,
            discounted: false,
            problem: None,
        }
    }

    /// Lets the model learn from the newest sample of an earlier tick.
    ///
    /// A setpoint that has changed is a change of unit: the background and the cost stay what they
    /// are. One that has changed together with its `scale` is the same one.
    pub fn learn(&mut self, policy: &SignalPolicy, history: &History) {
        let unit = unit(policy);
        let old = self.unit.replace(unit);
        let Controller::Pid(pid) = &mut self.controller else {
            return;
        };
        let factor = old.map_or(1.0, |old| old / unit);
        if factor != 1.0 && factor.is_finite() && factor > 0.0 {
            self.front.rescale(factor);
            pid.rescale(factor);
        }
        pid.learn_load(&mut self.front, policy.lag_s, history);
    }

    /// Ingests a sample of time `at`, visible now; a value that is not finite, negative or not
    /// newer is ignored.
    pub fn ingest(&mut self, context: TickContext<'_>, at: f64, value: f64) {
        let TickContext {
            policy,
            law,
            history,
            now,
        } = context;
        if !(value.is_finite() && value >= 0.0 && at <= now + AHEAD_S && self.front.is_news(at)) {
            return;
        }
        self.value = Some(value);
        let controller = match &mut self.controller {
            Controller::Pid(pid) => pid,
            Controller::Quota(quota) => {
                return quota.ingest(&mut self.front, context, at, value);
            }
        };
        controller.learn_load(&mut self.front, policy.lag_s, history);
        let dt = self.front.spacing_s(at);
        let x = (value / policy.setpoint).min(X_MAX);
        // The levels are computed from the noise before this sample: an overload must not raise its
        // own limit.
        let least = policy.trip / policy.setpoint;
        let noise = controller.observer.noise;
        let of_model = controller.model.noise(self.front.gap_s);
        (self.trip_x, self.trip_z) = match of_model.filter(|_| context.has_model()) {
            Some((published, delagged)) => (
                trip::level(published, MODEL_SIGMAS, least, 4.0 * least),
                trip::level(delagged, MODEL_SIGMAS, 1.5 * least, 9.0 * least),
            ),
            None => (
                trip::level(self.front.var, TRIP_SIGMAS, least, 2.0 * least),
                trip::level(noise, TRIP_SIGMAS, 1.5 * least, 4.5 * least),
            ),
        };
        let tuning = Tuning {
            noise_max: law.noise_max,
            filter_max_s: law.filter_max_s,
        };
        let before = self.front.at.is_some().then_some(self.front.x);
        self.front.ingest(now, at, x, policy.lag_s, tuning);
        if context.has_model() {
            let sample = LoadSample {
                at,
                dt_s: dt.min(120.0),
                x: x.min(20.0),
                before: before.map(|x| x.min(20.0)),
            };
            controller.learn_later(sample);
            return;
        }
        controller.drop_model();
        if policy.kind == SignalKind::Load && law.observer {
            controller.observer.update(
                self.front.z.min(20.0),
                history.mean(at - dt, at),
                dt.min(120.0),
            );
        }
    }

    /// Returns the log work rate that this signal asks for, with `applied` in force; `None` before
    /// its first sample.
    pub fn ask(&mut self, context: TickContext<'_>, dt: f64, applied: f64) -> Option<f64> {
        self.front.at?;
        let ask = match &mut self.controller {
            Controller::Quota(quota) => quota.ask(&self.front, context, dt, applied),
            // A signal without information asks for the rate in force: an old sample neither raises
            // nor lowers the knob.
            Controller::Pid(pid) if !pid.started || self.discounted => {
                self.rebase(context, applied);
                return Some(self.u);
            }
            Controller::Pid(pid) => {
                let e = self.e;
                pid.ask(&self.front, context, dt, applied, e)
            }
        };
        (self.u, self.e) = (ask.u, ask.e);
        Some(self.u)
    }

    /// Makes this signal ask for `u` now, at a start, hand-over or restart or while signals are
    /// stale.
    pub fn rebase(&mut self, context: TickContext<'_>, u: f64) {
        self.u = u;
        match &mut self.controller {
            Controller::Quota(quota) => {
                quota.integral = u;
                quota.started |= self.front.at.is_some();
            }
            Controller::Pid(pid) => {
                pid.pid.integral = u;
                if self.front.at.is_some() {
                    self.e = pid.rebase(&self.front, context, u);
                }
            }
        }
    }

    /// Returns true if the signal is far from its limit and another one is nearer to its own, so
    /// that it does not count.
    pub fn abstains(&self, law: &ControllerTuning, now: f64, lead: f64) -> bool {
        match &self.controller {
            Controller::Quota(quota) => quota.is_quiet(now, law.quiet_s),
            Controller::Pid(pid) => pid.xp.is_some_and(|xp| xp < lead.min(0.5)),
        }
    }

    /// Returns the newest sample extrapolated to now, in setpoints; `None` for a refused share.
    pub fn predicted(&self) -> Option<f64> {
        self.controller.pid().and_then(|pid| pid.xp)
    }

    /// Returns the newest sample in setpoints, for the breaker.
    ///
    /// A ratio uses its refused share, because its front end holds the utilisation of the quota
    /// instead.
    pub fn height(&self, policy: &SignalPolicy) -> f64 {
        match &self.controller {
            Controller::Quota(quota) => quota.share / policy.setpoint,
            Controller::Pid(_) => self.clean_of(self.front.at.unwrap_or(0.0), self.front.x),
        }
    }

    /// Returns the value `x` of time `at` without the memory of a past incident.
    pub fn clean_of(&self, at: f64, x: f64) -> f64 {
        match &self.controller {
            Controller::Quota(_) => x,
            Controller::Pid(pid) => pid.clean_of(&self.front, at, x),
        }
    }

    /// Records one sample of the fast path; returns the clean value and the one with the averaging
    /// undone over the usual spacing.
    pub fn look(&mut self, at: f64, value: f64, setpoint: f64) -> (f64, f64) {
        let x = (value / setpoint).min(X_MAX);
        self.looked = Some((at, x));
        if self.looks.back().is_none_or(|last| at > last.0) {
            self.looks.push_back((at, x));
        }
        while self.looks.len() > LOOKS_MAX {
            self.looks.pop_front();
        }
        let span_s = clamp_finite(self.front.gap_s, 1.0, 15.0);
        let before = self
            .looks
            .iter()
            .rev()
            .find(|look| look.0 <= at - span_s + 0.05);
        let z = before.map_or(x, |&(then, old)| self.front.delag(x, old, at - then));
        (self.clean_of(at, x), z)
    }

    /// Returns the silence after which it is stale, in seconds.
    pub fn stale_after_s(&self, policy: &SignalPolicy, law: &ControllerTuning) -> f64 {
        policy
            .stale_s
            .unwrap_or_else(|| self.front.stale_after_s(law.stale_hold_s, STALE_GAPS))
    }

    /// Multiplies rates by `factor` after the unit of work changed.
    pub fn scale(&mut self, factor: f64) {
        self.u += factor.ln();
        self.controller.scale(factor);
    }
}

/// Returns the setpoint in the source's own unit.
fn unit(policy: &SignalPolicy) -> f64 {
    policy.setpoint / policy.scale
}

impl StatePart for Signal {
    fn shift(&mut self, by_s: f64) {
        self.front.shift(by_s);
        self.controller.shift(by_s);
        self.looked = self.looked.map(|(at, x)| (at + by_s, x));
        self.looks.clear();
    }

    fn is_sound(&self) -> bool {
        let own = [self.u, self.e, self.trip_x, self.trip_z];
        let looked = self.looked.map(|look| look.0 + look.1);
        all_finite(own.into_iter().chain(looked).chain(self.unit))
            && self.front.is_sound()
            && self.controller.is_sound()
    }
}
