//! What bounds the rate, whatever the signals ask for.

use super::breaker::Phase;
use super::plan::{Observation, State};
use super::policy::{self, Kind, Policy};
use super::signal::Signal;
use crate::control::{slew, within};

/// The throttle counts as the bottleneck if somebody waited for it for more than this share of the time.
pub(super) const BOTTLENECK: f64 = 0.5;
/// An unused knob is at most what a model this many sigmas optimistic allows.
const IDLE_SIGMAS: f64 = 1.0;
/// The controllers do not wind below this share of the usual rate.
const FLOOR_SHARE: f64 = 0.03;

/// The knobs that bound a governor, in jobs per second; in slots, as [`super::actuator`] says them.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Bounds {
    /// The lowest rate that it may set.
    pub min: f64,
    /// The highest.
    pub max: f64,
    /// Where it goes while it is blind.
    pub safe_rps: f64,
}

impl Bounds {
    /// No rate is above this.
    pub const MOST: f64 = 1e9;
    /// No rate but 0 is below this.
    pub const LEAST: f64 = 1e-6;

    /// Bounds that can be computed with: positive, finite and in order.
    pub fn sound(self) -> Self {
        let max = if self.max > 0.0 { within(self.max, Self::LEAST, Self::MOST) } else { Self::MOST };
        let min = within(self.min, Self::LEAST, max);
        Self { min, max, safe_rps: within(self.safe_rps, 0.0, max) }
    }
}

/// A rate that a person set while the governor was at work.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Hold {
    /// Their rate, in jobs per second.
    pub rps: f64,
    /// When they set it.
    pub from: f64,
    /// Until when it is not exceeded.
    pub until: f64,
}

/// A bound that moved the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Clamp {
    /// It would have grown faster than is allowed.
    Slew,
    /// The throttle is not the bottleneck.
    Idle,
    /// The throttle is not the bottleneck, and stands at what this hour of the week has borne.
    Week,
    /// The restart is not confirmed yet.
    Confirm,
    /// It would have wound down without end.
    Floor,
    /// A sample that was due has not come: whoever may be blind does not go faster.
    Late,
    /// A signal is above its soft level.
    Soft,
    /// A person set a rate a short while ago.
    Person,
    /// The highest rate allowed.
    Max,
    /// The lowest rate allowed.
    Min,
}

impl Clamp {
    /// All of them.
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

    /// The word for it in [`super::plan::Plan::limiting`].
    pub fn word(self) -> &'static str {
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

impl State {
    /// Sets `u` to `asked` as far as the limits allow, and answers those that acted, in order.
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
        lower(&mut u, slew::rise(self.u, f64::INFINITY, policy.law.up_per_min, dt), Clamp::Slew);
        if !seen.limiting_share.is_some_and(|share| share > BOTTLENECK) {
            // The jobs do not use the knob: do not raise it, and keep it safe for the moment when they return.
            match self.week.start(policy, now) {
                Some(start) => lower(&mut u, start, Clamp::Week),
                None => lower(&mut u, self.u, Clamp::Idle),
            }
            for (signal, about) in self.signals.iter().zip(&policy.signals) {
                if let (Kind::Load, true, Some(room)) = (about.kind, policy.law.observer, signal.observer.room(IDLE_SIGMAS)) {
                    lower(&mut u, room.max(1e-12).ln(), Clamp::Idle);
                }
            }
        }
        if self
            .signals
            .iter()
            .any(|signal| signal.front.seen.is_some_and(|at| now - at > policy.law.late_gaps * signal.front.gap_s))
        {
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

    /// The first signal whose newest value is above its soft level.
    pub(super) fn above_soft<'a>(&self, policy: &'a Policy) -> Option<&'a policy::Signal> {
        let above =
            |signal: &Signal, about: &policy::Signal| signal.value.zip(about.soft).is_some_and(|(value, soft)| value > soft);
        self.signals.iter().zip(&policy.signals).find(|(signal, about)| above(signal, about)).map(|(_, about)| about)
    }

    /// The lowest log work rate: the knob `min`, or a person's rate below it while that is held.
    pub(super) fn lowest(&self, bounds: Bounds) -> f64 {
        let least = self.hold.map_or(bounds.min, |hold| hold.rps.min(bounds.min).max(Bounds::LEAST));
        (least * self.work.w).ln()
    }

    /// The knob, in its own unit, as things stand.
    pub(super) fn rate(&self, bounds: Bounds, now: f64) -> f64 {
        if self.stopped || self.breaker.phase == Phase::Open {
            return 0.0;
        }
        let held = self.hold.filter(|hold| now < hold.until).map_or(f64::INFINITY, |hold| hold.rps);
        let least = bounds.min.min(held).max(Bounds::LEAST);
        let most = bounds.max.min(held);
        self.actuator.rounded(within(self.u.exp() / self.work.w, least, most), self.knob, least, most)
    }

    /// Sets `u` to a rate in jobs per second: 0 is the lowest, anything negative the highest.
    pub(super) fn set_rate(&mut self, bounds: Bounds, rps: f64) {
        let rps = match rps {
            r if r > 0.0 => r.clamp(Bounds::LEAST, bounds.max),
            r if r < 0.0 => bounds.max,
            _ => bounds.min,
        };
        self.u = (rps * self.work.w).ln();
    }
}
