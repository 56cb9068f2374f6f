//! The controller of loads and latencies: observer, predictor, scheduled gain and PID.

use super::part::{StatePart, all_finite};
use super::tick_context::TickContext;
use crate::control::pid::{Gains, Terms};
use crate::control::{
    History, LagFilter, LoadModel, LoadSample, LogPid, Observer, clamp_finite, ewma,
};
use crate::governor::actuator::Actuator;
use crate::governor::policy::{ControllerTuning, SignalKind, SignalSource};

/// The lower bound of the PID's measurement, in setpoints: an outlier must not upset the rate.
const Y_MIN: f64 = 0.25;
/// The upper bound of the PID's measurement, in setpoints.
const Y_MAX: f64 = 4.0;
/// The absolute error from which the gain is full; below it the loop would follow noise.
const KNEE: f64 = 0.6;
/// The share of the gain that remains at zero error.
const KNEE_MIN: f64 = 0.2;
/// The factor by which a persistent error counts more against the knee.
const PERSISTENT_WEIGHT: f64 = 2.5;
/// The averaging time of a persistent error, in seconds.
const PERSISTENT_S: f64 = 180.0;
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

/// The time in which the rate follows a model upwards, in times of the way down.
const MODEL_RISE: f64 = 2.0;
/// The gain at which the rate follows a model in `integral_min_s`.
const MODEL_GAIN: f64 = 1.6;
/// The mean overload that refutes a model which would raise the rate, in setpoints.
const REFUTED_OVER: f64 = 0.05;
/// The mean of unused room that refutes a model which would lower the rate, in setpoints.
const REFUTED_UNDER: f64 = 0.15;
/// The mean error that refutes a model however noisy the load is, in setpoints.
const REFUTED_MOST: f64 = 0.5;
/// The largest distance from the model's rate that counts, in nats.
const MODEL_STEP_MAX: f64 = 1.5;

/// The state of the PID controller of one signal.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PidController {
    /// The estimator of our part of the load.
    pub observer: Observer,
    /// The integral and the previous measurement.
    pub pid: LogPid,
    /// The long-term mean of the error.
    pub ebar: f64,
    /// The newest sample extrapolated to now, in setpoints.
    pub xp: Option<f64>,
    /// True once it has been seeded.
    pub started: bool,
    /// The scheduled gain in force.
    pub kc: f64,
    /// The integral time in force, in seconds.
    pub ti_s: f64,
    /// The terms of the newest decision.
    pub terms: Terms,
    /// The part of a load average that a past incident caused, in setpoints, and the time of the
    /// estimate.
    memory: (f64, f64),
    /// The model that the rate of a load follows; empty for other kinds.
    #[serde(default)]
    pub model: LoadModel,
    /// The newest sample, from which the model learns after the decision on it.
    #[serde(default)]
    pending: Option<LoadSample>,
}

/// The rate that a controller asks for, with the relative error behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// The log work rate.
    pub u: f64,
    /// The relative error.
    pub e: f64,
}

impl PidController {
    pub(super) fn new(u: f64, ti_s: f64) -> Self {
        Self {
            observer: Observer::default(),
            pid: LogPid {
                integral: u,
                previous: None,
            },
            ebar: 0.0,
            xp: None,
            started: false,
            kc: 0.0,
            ti_s,
            terms: Terms::default(),
            memory: (0.0, 0.0),
            model: LoadModel::default(),
            pending: None,
        }
    }

    /// Returns the rate to ask for, with `applied` in force and `e` the previous error.
    pub(super) fn ask(
        &mut self,
        front: &LagFilter,
        context: TickContext<'_>,
        dt: f64,
        applied: f64,
        e: f64,
    ) -> Ask {
        let law = context.law;
        self.ebar = ewma::toward(self.ebar, e, dt, PERSISTENT_S);
        self.model.settle(dt);
        let (y, e) = self.schedule(front, context, applied);
        let td_s = law.derivative_s * (front.lag_s.max(law.integral_min_s) / 60.0).min(1.0);
        let gains = Gains {
            kc: self.kc,
            ti_s: self.ti_s,
            td_s,
        };
        let (u, terms) = self.pid.next(gains, y, applied, dt);
        self.terms = terms;
        let u = match self.model.room() {
            // An error that lasts is the judge: a model that would go the other way is wrong.
            Some(room) if context.has_model() && !self.is_refuted(room - applied, front) => {
                toward_room(applied, room, law, dt)
            }
            _ => u,
        };
        // The PID's measurement decides about the direction: above the setpoint no model raises.
        let u = match context.has_model() && y > 1.0 {
            true => u.min(applied),
            false => u,
        };
        Ask { u, e }
    }

    /// Makes it ask for `u` now, and returns the relative error.
    pub(super) fn rebase(&mut self, front: &LagFilter, context: TickContext<'_>, u: f64) -> f64 {
        self.started = true;
        let (y, e) = self.schedule(front, context, u);
        self.pid.rebase(self.kc, y, u);
        e
    }

    /// Returns the newest sample extrapolated to `now` by the work let through since (Smith's
    /// predictor), less the part of the load average that a past incident caused.
    pub(super) fn predict(
        &self,
        front: &LagFilter,
        law: &ControllerTuning,
        now: f64,
        history: &History,
    ) -> f64 {
        let mut x = front.xf;
        if let (true, Some(c), Some(at)) = (law.predictor, self.observer.c, front.at) {
            let (then, current) = (
                history.lagged(at, front.lag_s),
                history.lagged(now, front.lag_s),
            );
            // Our part cannot exceed the whole.
            x += c.min(x / then.max(1e-12)) * (current - then);
        }
        (x - self.remembered(front, now)).max(0.0)
    }

    /// Learns the newest sample of an earlier tick, and takes the lag, the background and the cost
    /// of the model over.
    pub(super) fn learn_load(&mut self, front: &mut LagFilter, hint_s: f64, history: &History) {
        let Some(sample) = self.pending.take() else {
            return;
        };
        self.model.learn(hint_s, sample, history);
        if let Some(observer) = self.model.observer() {
            self.observer = observer.clone();
        }
        if let Some(lag_s) = self.model.lag_s() {
            front.adopt_lag(lag_s);
        }
    }

    /// Keeps a sample, from which the model learns after the decision on it: that decision depends
    /// on the sample alone.
    pub(super) fn learn_later(&mut self, sample: LoadSample) {
        self.pending = Some(sample);
    }

    /// Drops the model, which does not learn while it is not used: it would be old when it is used
    /// again.
    pub(super) fn drop_model(&mut self) {
        self.model = LoadModel::default();
        self.pending = None;
    }

    /// Returns true if the mean error of the last minutes contradicts a model that wants to move
    /// the log rate by `step`: by more than the noise of that mean.
    fn is_refuted(&self, step: f64, front: &LagFilter) -> bool {
        let published = self.model.noise(front.gap_s).map_or(0.0, |noise| noise.0);
        let apart_s = front.gap_s.max(2.0 * front.tau_s);
        let noise = 2.0 * (published * apart_s / (2.0 * PERSISTENT_S)).sqrt();
        let beyond = |least: f64| clamp_finite(noise, least, REFUTED_MOST);
        if step > 0.0 {
            self.ebar < -beyond(REFUTED_OVER)
        } else {
            self.ebar > beyond(REFUTED_UNDER)
        }
    }

    /// Returns the work rate that the model has room for after a stop, when the newest sample holds
    /// nothing of ours.
    pub(super) fn restart_room(&mut self, front: &LagFilter) -> Option<f64> {
        self.model.only_background(front.z.min(front.x));
        self.model.room().map(f64::exp)
    }

    /// Returns the value `x` of time `at` without the memory of a past incident.
    pub(super) fn clean_of(&self, front: &LagFilter, at: f64, x: f64) -> f64 {
        if at < self.memory.1 {
            x
        } else {
            (x - self.remembered(front, at)).max(0.0)
        }
    }

    /// Records the load average's memory of an incident at a restart to `level`: the excess over
    /// `level` decays with the lag for minutes, so the controller leaves it out.
    pub(super) fn forget(
        &mut self,
        front: &LagFilter,
        law: &ControllerTuning,
        now: f64,
        history: &History,
        level: f64,
    ) {
        self.drop_memory();
        self.memory = (
            (self.predict(front, law, now, history) - level).max(0.0),
            now,
        );
    }

    /// Drops the memory of a past incident.
    pub(super) fn drop_memory(&mut self) {
        self.memory.0 = 0.0;
    }

    pub(super) fn scale(&mut self, factor: f64) {
        self.pid.integral += factor.ln();
        self.observer.scale(factor);
        self.model.scale(factor);
    }

    /// Changes the unit of loads: they become `factor` times larger.
    pub(super) fn rescale(&mut self, factor: f64) {
        self.observer.rescale(factor);
        self.model.rescale(factor);
        self.memory.0 *= factor;
        self.pid.previous = self.pid.previous.map(|y| y * factor);
        if let Some(sample) = &mut self.pending {
            sample.x *= factor;
            sample.before = sample.before.map(|x| x * factor);
        }
    }

    fn remembered(&self, front: &LagFilter, at: f64) -> f64 {
        let (memory, since) = self.memory;
        if memory <= 0.0 || front.lag_s <= 1.0 {
            0.0
        } else {
            memory * ((since - at) / front.lag_s).min(0.0).exp()
        }
    }

    /// Predicts the measurement, schedules the gain and returns the clipped measurement with its
    /// relative error.
    ///
    /// The gain is full for large or lasting errors, small for small ones, and larger if only a
    /// part of the load is ours.
    fn schedule(
        &mut self,
        front: &LagFilter,
        context: TickContext<'_>,
        applied: f64,
    ) -> (f64, f64) {
        let TickContext {
            policy,
            law,
            history,
            now,
        } = context;
        let xp = self.predict(front, law, now, history);
        let y = clamp_finite(xp, Y_MIN, Y_MAX);
        let e = 1.0 - y;
        let lag = front.lag_s.max(law.integral_min_s);
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
        kc *= clamp_finite(
            e.abs().max(PERSISTENT_WEIGHT * self.ebar.abs()) / KNEE,
            KNEE_MIN,
            1.0,
        );
        (self.xp, self.kc, self.ti_s) = (Some(xp), kc, lag);
        (y, e)
    }
}

/// Returns the next log work rate on the way from `applied` to `room`.
///
/// The model has already averaged the noise, so the way is short: twice the shortest integral time
/// upwards and half of that downwards, because overload costs more than lost room.
fn toward_room(applied: f64, room: f64, law: &ControllerTuning, dt: f64) -> f64 {
    let step = clamp_finite(room - applied, -MODEL_STEP_MAX, MODEL_STEP_MAX);
    let over_s =
        law.integral_min_s * MODEL_GAIN / law.gain * if step > 0.0 { MODEL_RISE } else { 1.0 };
    ewma::smooth(applied, applied + step, dt, over_s)
}

impl StatePart for PidController {
    fn shift(&mut self, by_s: f64) {
        self.memory.1 += by_s;
        if let Some(sample) = &mut self.pending {
            sample.at += by_s;
        }
    }

    fn is_sound(&self) -> bool {
        let own = [self.ebar, self.kc, self.ti_s, self.memory.0];
        let terms = [self.pid.integral, self.terms.p, self.terms.i, self.terms.d];
        let pending = self
            .pending
            .map(|sample| sample.x + sample.dt_s + sample.at);
        let maybe = [self.xp, self.pid.previous, pending].into_iter().flatten();
        all_finite(own.into_iter().chain(terms).chain(maybe))
            && self.observer.is_sound()
            && self.model.is_sound()
    }
}
