//! A governor's tick as the governors that share a signal with it see it.

use super::law::Phase;
use super::state::ControlState;
use super::watchdogs::sharing::SharedTick;

/// Returns the newest tick of `state`, made at `now`.
pub(super) fn tick(state: &ControlState, now: f64) -> SharedTick {
    let tripped_by = state.breaker.by.as_deref();
    let plan = state.plan.as_ref();
    let limited_by = plan.and_then(|plan| plan.limiting_signal(tripped_by));
    SharedTick {
        at: now,
        rps: state.knob,
        is_open: state.breaker.phase == Phase::Open,
        held_from: state.hold.map_or(0.0, |hold| hold.from),
        limited_by: limited_by.map(str::to_owned),
    }
}
