//! One signal at work: its front end, observer, predictor and PID, and the rate that it asks for.

use std::collections::VecDeque;

use super::actuator::Actuator;
use super::policy::{self, ControllerTuning, SignalKind, SignalSource};
use crate::control::lag_filter::Tuning;
use crate::control::pid::{Gains, Terms};
use crate::control::{History, LagFilter, LogPid, Observer, clamp_finite, trip};

/// The lower bound of the PID's measurement, in setpoints: an outlier must not upset the rate.
const Y_MIN: f64 = 0.25;
/// The upper bound of the PID's measurement, in setpoints.
const Y_MAX: f64 = 4.0;
/// The absolute error from which the gain is full; below it the loop would follow noise.
const KNEE: f64 = 0.6;
/// The share of the gain that remains at zero error.
const KNEE_MIN: f64 = 0.2;
/// The factor by which a persistent error counts more against the knee.
const PERSIST: f64 = 2.5;
/// The averaging time of a persistent error, in seconds.
const PERSIST_S: f64 = 180.0;
/// The lower bound of our share of the load, by which the gain is divided, above the setpoint.
pub(crate) const SHARE_OVER: f64 = 0.5;
/// The lower bound of our share of the load, by which the gain is divided, below the setpoint.
const SHARE_UNDER: f64 = 0.2;
/// The factor on the gain for latencies, because latency is steep near saturation.
const LATENCY_GAIN: f64 = 0.35;
/// The factor on the gain for complaints, because a day's complaints do not react for hours and
/// come in batches.
const COMPLAINTS_GAIN: f64 = 0.05;
/// The lag up to which the gain grows, in minutes.
pub(crate) const LAG_MAX_MIN: f64 = 2.5;
/// The height of trip levels above the setpoint, in sigmas of the signal's own noise.
const TRIP_SIGMAS: f64 = 5.0;
/// The largest value that is computed with, in setpoints: arithmetic stays finite and decisions the
/// same.
const X_MAX: f64 = 1e6;
/// The maximum number of fast-path looks that are kept.
const LOOKS_MAX: usize = 64;

/// A refusal that measured the quota.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Learned {
    /// The time in unix seconds.
    pub at: f64,
    /// The share that was refused.
    pub share: f64,
}

/// The state of one signal between ticks.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Signal {
    /// The name in the policy.
    pub name: String,
    /// The newest value, in the signal's own unit.
    pub value: Option<f64>,
    /// The samples, their noise and their lag.
    pub front: LagFilter,
    /// The estimator of our part of the load.
    pub observer: Observer,
    pub pid: LogPid,
    /// The log work rate that it asks for.
    pub u: f64,
    /// The relative error of the newest decision.
    pub e: f64,
    /// The long-term mean of the error.
    pub ebar: f64,
    /// The newest sample extrapolated to now, in setpoints.
    pub xp: Option<f64>,
    /// True once its controller has been seeded.
    pub started: bool,
    /// The scheduled gain in force.
    pub kc: f64,
    /// The integral time in force, in seconds.
    pub ti_s: f64,
    /// The controller's terms at the newest decision.
    pub terms: Terms,
    /// The part of a load average that a past incident caused, in setpoints, and the time of the
    /// estimate.
    pub memory: (f64, f64),
    /// The trip level in setpoints for samples as received.
    pub trip_x: f64,
    /// The trip level in setpoints for de-lagged samples.
    pub trip_z: f64,
    /// The newest refused share, for ratio signals.
    pub share: f64,
    /// The learned quota as a work rate, for ratio signals.
    pub quota: Option<f64>,
    /// The time of the newest refusal, for ratio signals.
    pub last_bad: Option<f64>,
    /// The newest refusal that measured the quota.
    #[serde(default)]
    pub learned: Option<Learned>,
    /// The current capacity of a pool of accounts behind the throttle (work rate), for ratio
    /// signals; `None` without a pool.
    #[serde(skip)]
    pub capacity: Option<f64>,
    /// The time since which the work uses all that the throttle lets through, for ratio signals;
    /// `None` while it does not.
    #[serde(skip)]
    pub used_from: Option<f64>,
    /// The newest look of the fast path, `(at, x)`; stored, because it may be a successor's only
    /// record of a trip.
    #[serde(default)]
    pub looked: Option<(f64, f64)>,
    /// The recent looks of the fast path, `(at, x)`.
    #[serde(skip)]
    pub looks: VecDeque<(f64, f64)>,
    /// The number of consecutive looks of the fast path above a trip level.
    #[serde(skip)]
    pub alarms: u32,
    /// True if the jobs that ended since the newest sample carry no information about it.
    #[serde(skip)]
    pub discounted: bool,
}

impl Signal {
    /// Creates a signal without samples that tracks the log work rate `u`.
    pub fn new(policy: &policy::SignalPolicy, law: &ControllerTuning, u: f64) -> Self {
        let least = policy.trip / policy.setpoint;
        Self {
            name: policy.name.clone(),
            value: None,
            front: LagFilter::new(policy.lag_s),
            observer: Observer::default(),
            pid: LogPid {
                integral: u,
                previous: None,
            },
            u,
            e: 0.0,
            ebar: 0.0,
            xp: None,
            started: false,
            kc: 0.0,
            ti_s: policy.lag_s.max(law.integral_min_s),
            terms: Terms::default(),
            memory: (0.0, 0.0),
            trip_x: least,
            trip_z: 1.5 * least,
            share: 0.0,
            quota: None,
            last_bad: None,
            learned: None,
            capacity: None,
            used_from: None,
            looked: None,
            looks: VecDeque::new(),
            alarms: 0,
            discounted: false,
        }
    }

    /// Ingests a sample of time `at`, visible at `now`; a value that is not finite, negative or not
    /// newer is ignored.
    pub fn ingest(
        &mut self,
        policy: &policy::SignalPolicy,
        law: &ControllerTuning,
        now: f64,
        at: f64,
        value: f64,
        history: &History,
    ) {
        if !(value.is_finite() && value >= 0.0 && at <= now + 60.0 && self.front.is_news(at)) {
            return;
        }
        self.value = Some(value);
        let dt = self.front.spacing_s(at);
        if policy.kind == SignalKind::Ratio {
            return self.ingest_ratio(policy, now, at, dt, value, history);
        }
        let x = (value / policy.setpoint).min(X_MAX);
        // The levels are computed from the noise before this sample: an overload must not raise its
        // own limit.
        let least = policy.trip / policy.setpoint;
        self.trip_x = trip::level(self.front.var, TRIP_SIGMAS, least, 2.0 * least);
        self.trip_z = trip::level(self.observer.noise, TRIP_SIGMAS, 1.5 * least, 4.5 * least);
        let tuning = Tuning {
            noise_max: law.noise_max,
            filter_max_s: law.filter_max_s,
        };
        self.front.ingest(now, at, x, policy.lag_s, tuning);
        if policy.kind == SignalKind::Load && law.observer {
            self.observer.update(
                self.front.z.min(20.0),
                history.mean(at - dt, at),
                dt.min(120.0),
            );
        }
    }

    /// Returns the log work rate that this signal asks for, with `applied` in force; `None` before
    /// its first sample.
    pub fn ask(
        &mut self,
        policy: &policy::SignalPolicy,
        law: &ControllerTuning,
        now: f64,
        dt: f64,
        history: &History,
        applied: f64,
    ) -> Option<f64> {
        self.front.at?;
        if policy.kind == SignalKind::Ratio {
            return Some(self.ask_ratio(law, now, dt, applied));
        }
        // A signal without information asks for the rate in force: an old sample neither raises nor
        // lowers the knob.
        if !self.started || self.discounted {
            self.rebase(policy, law, now, history, applied);
            return Some(self.u);
        }
        self.ebar = crate::control::ewma::toward(self.ebar, self.e, dt, PERSIST_S);
        let y = self.schedule(policy, law, now, history, applied);
        let td_s = law.derivative_s * (self.front.lag_s.max(law.integral_min_s) / 60.0).min(1.0);
        let gains = Gains {
            kc: self.kc,
            ti_s: self.ti_s,
            td_s,
        };
        (self.u, self.terms) = self.pid.next(gains, y, applied, dt);
        Some(self.u)
    }

    /// Makes this signal ask for `u` now, at a start, hand-over or restart or while signals are
    /// stale.
    pub fn rebase(
        &mut self,
        policy: &policy::SignalPolicy,
        law: &ControllerTuning,
        now: f64,
        history: &History,
        u: f64,
    ) {
        self.u = u;
        self.pid.integral = u;
        if self.front.at.is_none() {
            return;
        }
        self.started = true;
        if policy.kind != SignalKind::Ratio {
            let y = self.schedule(policy, law, now, history, u);
            self.pid.rebase(self.kc, y, u);
        }
    }

    /// Returns true if the signal is far from its limit and another one is nearer to its own, so
    /// that it does not count.
    pub fn abstains(
        &self,
        policy: &policy::SignalPolicy,
        law: &ControllerTuning,
        now: f64,
        lead: f64,
    ) -> bool {
        match policy.kind {
            SignalKind::Ratio => {
                self.share <= 1e-4 && self.last_bad.is_none_or(|bad| now - bad > law.quiet_s)
            }
            _ => self.xp.is_some_and(|xp| xp < lead.min(0.5)),
        }
    }

    /// Returns the newest sample extrapolated to `now` by the work let through since (Smith's
    /// predictor), less the part of the load average that a past incident caused.
    pub fn predict(&self, law: &ControllerTuning, now: f64, history: &History) -> f64 {
        let mut x = self.front.xf;
        if let (true, Some(c), Some(at)) = (law.predictor, self.observer.c, self.front.at) {
            let (then, current) = (
                history.lagged(at, self.front.lag_s),
                history.lagged(now, self.front.lag_s),
            );
            // Our part cannot exceed the whole.
            x += c.min(x / then.max(1e-12)) * (current - then);
        }
        (x - self.remembered(now)).max(0.0)
    }

    /// Returns the newest sample without the memory of a past incident.
    pub fn clean(&self) -> f64 {
        let at = self.front.at.unwrap_or(0.0);
        self.clean_of(at, self.front.x)
    }

    /// Returns the newest sample in setpoints, for the breaker.
    ///
    /// A ratio uses its refused share, because its front end holds the utilisation of the quota
    /// instead.
    pub fn height(&self, policy: &policy::SignalPolicy) -> f64 {
        match policy.kind {
            SignalKind::Ratio => self.share / policy.setpoint,
            _ => self.clean(),
        }
    }

    /// Returns the value `x` of time `at` without the memory of a past incident.
    pub fn clean_of(&self, at: f64, x: f64) -> f64 {
        if at < self.memory.1 {
            x
        } else {
            (x - self.remembered(at)).max(0.0)
        }
    }

    /// Records the load average's memory of an incident at a restart to `level`: the excess over
    /// `level` decays with the lag for minutes, so the controller leaves it out.
    pub fn forget(&mut self, law: &ControllerTuning, now: f64, history: &History, level: f64) {
        self.memory.0 = 0.0;
        self.memory = ((self.predict(law, now, history) - level).max(0.0), now);
    }

    /// Records one look of the fast path; returns the clean value and the one with the averaging
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

    /// Shifts every time by `by_s` after the clock was set back.
    pub fn shift(&mut self, by_s: f64) {
        self.front.shift(by_s);
        self.memory.1 += by_s;
        self.last_bad = self.last_bad.map(|t| t + by_s);
        self.learned
            .iter_mut()
            .for_each(|learned| learned.at += by_s);
        self.looked = self.looked.map(|(at, x)| (at + by_s, x));
        self.looks.clear();
    }

    /// Returns false if any number is infinite or NaN.
    pub(super) fn is_sound(&self) -> bool {
        let (front, observer) = (&self.front, &self.observer);
        let own = [
            self.u,
            self.e,
            self.ebar,
            self.kc,
            self.ti_s,
            self.pid.integral,
            self.memory.0,
            self.share,
            self.trip_x,
            self.trip_z,
        ];
        let seen = [
            front.x,
            front.z,
            front.xf,
            front.gap_s,
            front.span_s,
            front.mean,
            front.var,
            front.dif,
            front.lag_s,
            front.tau_s,
        ];
        let model = [
            observer.b,
            observer.c.unwrap_or(0.0),
            observer.bb,
            observer.bc,
            observer.cc,
            observer.noise,
            observer.nu,
        ];
        let maybe = [
            self.looked.map(|look| look.0 + look.1),
            self.xp,
            self.quota,
            self.pid.previous,
            Some(observer.top),
        ]
        .into_iter()
        .flatten();
        own.into_iter()
            .chain(seen)
            .chain(model)
            .chain(maybe)
            .all(f64::is_finite)
    }

    fn remembered(&self, at: f64) -> f64 {
        let (memory, since) = self.memory;
        if memory <= 0.0 || self.front.lag_s <= 1.0 {
            0.0
        } else {
            memory * ((since - at) / self.front.lag_s).min(0.0).exp()
        }
    }

    /// Predicts the measurement, schedules the gain and returns the clipped measurement.
    ///
    /// The gain is full for large or lasting errors, small for small ones, and larger if only a
    /// part of the load is ours.
    fn schedule(
        &mut self,
        policy: &policy::SignalPolicy,
        law: &ControllerTuning,
        now: f64,
        history: &History,
        applied: f64,
    ) -> f64 {
        let xp = self.predict(law, now, history);
        let y = clamp_finite(xp, Y_MIN, Y_MAX);
        let e = 1.0 - y;
        let lag = self.front.lag_s.max(law.integral_min_s);
        let v = applied.exp();
        let mut kc = law.gain * (lag / 60.0).min(LAG_MAX_MIN);
        kc *= match policy.kind {
            SignalKind::Latency if policy.source == SignalSource::Complaints => COMPLAINTS_GAIN,
            // A loop closed by slots is not steep: with twice as many concurrent jobs each takes at
            // most twice as long.
            SignalKind::Latency if law.actuator == Actuator::Concurrency => 1.0,
            SignalKind::Latency => LATENCY_GAIN,
            _ if e > 0.0 => 1.0 / clamp_finite(self.observer.share(v, 2.0), SHARE_UNDER, 1.0),
            _ => 1.0 / clamp_finite(self.observer.share(v, 0.0), SHARE_OVER, 1.0),
        };
        kc *= clamp_finite(e.abs().max(PERSIST * self.ebar.abs()) / KNEE, KNEE_MIN, 1.0);
        (self.xp, self.e, self.kc, self.ti_s) = (Some(xp), e, kc, lag);
        y
    }
}
