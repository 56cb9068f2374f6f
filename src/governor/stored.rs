//! Reading of stored states.

use serde_json::Value;

use super::law::signals;
use super::policy::Policy;
use super::state::{ControlState, FORM};

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
    let mut state: ControlState = serde_json::from_value(stored).ok()?;
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

fn be_patient(state: &mut ControlState, policy: &Policy, now: f64) {
    for (signal, about) in state.signals.iter_mut().zip(&policy.signals) {
        let hold_s = about.stale_s.unwrap_or(policy.law.stale_hold_s);
        signal.front.seen = signal.front.seen.map(|seen| seen.max(now - hold_s / 2.0));
    }
    state.began_at = now;
}

#[cfg(test)]
#[path = "stored_tests.rs"]
mod tests;
