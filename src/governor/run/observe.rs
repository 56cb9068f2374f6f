//! The observation of one tick, from the status, the readings and the feedback.

use super::counters::{Counters, Flow};
use super::governed::ThrottleRuntime;
use super::sources;
use crate::governor::actuator::{self, Actuator, limited_by_slots};
use crate::governor::observation::{Observation, SignalSample};
use crate::governor::policy::Policy;
use crate::throttle::Status;

/// Collects the observation since the last tick; `has_feedback` is true if the workers' feedback
/// could be read.
pub(super) fn observe(
    policy: &Policy,
    runtime: &mut ThrottleRuntime,
    status: &Status,
    mut readings: Vec<SignalSample>,
    has_feedback: bool,
    waiting: Option<f64>,
) -> Observation {
    let counters = Counters::of(status);
    let flow = runtime
        .counters
        .and_then(|earlier| counters.since(&earlier));
    let span_s = runtime
        .meter
        .at()
        .map(|at| sources::span_s(policy, at, runtime.heard_to))
        .filter(|span_s| *span_s > 0.0);
    let step = span_s
        .and_then(|span_s| runtime.meter.over(span_s))
        .map(|span| span.work);
    readings.extend(sources::feedback_samples(
        policy,
        &runtime.meter,
        runtime.heard_to,
        runtime.acted_at(),
    ));
    let discounted =
        step.is_some_and(|step| step.untimed > 0.0 && 2.0 * step.untimed >= step.completed);
    let idle = has_feedback && span_s.is_some_and(|span_s| runtime.meter.is_idle(span_s));
    (runtime.counters, runtime.heard_to) = (Some(counters), runtime.meter.at());
    let (achieved, limiting) = match policy.law.actuator {
        Actuator::Rps => {
            let limit = status.knobs.rps.slower(status.knobs.capacity);
            // A wait for a window counts as a wait of the throttle, but no rate shortens it.
            let waited = if status.knobs.windows.is_empty() {
                flow
            } else {
                flow.map(Flow::without_waits)
            };
            (
                flow.map(|flow| flow.achieved_rps),
                waited.map(|flow| flow.limited_by(limit)),
            )
        }
        Actuator::Concurrency => {
            let slots = actuator::slots(status.knobs.concurrency);
            let in_use = runtime.meter.running().filter(|_| has_feedback);
            (
                in_use,
                in_use.map(|in_use| limited_by_slots(in_use, slots, waiting)),
            )
        }
    };
    Observation {
        now: status.at_us as f64 / 1e6,
        readings,
        achieved_rps: achieved,
        limiting_share: limiting,
        waiting,
        mean_duration_s: step.and_then(|step| step.mean_duration_s()),
        completed: step.map_or(0.0, |step| step.completed),
        rejected: step.map_or(0.0, |step| step.refused),
        idle,
        discounted,
        capacity_rps: (status.knobs.capacity.tokens())
            .filter(|_| policy.law.actuator == Actuator::Rps),
        ..Observation::default()
    }
}
