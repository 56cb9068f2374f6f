//! One signal at work: its front end, observer, predictor and PID, and what it asks the rate to be.

use std::collections::VecDeque;

use super::actuator::Actuator;
use super::policy::{self, Kind, Law, Source};
use crate::control::front::Tuning;
use crate::control::pid::{Gains, Terms};
use crate::control::{Front, History, LogPid, Observer, trip, within};

/// The measurement that the PID works on stays between these, in setpoints: a wild sample must not throw the rate.
const Y_MIN: f64 = 0.25;
const Y_MAX: f64 = 4.0;
/// Absolute error from which the gain is full; below it noise would be chased.
const KNEE: f64 = 0.6;
/// Share of the gain that is left at no error.
const KNEE_MIN: f64 = 0.2;
/// An error that persists counts this much more against the knee, and over this time, in seconds.
const PERSIST: f64 = 2.5;
const PERSIST_S: f64 = 180.0;
/// The gain is divided by our share of the load, but by no less than this: above and below the setpoint.
pub(crate) const SHARE_OVER: f64 = 0.5;
const SHARE_UNDER: f64 = 0.2;
/// Latency is steep near saturation: this share of the gain.
const LATENCY_GAIN: f64 = 0.35;
/// What was complained of in a day does not answer for hours, and comes in batches: this share of the gain.
const COMPLAINTS_GAIN: f64 = 0.05;
/// The gain grows with the lag up to this many minutes.
pub(crate) const LAG_MAX_MIN: f64 = 2.5;
/// Trip levels are this many sigmas of the signal's own noise above the setpoint.
const TRIP_SIGMAS: f64 = 5.0;
/// No value is taken to be further from its setpoint than this factor: arithmetic stays finite, decisions the same.
const X_MAX: f64 = 1e6;
/// Most looks of the fast path that are kept.
const LOOKS_MAX: usize = 64;

/// What the newest refusal was.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Learned {
    /// When, in unix seconds.
    pub at: f64,
    /// The share that was refused.
    pub share: f64,
}

/// What is kept of one signal between ticks.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Signal {
    /// Its name in the policy.
    pub name: String,
    /// The newest value, in the signal's own unit.
    pub value: Option<f64>,
    /// Samples, noise and lag.
    pub front: Front,
    /// Which part of the load is ours.
    pub observer: Observer,
    /// The controller.
    pub pid: LogPid,
    /// The log work rate that it asks for.
    pub u: f64,
    /// The relative error of the newest decision.
    pub e: f64,
    /// The error's long mean.
    pub ebar: f64,
    /// The newest sample carried to now, in setpoints.
    pub xp: Option<f64>,
    /// Its controller has been seeded.
    pub started: bool,
    /// Scheduled gains and the terms of the newest decision.
    pub kc: f64,
    /// Integral time in force, in seconds.
    pub ti_s: f64,
    /// The newest decision's terms.
    pub terms: Terms,
    /// What a load average still remembers of an incident, in setpoints, and since when.
    pub memory: (f64, f64),
    /// Trip levels in setpoints: for samples as they come, and for de-lagged ones.
    pub trip_x: f64,
    /// See `trip_x`.
    pub trip_z: f64,
    /// Ratio signals: the newest share, the learned quota (work rate), the time of the newest refusal.
    pub share: f64,
    /// See `share`.
    pub quota: Option<f64>,
    /// See `share`.
    pub last_bad: Option<f64>,
    /// The newest refusal, which taught the quota.
    #[serde(default)]
    pub learned: Option<Learned>,
    /// Ratio signals: what a pool of accounts behind the throttle can bear now (work rate), where there is one.
    #[serde(skip)]
    pub capacity: Option<f64>,
    /// Ratio signals: since when the work uses all that the throttle lets through; `None` while it does not.
    #[serde(skip)]
    pub used_from: Option<f64>,
    /// The fast path's newest look `(at, x)`; kept, because it may be all that a successor knows of a trip.
    #[serde(default)]
    pub looked: Option<(f64, f64)>,
    /// The fast path's recent looks `(at, x)`.
    #[serde(skip)]
    pub looks: VecDeque<(f64, f64)>,
    /// Consecutive looks of the fast path above a trip level.
    #[serde(skip)]
    pub alarms: u32,
    /// What ended since the newest sample says nothing about it.
    #[serde(skip)]
    pub discounted: bool,
}

impl Signal {
    /// A signal that has seen nothing, tracking the log work rate `u`.
    pub fn new(policy: &policy::Signal, law: &Law, u: f64) -> Self {
        let least = policy.trip / policy.setpoint;
        Self {
            name: policy.name.clone(),
            value: None,
            front: Front::new(policy.lag_s),
            observer: Observer::default(),
            pid: LogPid { integral: u, previous: None },
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

    /// Takes in a sample of time `at`, visible at `now`. Not finite, negative or not newer: not a sample.
    pub fn ingest(&mut self, policy: &policy::Signal, law: &Law, now: f64, at: f64, value: f64, history: &History) {
        if !(value.is_finite() && value >= 0.0 && at <= now + 60.0 && self.front.is_news(at)) {
            return;
        }
        self.value = Some(value);
        let dt = self.front.spacing_s(at);
        if policy.kind == Kind::Ratio {
            return self.ingest_ratio(policy, now, at, dt, value, history);
        }
        let x = (value / policy.setpoint).min(X_MAX);
        // The levels come from the noise known before this sample: an overload must not raise its own limit.
        let least = policy.trip / policy.setpoint;
        self.trip_x = trip::level(self.front.var, TRIP_SIGMAS, least, 2.0 * least);
        self.trip_z = trip::level(self.observer.noise, TRIP_SIGMAS, 1.5 * least, 4.5 * least);
        let tuning = Tuning { noise_max: law.noise_max, filter_max_s: law.filter_max_s };
        self.front.ingest(now, at, x, policy.lag_s, tuning);
        if policy.kind == Kind::Load && law.observer {
            self.observer.update(self.front.z.min(20.0), history.mean(at - dt, at), dt.min(120.0));
        }
    }

    /// The log work rate that this signal asks for, with `applied` in force; `None` before its first sample.
    pub fn ask(&mut self, policy: &policy::Signal, law: &Law, now: f64, dt: f64, history: &History, applied: f64) -> Option<f64> {
        self.front.at?;
        if policy.kind == Kind::Ratio {
            return Some(self.ask_ratio(law, now, dt, applied));
        }
        // Who learns nothing asks for what there is: neither is the knob raised on the word of an old sample, nor lowered.
        if !self.started || self.discounted {
            self.rebase(policy, law, now, history, applied);
            return Some(self.u);
        }
        self.ebar = crate::control::ewma::toward(self.ebar, self.e, dt, PERSIST_S);
        let y = self.schedule(policy, law, now, history, applied);
        let td_s = law.derivative_s * (self.front.lag_s.max(law.integral_min_s) / 60.0).min(1.0);
        let gains = Gains { kc: self.kc, ti_s: self.ti_s, td_s };
        (self.u, self.terms) = self.pid.next(gains, y, applied, dt);
        Some(self.u)
    }

    /// Makes this signal ask for `u` now: start, hand-over, restart, blindness.
    pub fn rebase(&mut self, policy: &policy::Signal, law: &Law, now: f64, history: &History, u: f64) {
        self.u = u;
        self.pid.integral = u;
        if self.front.at.is_none() {
            return;
        }
        self.started = true;
        if policy.kind != Kind::Ratio {
            let y = self.schedule(policy, law, now, history, u);
            self.pid.rebase(self.kc, y, u);
        }
    }

    /// A signal far from its limit says nothing about the rate, if another one is nearer to its own.
    pub fn abstains(&self, policy: &policy::Signal, law: &Law, now: f64, lead: f64) -> bool {
        match policy.kind {
            Kind::Ratio => self.share <= 1e-4 && self.last_bad.is_none_or(|bad| now - bad > law.quiet_s),
            _ => self.xp.is_some_and(|xp| xp < lead.min(0.5)),
        }
    }

    /// The newest sample carried from its own time to `now` with what was let through since (Smith's predictor), less
    /// what the load average remembers of an incident.
    pub fn predict(&self, law: &Law, now: f64, history: &History) -> f64 {
        let mut x = self.front.xf;
        if let (true, Some(c), Some(at)) = (law.predictor, self.observer.c, self.front.at) {
            let (then, current) = (history.lagged(at, self.front.lag_s), history.lagged(now, self.front.lag_s));
            // Our part cannot exceed the whole.
            x += c.min(x / then.max(1e-12)) * (current - then);
        }
        (x - self.remembered(now)).max(0.0)
    }

    /// The newest sample without the memory of a past incident.
    pub fn clean(&self) -> f64 {
        let at = self.front.at.unwrap_or(0.0);
        self.clean_of(at, self.front.x)
    }

    /// How high the newest sample is, in setpoints, for the breaker. What is kept of a ratio otherwise is how full its quota is.
    pub fn height(&self, policy: &policy::Signal) -> f64 {
        match policy.kind {
            Kind::Ratio => self.share / policy.setpoint,
            _ => self.clean(),
        }
    }

    /// A value `x` of time `at` without the memory of a past incident.
    pub fn clean_of(&self, at: f64, x: f64) -> f64 {
        if at < self.memory.1 { x } else { (x - self.remembered(at)).max(0.0) }
    }

    /// A load average remembers an incident for minutes. At a restart to `level` everything above it is known to decay
    /// with the lag, so the controller leaves it out.
    pub fn forget(&mut self, law: &Law, now: f64, history: &History, level: f64) {
        self.memory.0 = 0.0;
        self.memory = ((self.predict(law, now, history) - level).max(0.0), now);
    }

    /// One look of the fast path: the clean value and the one with the averaging undone over the usual spacing.
    pub fn look(&mut self, at: f64, value: f64, setpoint: f64) -> (f64, f64) {
        let x = (value / setpoint).min(X_MAX);
        self.looked = Some((at, x));
        if self.looks.back().is_none_or(|last| at > last.0) {
            self.looks.push_back((at, x));
        }
        while self.looks.len() > LOOKS_MAX {
            self.looks.pop_front();
        }
        let span_s = within(self.front.gap_s, 1.0, 15.0);
        let before = self.looks.iter().rev().find(|look| look.0 <= at - span_s + 0.05);
        let z = before.map_or(x, |&(then, old)| self.front.delag(x, old, at - then));
        (self.clean_of(at, x), z)
    }

    /// Moves every time by `by_s`, when the clock was set back.
    pub fn shift(&mut self, by_s: f64) {
        self.front.shift(by_s);
        self.memory.1 += by_s;
        self.last_bad = self.last_bad.map(|t| t + by_s);
        self.learned.iter_mut().for_each(|learned| learned.at += by_s);
        self.looked = self.looked.map(|(at, x)| (at + by_s, x));
        self.looks.clear();
    }

    /// False if some number cannot be computed with or stored.
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
        let seen =
            [front.x, front.z, front.xf, front.gap_s, front.span_s, front.mean, front.var, front.dif, front.lag_s, front.tau_s];
        let model = [observer.b, observer.c.unwrap_or(0.0), observer.bb, observer.bc, observer.cc, observer.noise, observer.nu];
        let maybe = [self.looked.map(|look| look.0 + look.1), self.xp, self.quota, self.pid.previous, Some(observer.top)]
            .into_iter()
            .flatten();
        own.into_iter().chain(seen).chain(model).chain(maybe).all(f64::is_finite)
    }

    fn remembered(&self, at: f64) -> f64 {
        let (memory, since) = self.memory;
        if memory <= 0.0 || self.front.lag_s <= 1.0 { 0.0 } else { memory * ((since - at) / self.front.lag_s).min(0.0).exp() }
    }

    /// Predicts, and sets the gain: full for large or lasting errors, small for small ones, larger where only a part of the
    /// load is ours. Answers the clipped measurement.
    fn schedule(&mut self, policy: &policy::Signal, law: &Law, now: f64, history: &History, applied: f64) -> f64 {
        let xp = self.predict(law, now, history);
        let y = within(xp, Y_MIN, Y_MAX);
        let e = 1.0 - y;
        let lag = self.front.lag_s.max(law.integral_min_s);
        let v = applied.exp();
        let mut kc = law.gain * (lag / 60.0).min(LAG_MAX_MIN);
        kc *= match policy.kind {
            Kind::Latency if policy.source == Source::Complaints => COMPLAINTS_GAIN,
            // A loop that is closed by slots is not steep: with twice as many jobs at once each takes at most twice as long.
            Kind::Latency if law.actuator == Actuator::Concurrency => 1.0,
            Kind::Latency => LATENCY_GAIN,
            _ if e > 0.0 => 1.0 / within(self.observer.share(v, 2.0), SHARE_UNDER, 1.0),
            _ => 1.0 / within(self.observer.share(v, 0.0), SHARE_OVER, 1.0),
        };
        kc *= within(e.abs().max(PERSIST * self.ebar.abs()) / KNEE, KNEE_MIN, 1.0);
        (self.xp, self.e, self.kc, self.ti_s) = (Some(xp), e, kc, lag);
        y
    }
}
