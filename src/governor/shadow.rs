//! Shadow mode: the governor decides in a simulation of its own.
//!
//! A controller whose rate is not applied sees no response to it, and would wind up or down without
//! end. So the shadow is a second governor, the same code, in the simulated outcome of its own
//! rate: its observed throughput is that of its own rate, and every sample is moved by the effect
//! of the rate difference on the load,
//!
//! ```text
//! x_own = x + c * (r_own - r_real)          both rates seen through the signal's own lag, at the time of the sample
//! ```
//!
//! with the cost `c` that the observer has learned from real samples, two sigmas high. Without a
//! learned cost the whole load counts as ours, as in the law; a refused share follows from the real
//! quota. No job is invented: if the real throttle did not limit, the shadow lets through at most
//! the jobs that arrived.
//!
//! The governor itself follows the real rate meanwhile, as in manual mode, so that the hand-over is
//! bumpless.

use super::bounds::Bounds;
use super::explain::cause::Cause;
use super::law::Phase;
use super::law::signals::highest_load;
use super::observation::{Observation, SignalSample};
use super::plan::Plan;
use super::policy::{Policy, SignalKind};
use super::score::{Score, ScoreStep};
use super::state::{ControlState, Shadow};
use crate::control::{History, LINEAR_MAX};
use crate::throttle::RateLimit;

/// The share of the time with waiters above which the throttle limits.
const LIMITS: f64 = 0.5;
/// The height of the assumed cost, in sigmas: a load not known to come from others counts as ours,
/// which keeps the shadow near the real rate until samples show the effect of another.
const DOUBT_SIGMAS: f64 = 2.0;
/// The share of a rate in use from which the rate counts as the limit.
const RATE_LIMITED_SHARE: f64 = 0.9;
/// The longest step that is counted, in usual ticks.
const TICKS_MAX: f64 = 4.0;

impl Shadow {
    /// Creates a shadow that begins at the state of `real`, with the rate really in force; an open
    /// breaker stays open in the simulation.
    fn begin(
        real: &ControlState,
        policy: &Policy,
        bounds: Bounds,
        seen: &Observation,
        limit: RateLimit,
    ) -> Self {
        let (bounds, mut own) = (bounds.sound(), real.clone());
        (own.shadow, own.plan, own.hold, own.stopped) = (None, None, None, false);
        if own.breaker.phase != Phase::Open {
            // The start rate is the throughput, because an unlimited knob is not a rate.
            let begins_at = match (limit, seen.achieved_rps) {
                (RateLimit::Unlimited, Some(achieved)) => RateLimit::new(achieved),
                _ => limit,
            };
            own.set_rate(bounds, begins_at);
            own.rebase(policy, own.at.unwrap_or(seen.now));
            own.knob = own.rate(bounds, seen.now);
        }
        Self {
            own,
            score: Score::begin(seen.now),
        }
    }

    /// Returns the observation that the shadow would have made instead of `seen`, and its own
    /// throughput, in jobs per second.
    fn imagine(
        &self,
        real: &ControlState,
        policy: &Policy,
        seen: &Observation,
        dt: f64,
    ) -> (Observation, Option<f64>) {
        let limited = seen.limiting_share.is_some_and(|share| share > LIMITS);
        let flow = seen.achieved_rps.map(|real| {
            if limited {
                self.own.knob
            } else {
                real.min(self.own.knob)
            }
        });
        let takes = seen
            .achieved_rps
            .is_some_and(|real| real >= RATE_LIMITED_SHARE * self.own.knob);
        let mut history = self.own.history.clone();
        if let Some(flow) = flow {
            history.push(seen.now, dt, flow * self.own.work.w);
        }
        let readings = seen
            .readings
            .iter()
            .map(|sample| self.moved(real, policy, &history, sample))
            .collect();
        let all = seen.completed + seen.rejected;
        let rejected = match (seen.achieved_rps, flow) {
            (Some(r), Some(own)) if all > 0.0 => all * refused(seen.rejected / all, r, own),
            _ => seen.rejected,
        };
        let seen = Observation {
            readings,
            achieved_rps: flow,
            limiting_share: if limited || takes {
                Some(1.0)
            } else {
                seen.limiting_share
            },
            completed: (all - rejected).max(0.0),
            rejected,
            // A person changes the real knob only.
            knob_rps: None,
            ..seen.clone()
        };
        (seen, flow)
    }

    /// Returns the sample that the shadow's own rate would have produced.
    fn moved(
        &self,
        real: &ControlState,
        policy: &Policy,
        own: &History,
        sample: &SignalSample,
    ) -> SignalSample {
        let found = policy
            .signals
            .iter()
            .zip(&real.signals)
            .find(|(about, _)| about.name == sample.signal);
        let (Some((about, signal)), Some(value)) =
            (found, sample.value.filter(|v| v.is_finite() && *v >= 0.0))
        else {
            return sample.clone();
        };
        let lag_s = signal.front.lag_s;
        let r_real = real.history.lagged(sample.at, lag_s) / real.work.w;
        let r_own = own.lagged(sample.at, lag_s) / self.own.work.w;
        let value = match about.kind {
            SignalKind::Ratio => refused(value, r_real, r_own),
            SignalKind::Load | SignalKind::Latency => {
                // Our part cannot exceed the whole.
                let whole = if r_real > 1e-9 { value / r_real } else { 0.0 };
                let model = signal.controller.pid().map(|pid| &pid.observer);
                // Far above the setpoint no cost is known: a model takes no more from such a sample
                // than that the load is too high.
                let is_known =
                    !about.has_model(&policy.law) || value <= LINEAR_MAX * about.setpoint;
                let learned = model
                    .filter(|_| about.kind == SignalKind::Load && is_known)
                    .and_then(|model| {
                        let doubt = DOUBT_SIGMAS * model.cc.max(0.0).sqrt();
                        Some((model.c? + doubt) * real.work.w * about.setpoint)
                    });
                let cost = match learned {
                    Some(cost) if r_real > 1e-9 => cost.min(whole),
                    Some(cost) => cost,
                    None => whole,
                };
                (value + cost * (r_own - r_real)).max(0.0)
            }
        };
        SignalSample {
            value: Some(value),
            ..sample.clone()
        }
    }
}

/// Returns the share refused at the rate `own`, given `share` at the rate `real`: everything beyond
/// the quota that these imply.
fn refused(share: f64, real: f64, own: f64) -> f64 {
    let quota = (1.0 - share.min(1.0)) * real;
    if share <= 0.0 || own <= 0.0 {
        0.0
    } else {
        (1.0 - quota / own).clamp(0.0, 1.0)
    }
}

/// Runs one tick of shadow mode with `limit` really in force: `state` follows it, and the plan is
/// the one that the governor would carry out.
pub fn tick(
    state: &mut ControlState,
    policy: &Policy,
    bounds: Bounds,
    seen: &Observation,
    limit: RateLimit,
) -> Plan {
    let since_s = state.at.map_or(policy.law.tick_s, |at| seen.now - at);
    let mut shadow = state
        .shadow
        .take()
        .unwrap_or_else(|| Box::new(Shadow::begin(state, policy, bounds, seen, limit)));
    let cause = Cause::followed("shadow mode");
    state.follow(policy, bounds, seen, limit, cause);

    let dt = since_s.clamp(0.0, TICKS_MAX * policy.law.tick_s);
    shadow.own.adopt_durations(&state.work, policy, seen.now);
    let (imagined, flow) = shadow.imagine(state, policy, seen, dt);
    let plan = shadow.own.tick(policy, bounds, &imagined);
    if dt > 0.0 {
        let real = ScoreStep {
            flow: seen.achieved_rps.unwrap_or(0.0),
            load: highest_load(&state.signals, policy, seen.now),
            rps: limit.number(),
        };
        let own = ScoreStep {
            flow: flow.unwrap_or(0.0),
            load: highest_load(&shadow.own.signals, policy, seen.now),
            rps: plan.rps,
        };
        shadow.score.add(dt, real, own);
    }
    if !shadow.score.is_sound() {
        shadow.score = Score::begin(seen.now);
    }
    state.plan = Some(plan.clone());
    state.shadow = Some(shadow);
    plan
}

/// Runs the fast path of shadow mode: a simulated trip.
pub fn fast(
    state: &mut ControlState,
    policy: &Policy,
    bounds: Bounds,
    now: f64,
    looks: &[SignalSample],
) -> Option<Plan> {
    let mut shadow = state.shadow.take()?;
    let looks: Vec<SignalSample> = looks
        .iter()
        .map(|look| shadow.moved(state, policy, &shadow.own.history, look))
        .collect();
    let plan = shadow
        .own
        .fast(policy, bounds, now, Some(shadow.own.knob), &looks);
    if let Some(plan) = &plan {
        state.plan = Some(plan.clone());
    }
    state.shadow = Some(shadow);
    plan
}

#[cfg(test)]
#[path = "shadow_tests.rs"]
mod tests;
