//! The fast path of one throttle: direct looks at its signals, and a trip of the breaker.

use super::authorship;
use super::calibration;
use super::counters::Counters;
use super::governed::{GovernedThrottle, ThrottleRuntime};
use super::reconciler::Reconciler;
use super::report::{ReconcileError, RoundReport};
use super::sources;
use crate::governor::actuator::{Actuator, BREAKERS_ZERO};
use crate::governor::decision::Decision;
use crate::governor::law::Phase;
use crate::governor::observation::SignalSample;
use crate::governor::plan::Plan;
use crate::governor::shadow;
use crate::governor::state::ControlState;
use crate::throttle::{Mode, Status};

/// Looks at every signal of the throttle that does not pass through Prometheus.
pub(super) async fn look(
    parts: &Reconciler,
    throttle: &GovernedThrottle,
    term: u64,
) -> Result<RoundReport, ReconcileError> {
    let Some(status) = parts.store.status(&throttle.name).await? else {
        return Ok(RoundReport::default());
    };
    parts.records.check_term(throttle, term, &status)?;
    if !is_watched(&status) {
        return Ok(RoundReport::default());
    }
    let (now, policy) = (status.at_us as f64 / 1e6, &throttle.policy);
    let (feedback, mut looks) = tokio::join!(
        parts
            .sources
            .worker_feedback(policy, throttle.name.as_str()),
        parts.sources.look(policy, &throttle.direct, now)
    );

    let mut runtime = throttle.runtime.lock().await;
    if runtime.term != Some(term) {
        return Ok(RoundReport::default());
    }
    // A slow page takes half a second, in which a tick or a person may have changed the knobs.
    let Some(status) = parts.store.status(&throttle.name).await? else {
        return Ok(RoundReport::default());
    };
    parts.records.check_term(throttle, term, &status)?;
    if !is_watched(&status) {
        return Ok(RoundReport::default());
    }
    let counters = Counters::of(&status);
    let flow = runtime
        .looked
        .and_then(|earlier| counters.since(&earlier))
        .map(|flow| flow.achieved_rps);
    runtime.looked = Some(counters);
    if let Some(feedback) = &feedback {
        runtime.meter.take_in(feedback, now);
        looks.extend(sources::fast_samples(
            policy,
            &runtime.meter,
            runtime.acted_at(),
        ));
    }
    let achieved = match throttle.actuator() {
        Actuator::Rps => flow,
        Actuator::Concurrency => runtime.meter.running(),
    };
    // Two looks at the same sample count once.
    looks.retain(|look| {
        runtime
            .looks
            .insert(look.signal.clone(), look.at)
            .is_none_or(|before| look.at > before)
    });
    let Some(mut state) = runtime.state.take() else {
        return Ok(RoundReport::default());
    };
    let plan = match status.knobs.mode {
        Mode::Shadow => {
            let bounds = throttle.bounds(&status);
            shadow::fast(&mut state, policy, bounds, now, &looks)
        }
        _ => judge(throttle, &status, &mut state, (now, achieved), &looks),
    };
    let tripped = usize::from(plan.is_some());
    if let Some(plan) = &plan {
        let reason = &plan.reason;
        tracing::warn!(throttle.name = %throttle.name, %reason, "the breaker tripped");
    }
    let outcome = match plan.or_else(|| unwritten_stop(throttle, &status, &state)) {
        None => Ok(RoundReport {
            alarmed: state.signals.iter().any(|signal| signal.alarms > 0),
            ..RoundReport::default()
        }),
        Some(plan) => stop(parts, throttle, &mut runtime, term, &status, &state, &plan)
            .await
            .map(|report| RoundReport { tripped, ..report }),
    };
    if outcome.as_ref().is_ok_and(|report| report.decided > 0) {
        throttle.show(&state, &status);
    }
    runtime.state = Some(state);
    outcome
}

/// Judges the samples, taken at `now` and with `achieved` jobs per second or slots in use, in mode
/// auto; returns the plan of a trip.
///
/// A knob that a person has written since the last tick is theirs first, as it is for a tick: their
/// stop and an unreadable text stay, and their rate is what a trip interrupts.
fn judge(
    throttle: &GovernedThrottle,
    status: &Status,
    state: &mut ControlState,
    (now, achieved): (f64, Option<f64>),
    looks: &[SignalSample],
) -> Option<Plan> {
    let (policy, bounds, actuator) = (
        &throttle.policy,
        throttle.bounds(status),
        throttle.actuator(),
    );
    if authorship::is_ours(status, actuator, state) {
        return state.fast(policy, bounds, now, achieved, looks);
    }
    let limit = actuator.setting(status);
    let is_unreadable = status
        .problems
        .iter()
        .any(|problem| problem.field == actuator.field());
    if limit.is_stopped() || is_unreadable {
        return None;
    }
    state.obey(policy, bounds.sound(), now, limit);
    let plan = state.fast(policy, bounds, now, achieved, looks)?;
    // The next tick finds the breaker's zero in place of what the person wrote.
    let raw = actuator.text(&status.raw);
    state
        .overrides
        .see(&status.knobs, actuator, raw, false, now);
    Some(plan)
}

/// Returns true in a mode in which the breaker may trip.
fn is_watched(status: &Status) -> bool {
    matches!(status.knobs.mode, Mode::Auto | Mode::Shadow) && !status.knobs.paused
}

/// Returns the plan of a stop that has not reached the knob, because the store failed or somebody
/// else wrote the knob at the same moment.
///
/// An open breaker does not trip again, so without this only the next tick would stop the work.
fn unwritten_stop(
    throttle: &GovernedThrottle,
    status: &Status,
    state: &ControlState,
) -> Option<Plan> {
    let actuator = throttle.actuator();
    let is_unwritten = status.knobs.mode == Mode::Auto
        && state.breaker.phase == Phase::Open
        && actuator.text(&status.raw) != Some(BREAKERS_ZERO)
        && !calibration::wrote(status)
        && authorship::is_ours(status, actuator, state);
    let plan = state.plan.as_ref().filter(|_| is_unwritten)?;
    (plan.breaker == Phase::Open).then(|| plan.clone())
}

/// Carries out a trip: the knob first, everything else after.
async fn stop(
    parts: &Reconciler,
    throttle: &GovernedThrottle,
    runtime: &mut ThrottleRuntime,
    term: u64,
    status: &Status,
    state: &ControlState,
    plan: &Plan,
) -> Result<RoundReport, ReconcileError> {
    let mode = status.knobs.mode;
    let written = if mode == Mode::Auto {
        let writer = parts.writer(throttle, term, status);
        writer.write(BREAKERS_ZERO, &plan.reason).await?
    } else {
        0
    };
    let now = status.at_us as f64 / 1e6;
    let before = throttle.actuator().setting(status);
    parts.records.save_state(throttle, term, state).await?;
    let decision = Decision::new(throttle.name.as_str(), now, plan, before, mode);
    parts.records.record(runtime, term, decision).await;
    Ok(RoundReport::decided(written))
}
