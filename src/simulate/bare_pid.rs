//! The crate `pid` by itself, a common first solution.

use std::collections::BTreeMap;

use super::controller::{Controller, Newest};
use crate::governor::policy::Policy;
use crate::governor::{Bounds, Observation};

/// The crate `pid` as its own documentation uses it, one per signal, with the lowest output
/// applied: a linear PI from the relative error to the rate, around the rate that it was started
/// with, each term and the output limited to the range of the knob.
///
/// Tuned once, by Skogestad's rules, for the plant with which most scenarios begin: 0.01
/// core-seconds a job at a setpoint of 2, a lag of 60 s and 35 s of delay: Kc = 60 / (0.005 * (35 +
/// 35)) and Ti = 60 s; no derivative, which would only amplify the noise. (S. Skogestad, "Simple
/// analytic rules for model reduction and PID controller tuning", J. Process Control 13, 2003.)
pub(super) struct BarePid {
    values: Newest,
    pids: BTreeMap<String, pid::Pid<f64>>,
    bounds: Bounds,
    bias: f64,
    rps: f64,
}

impl BarePid {
    const KC: f64 = 60.0 / (0.005 * 70.0);
    const TI_S: f64 = 60.0;

    pub(super) fn new(policy: &Policy, bounds: Bounds, rps: f64) -> Self {
        let tick_s = policy.law.tick_s;
        let most = bounds.max;
        let pids = policy.signals.iter().map(|signal| {
            let mut pid = pid::Pid::new(1.0, most);
            pid.p(Self::KC, most)
                .i(Self::KC * tick_s / Self::TI_S, most);
            (signal.name.clone(), pid)
        });
        Self {
            values: Newest::new(policy),
            pids: pids.collect(),
            bounds,
            bias: rps,
            rps,
        }
    }
}

impl Controller for BarePid {
    fn tick(&mut self, seen: &Observation) -> f64 {
        self.values.learn(seen);
        let outputs = self
            .values
            .each()
            .filter_map(|(name, x)| Some(self.pids.get_mut(name)?.next_control_output(x).output));
        if let Some(output) = outputs.reduce(f64::min) {
            self.rps = (self.bias + output).clamp(self.bounds.min, self.bounds.max);
        }
        self.rps
    }
}
