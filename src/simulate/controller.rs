//! Controllers of the knob: the governor itself, and common alternatives.

use crate::governor::RateLimit;
use std::collections::{BTreeMap, VecDeque};

use crate::governor::policy::{FeedbackKind, Policy, SignalKind};
use crate::governor::{Bounds, ControlState, Observation, Plan, SignalSample};

/// A controller of a rate.
pub trait Controller {
    /// Returns the rate to set; called once per tick.
    fn tick(&mut self, seen: &Observation) -> f64;

    /// Looks directly at the load, once per second; `Some` stops or changes the rate at once.
    fn look(&mut self, _now: f64, _achieved_rps: f64, _looks: &[SignalSample]) -> Option<f64> {
        None
    }

    /// Tells a controller that knows the plant the greatest possible rate; called once per second.
    fn learn_possible(&mut self, _rps: f64) {}

    /// Lets another process take over at `now` from the stored state, with `rps` in force.
    fn take_over(&mut self, _now: f64, _rps: f64) {}

    /// Returns the newest plan, if there is more to it than a rate.
    fn plan(&self) -> Option<&Plan> {
        None
    }

    /// Returns the law's inner state, for drawing.
    fn state(&self) -> Option<&ControlState> {
        None
    }
}

/// The real governor.
pub(super) struct Governed {
    pub(super) state: ControlState,
    pub(super) policy: Policy,
    pub(super) bounds: Bounds,
    pub(super) plan: Option<Plan>,
}

impl Controller for Governed {
    fn tick(&mut self, seen: &Observation) -> f64 {
        let plan = self.state.tick(&self.policy, self.bounds, seen);
        let rps = plan.rps;
        self.plan = Some(plan);
        rps
    }

    fn look(&mut self, now: f64, achieved_rps: f64, looks: &[SignalSample]) -> Option<f64> {
        let plan = self
            .state
            .fast(&self.policy, self.bounds, now, Some(achieved_rps), looks)?;
        let rps = plan.rps;
        self.plan = Some(plan);
        Some(rps)
    }

    fn take_over(&mut self, now: f64, rps: f64) {
        // A successor reads the stored state and goes on from the rate that is really in force.
        let stored = serde_json::to_value(&self.state).unwrap_or_default();
        self.state =
            crate::governor::stored::resume(stored, &self.policy, now).unwrap_or_else(|| {
                ControlState::new(&self.policy, self.bounds, RateLimit::new(rps), now)
            });
        self.state
            .restart_from(&self.policy, self.bounds, RateLimit::new(rps), now);
    }

    fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    fn state(&self) -> Option<&ControlState> {
        Some(&self.state)
    }
}

/// The newest value of every signal, as a multiple of its setpoint.
pub(super) struct Newest {
    setpoints: BTreeMap<String, (SignalKind, f64)>,
    /// The signal of the jobs' own duration, with its scale.
    latency: Option<(String, f64)>,
    values: BTreeMap<String, (f64, f64)>,
}

impl Newest {
    pub(super) fn new(policy: &Policy) -> Self {
        let setpoints = policy
            .signals
            .iter()
            .map(|signal| (signal.name.clone(), (signal.kind, signal.setpoint)))
            .collect();
        let latency = policy
            .signals
            .iter()
            .find(|signal| signal.feedback == Some(FeedbackKind::Latency));
        Self {
            setpoints,
            latency: latency.map(|signal| (signal.name.clone(), signal.scale)),
            values: BTreeMap::new(),
        }
    }

    /// Records new values; returns true if there were any.
    pub(super) fn learn(&mut self, seen: &Observation) -> bool {
        let before = self.values.clone();
        for sample in &seen.readings {
            if let (Some(value), Some((_, setpoint))) =
                (sample.value, self.setpoints.get(&sample.signal))
            {
                self.values
                    .insert(sample.signal.clone(), (sample.at, value / setpoint));
            }
        }
        let ratio = self
            .setpoints
            .iter()
            .find(|(_, (kind, _))| *kind == SignalKind::Ratio);
        if let Some((name, (_, setpoint))) = ratio
            && seen.completed + seen.rejected > 0.0
        {
            // A refused share is 0 or far above its setpoint: beyond twice the setpoint it carries
            // no more information.
            let share = seen.rejected / (seen.completed + seen.rejected);
            self.values
                .insert(name.clone(), (seen.now, (share / setpoint).min(2.0)));
        }
        let slow = self
            .latency
            .iter()
            .find_map(|(name, scale)| Some((name, scale * seen.mean_duration_s?)));
        if let Some((name, value)) = slow
            && let Some((_, setpoint)) = self.setpoints.get(name)
        {
            self.values
                .insert(name.clone(), (seen.now, value / setpoint));
        }
        self.values != before
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (&String, f64)> {
        self.values.iter().map(|(name, (_, x))| (name, *x))
    }
}

/// Additive increase by a fiftieth of the first rate per reading below the setpoint, multiplicative
/// decrease by a fifth per reading above it.
pub(super) struct Aimd {
    pub(super) values: Newest,
    pub(super) bounds: Bounds,
    pub(super) rps: f64,
    pub(super) step: f64,
}

impl Controller for Aimd {
    fn tick(&mut self, seen: &Observation) -> f64 {
        if self.values.learn(seen) {
            let over = self.values.each().any(|(_, x)| x > 1.0);
            let rps = if over {
                0.8 * self.rps
            } else {
                self.rps + self.step
            };
            self.rps = rps.clamp(self.bounds.min, self.bounds.max);
        }
        self.rps
    }
}

/// No controller.
pub(super) struct Fixed(pub(super) f64);

impl Controller for Fixed {
    fn tick(&mut self, _seen: &Observation) -> f64 {
        self.0
    }
}

/// Knows the greatest possible rate exactly, but [`ORACLE_DELAY_S`] late: about the age of a sample
/// from Prometheus. Nothing that only measures can do much better.
pub(super) struct Oracle {
    pub(super) possible: VecDeque<f64>,
    pub(super) rps: f64,
}

/// Delay of the oracle's knowledge, in seconds.
const ORACLE_DELAY_S: usize = 35;

impl Controller for Oracle {
    fn tick(&mut self, _seen: &Observation) -> f64 {
        if self.possible.len() > ORACLE_DELAY_S {
            self.rps = self.possible[0];
        }
        self.rps
    }

    fn learn_possible(&mut self, rps: f64) {
        self.possible.push_back(rps);
        if self.possible.len() > ORACLE_DELAY_S + 1 {
            self.possible.pop_front();
        }
    }
}
