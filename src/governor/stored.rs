//! Reading of stored states, those of earlier forms too.

use serde_json::Value;

use super::bounds::Bounds;
use super::law::{Phase, signals};
use super::policy::{Policy, SignalKind};
use super::state::{ControlState, FORM};
use crate::throttle::RateLimit;

/// Resumes a stored state at `now`, with signals silent for at most half of the holding time;
/// `None` if its form is unknown or it cannot be used.
pub fn resume(stored: Value, policy: &Policy, now: f64) -> Option<ControlState> {
    let mut state = read(stored, policy)?;
    be_patient(&mut state, policy, now);
    if let Some(shadow) = &mut state.shadow {
        be_patient(&mut shadow.own, policy, now);
    }
    Some(state)
}

/// Reads a stored state for inspection; `None` if its form is unknown or it cannot be used.
pub fn read(stored: Value, policy: &Policy) -> Option<ControlState> {
    let mut state: ControlState = serde_json::from_value(upgraded(stored, policy)).ok()?;
    if state.form != FORM
        || state.actuator != policy.law.actuator
        || !state.u.is_finite()
        || !state.work.is_sound()
    {
        return None;
    }
    signals::adopt(&mut state.signals, policy, state.u);
    Some(state)
}

/// Opens the breaker of a stored state that is older than the trip whose stop is in the knob: the
/// leader that wrote the stop ended before it could save it.
///
/// The governor would otherwise go on at the rate that tripped, and nobody would hear of the trip.
pub(super) fn reopen(state: &mut ControlState, policy: &Policy, bounds: Bounds, now: f64) {
    if !policy.law.breaker || state.breaker.phase == Phase::Open {
        return;
    }
    let (v, retrip_s) = (state.u.exp(), policy.law.retrip_s);
    state.breaker.reopen(&mut state.signals, retrip_s, now, v);
    state.set_rate(bounds.sound(), RateLimit::Stopped);
    state.rebase(policy, now);
}

fn be_patient(state: &mut ControlState, policy: &Policy, now: f64) {
    for (signal, about) in state.signals.iter_mut().zip(&policy.signals) {
        let hold_s = about.stale_s.unwrap_or(policy.law.stale_hold_s);
        signal.front.seen = signal.front.seen.map(|seen| seen.max(now - hold_s / 2.0));
    }
    state.began_at = now;
}

/// Brings a stored state to the present form; one of an unknown form is returned as it is.
///
/// In form 1 a signal held the numbers of both control laws side by side.
fn upgraded(mut stored: Value, policy: &Policy) -> Value {
    if stored["form"] == 1 {
        upgrade_from_1(&mut stored, policy);
        if let Some(shadow) = stored.pointer_mut("/shadow/own") {
            upgrade_from_1(shadow, policy);
        }
    }
    stored
}

fn upgrade_from_1(state: &mut Value, policy: &Policy) {
    let Some(fields) = state.as_object_mut() else {
        return;
    };
    fields.insert("form".to_owned(), FORM.into());
    for (old, new) in [("tripped", "last_trip"), ("watch", "overrides")] {
        if let Some(value) = fields.remove(old) {
            fields.insert(new.to_owned(), value);
        }
    }
    if let Some(watch) = fields.get_mut("overrides").and_then(Value::as_object_mut)
        && let Some(last) = watch.remove("hand")
    {
        watch.insert("last".to_owned(), last);
    }
    let signals = fields.get_mut("signals").and_then(Value::as_array_mut);
    for signal in signals.into_iter().flatten() {
        let kind = signal["name"]
            .as_str()
            .and_then(|name| Some(policy.signal(name)?.kind));
        let mut controller = signal.clone();
        let law = if kind == Some(SignalKind::Ratio) {
            controller["integral"] = signal["pid"]["integral"].clone();
            controller["last_refused_at"] = signal["last_bad"].clone();
            "quota"
        } else {
            "pid"
        };
        signal["controller"] = serde_json::json!({ law: controller });
    }
}

#[cfg(test)]
#[path = "stored_tests.rs"]
mod tests;
