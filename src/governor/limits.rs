//! The bounds of the rate, applied to the rate that the signals ask for.

use super::breaker::Phase;
use super::plan::{ControlState, Observation};
use super::policy::{self, Policy, SignalKind};
use super::signal::Signal;
use crate::control::{clamp_finite, slew};

/// The share of the time with waiters above which the throttle counts as the bottleneck.
pub(super) const BOTTLENECK: f64 = 0.5;
/// The optimism, in sigmas, of the model that bounds an unused knob.
const IDLE_SIGMAS: f64 = 1.0;
/// The share of the usual rate below which the controllers do not wind down.
const FLOOR_SHARE: f64 = 0.03;

/// The knobs that bound a governor, in jobs per second or slots (see [`super::actuator`]).
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Bounds {
    /// The lowest rate that the governor may set.
    pub min: f64,
    /// The highest rate that the governor may set.
    pub max: f64,
    /// The rate to which it falls while signals are stale.
    pub safe_rps: f64,
}

impl Bounds {
    /// The highest rate ever set.
    pub const MAX_RATE: f64 = 1e9;
    /// The lowest rate ever set, except 0.
    pub const MIN_RATE: f64 = 1e-6;

    /// Returns valid bounds: positive, finite and in order.
    pub fn sound(self) -> Self {
        let max = if self.max > 0.0 {
            clamp_finite(self.max, Self::MIN_RATE, Self::MAX_RATE)
        } else {
            Self::MAX_RATE
        };
        let min = clamp_finite(self.min, Self::MIN_RATE, max);
        Self {
            min,
            max,
            safe_rps: clamp_finite(self.safe_rps, 0.0, max),
        }
    }
}

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
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
        match self {
            Self::Slew => "slew",
            Self::Late => "late",
            Self::Soft => "soft",
            Self::Idle => "idle",
            Self::Week => "week",
            Self::Confirm => "confirm",
            Self::Floor => "floor",
            Self::Person => "person",
            Self::Max => "max",
            Self::Min => "min",
        }
    }
}

impl ControlState {
    /// Sets `u` to `asked` within the limits, and returns the limits that acted, in order.
    pub(super) fn limit(
        &mut self,
        policy: &Policy,
        bounds: Bounds,
        seen: &Observation,
        now: f64,
        dt: f64,
        asked: f64,
    ) -> Vec<Clamp> {
        let mut clamps = Vec::new();
        let mut u = asked;
        let mut lower = |u: &mut f64, bound: f64, clamp: Clamp| {
            if *u > bound {
                *u = bound;
                clamps.push(clamp);
            }
        };
        lower(
            &mut u,
            slew::rise(self.u, f64::INFINITY, policy.law.up_per_min, dt),
            Clamp::Slew,
        );
        if !seen.limiting_share.is_some_and(|share| share > BOTTLENECK) {
            // The jobs do not use the whole rate: do not raise it, and keep it safe for their
            // return.
            match self.week.start(policy, now) {
                Some(start) => lower(&mut u, start, Clamp::Week),
                None => lower(&mut u, self.u, Clamp::Idle),
            }
            for (signal, about) in self.signals.iter().zip(&policy.signals) {
                if let (SignalKind::Load, true, Some(room)) = (
                    about.kind,
                    policy.law.observer,
                    signal.observer.room(IDLE_SIGMAS),
                ) {
                    lower(&mut u, room.max(1e-12).ln(), Clamp::Idle);
                }
            }
        }
        if self.signals.iter().any(|signal| {
            signal
                .front
                .seen
                .is_some_and(|at| now - at > policy.law.late_gaps * signal.front.gap_s)
        }) {
            lower(&mut u, self.u, Clamp::Late);
        }
        if self.above_soft(policy).is_some() {
            lower(&mut u, self.u, Clamp::Soft);
        }
        if self.breaker.phase == Phase::HalfOpen {
            lower(&mut u, self.breaker.restart_u, Clamp::Confirm);
        }
        let floor = (FLOOR_SHARE * self.usual).ln().min(self.u);
        if self.usual > 0.0 && u < floor {
            u = floor;
            clamps.push(Clamp::Floor);
        }
        self.hold = self.hold.filter(|hold| now < hold.until);
        let (lowest, highest) = (self.lowest(bounds), (bounds.max * self.work.w).ln());
        if u > highest {
            u = highest;
            clamps.push(Clamp::Max);
        }
        if let Some(hold) = self.hold
            && u > (hold.rps * self.work.w).ln()
        {
            u = (hold.rps * self.work.w).ln();
            clamps.push(Clamp::Person);
        }
        if u < lowest {
            u = lowest;
            clamps.push(Clamp::Min);
        }
        self.u = u;
        clamps
    }

    /// Returns the first signal whose newest value is above its soft level.
    pub(super) fn above_soft<'a>(&self, policy: &'a Policy) -> Option<&'a policy::SignalPolicy> {
        let above = |signal: &Signal, about: &policy::SignalPolicy| {
            signal
                .value
                .zip(about.soft)
                .is_some_and(|(value, soft)| value > soft)
        };
        self.signals
            .iter()
            .zip(&policy.signals)
            .find(|(signal, about)| above(signal, about))
            .map(|(_, about)| about)
    }

    /// Returns the lowest log work rate: the knob `min`, or a lower manual rate while that is held.
    pub(super) fn lowest(&self, bounds: Bounds) -> f64 {
        let least = self.hold.map_or(bounds.min, |hold| {
            hold.rps.min(bounds.min).max(Bounds::MIN_RATE)
        });
        (least * self.work.w).ln()
    }

    /// Returns the knob for the current state, in its own unit.
    pub(super) fn rate(&self, bounds: Bounds, now: f64) -> f64 {
        if self.stopped || self.breaker.phase == Phase::Open {
            return 0.0;
        }
        let held = self
            .hold
            .filter(|hold| now < hold.until)
            .map_or(f64::INFINITY, |hold| hold.rps);
        let least = bounds.min.min(held).max(Bounds::MIN_RATE);
        let most = bounds.max.min(held);
        self.actuator.rounded(
            clamp_finite(self.u.exp() / self.work.w, least, most),
            self.knob,
            least,
            most,
        )
    }

    /// Sets `u` to a rate in jobs per second or slots: 0 is the lowest, a negative rate the
    /// highest.
    pub(super) fn set_rate(&mut self, bounds: Bounds, rps: f64) {
        let rps = match rps {
            r if r > 0.0 => r.clamp(Bounds::MIN_RATE, bounds.max),
            r if r < 0.0 => bounds.max,
            _ => bounds.min,
        };
        self.u = (rps * self.work.w).ln();
    }
}
