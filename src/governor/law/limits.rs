//! The bounds of the rate, applied to the rate that the signals ask for.

use super::breaker::{Breaker, Phase};
use super::part::{StatePart, all_finite};
use super::signal::Signal;
use super::week::Week;
use crate::control::slew;
use crate::governor::policy::{ControllerTuning, Policy, SignalKind, SignalPolicy};

/// The optimism, in sigmas, of the model that bounds an unused knob.
const IDLE_SIGMAS: f64 = 1.0;
/// The share of the usual rate below which the controllers do not wind down.
const FLOOR_SHARE: f64 = 0.03;

/// A manual rate, set while the governor was active.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Hold {
    /// The manual rate, in jobs per second or slots.
    pub rps: f64,
    /// The time at which it was set, in unix seconds.
    pub from: f64,
    /// The time until which it is not exceeded, in unix seconds.
    pub until: f64,
}

/// A bound that changed the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "snake_case")]
pub enum Clamp {
    /// The rate would have grown faster than allowed.
    Slew,
    /// The throttle is not the bottleneck.
    Idle,
    /// The throttle is not the bottleneck and is set to the rate that this hour of the week has
    /// sustained.
    Week,
    /// The restart is not confirmed yet.
    Confirm,
    /// The rate would have wound down without end.
    Floor,
    /// A due sample has not arrived: the rate is not raised without readings.
    Late,
    /// A signal is above its soft level.
    Soft,
    /// A person set a rate within the policy's `hold_s`.
    Person,
    /// The highest rate allowed.
    Max,
    /// The lowest rate allowed.
    Min,
}

impl Clamp {
    pub const ALL: [Self; 10] = [
        Self::Slew,
        Self::Soft,
        Self::Week,
        Self::Idle,
        Self::Confirm,
        Self::Floor,
        Self::Late,
        Self::Person,
        Self::Max,
        Self::Min,
    ];

    /// Returns its name in [`super::plan::Plan::limiting`].
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The limits of one tick.
pub(in crate::governor) struct LimitInput<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// The signals, in the order of the policy.
    pub signals: &'a [Signal],
    /// The breaker.
    pub breaker: &'a Breaker,
    /// The rates of the hours of the week.
    pub week: &'a Week,
    /// The time, in unix seconds.
    pub now: f64,
    /// The time since the last tick, in seconds.
    pub dt: f64,
    /// The log work rate in force.
    pub in_force: f64,
    /// The usual work rate; 0 while it is unknown.
    pub usual: f64,
    /// True if the jobs use the whole rate.
    pub is_used: bool,
    /// The lowest log work rate.
    pub lowest: f64,
    /// The log work rate that a person set, while it is not exceeded.
    pub held: Option<f64>,
    /// The log work rate of `max`.
    pub highest: f64,
}

impl LimitInput<'_> {
    /// Returns `wanted` within the limits, and the limits that acted, in order.
    pub fn limit(&self, wanted: f64) -> (f64, Vec<Clamp>) {
        let mut clamps = Vec::new();
        let mut u = wanted;
        let mut lower = |u: &mut f64, bound: f64, clamp: Clamp| {
            if *u > bound {
                *u = bound;
                clamps.push(clamp);
            }
        };
        let (law, now) = (&self.policy.law, self.now);
        let fastest = slew::rise(self.in_force, f64::INFINITY, law.up_per_min, self.dt);
        lower(&mut u, fastest, Clamp::Slew);
        if !self.is_used {
            // The jobs do not use the whole rate: do not raise it, and keep it safe for their
            // return.
            match self.week.start(self.policy, now) {
                Some(start) => lower(&mut u, start, Clamp::Week),
                None => lower(&mut u, self.in_force, Clamp::Idle),
            }
            for room in self.signals.iter().filter_map(|signal| self.room(signal)) {
                lower(&mut u, room.max(1e-12).ln(), Clamp::Idle);
            }
        }
        if late(self.signals, law, now).next().is_some() {
            lower(&mut u, self.in_force, Clamp::Late);
        }
        if above_soft(self.signals, self.policy).is_some() {
            lower(&mut u, self.in_force, Clamp::Soft);
        }
        if self.breaker.phase == Phase::HalfOpen {
            lower(&mut u, self.breaker.restart_u, Clamp::Confirm);
        }
        let floor = (FLOOR_SHARE * self.usual).ln().min(self.in_force);
        if self.usual > 0.0 && u < floor {
            u = floor;
            clamps.push(Clamp::Floor);
        }
        if u > self.highest {
            u = self.highest;
            clamps.push(Clamp::Max);
        }
        if let Some(held) = self.held
            && u > held
        {
            u = held;
            clamps.push(Clamp::Person);
        }
        if u < self.lowest {
            u = self.lowest;
            clamps.push(Clamp::Min);
        }
        (u, clamps)
    }

    /// Returns the work rate that the model of a load allows, if it has one.
    fn room(&self, signal: &Signal) -> Option<f64> {
        let about = self.policy.signal(&signal.name)?;
        if about.kind != SignalKind::Load || !self.policy.law.observer {
            return None;
        }
        signal.controller.pid()?.observer.room(IDLE_SIGMAS)
    }
}

/// Returns the signals whose next sample has not come although it was due.
pub(in crate::governor) fn late<'a>(
    signals: &'a [Signal],
    law: &ControllerTuning,
    now: f64,
) -> impl Iterator<Item = &'a Signal> {
    let gaps = law.late_gaps;
    let is_late = move |signal: &&Signal| {
        let seen = signal.front.seen;
        seen.is_some_and(|at| now - at > gaps * signal.front.gap_s)
    };
    signals.iter().filter(is_late)
}

/// Returns the first signal whose newest value is above its soft level.
pub(in crate::governor) fn above_soft<'a>(
    signals: &[Signal],
    policy: &'a Policy,
) -> Option<&'a SignalPolicy> {
    let above = |signal: &Signal, about: &SignalPolicy| {
        signal
            .value
            .zip(about.soft)
            .is_some_and(|(value, soft)| value > soft)
    };
    signals
        .iter()
        .zip(&policy.signals)
        .find(|(signal, about)| above(signal, about))
        .map(|(_, about)| about)
}

impl StatePart for Hold {
    fn shift(&mut self, by_s: f64) {
        self.from += by_s;
        self.until += by_s;
    }

    fn is_sound(&self) -> bool {
        all_finite([self.rps, self.from, self.until])
    }
}
