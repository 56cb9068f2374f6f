//! The numbers behind a plan, by name.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::cause::Cause;
use crate::control::pid::Terms;
use crate::governor::actuator::Actuator;
use crate::governor::law::{Clamp, Phase, Verdict};
use crate::governor::policy::{Policy, SignalKind};
use crate::governor::snapshot::Snapshot;

/// Returns the numbers behind the plan for the current state.
pub(super) fn terms(
    state: &Snapshot<'_>,
    policy: &Policy,
    now: f64,
    cause: &Cause,
) -> BTreeMap<String, Value> {
    let mut terms = BTreeMap::new();
    if state.actuator != Actuator::Rps {
        terms.insert("actuator".to_owned(), json!(state.actuator));
    }
    let mut put = |name: &str, value: f64| {
        // Six digits suffice for people, and JSON has no NaN.
        let rounded = if value == 0.0 {
            0.0
        } else {
            format!("{value:.5e}").parse().unwrap_or(0.0)
        };
        terms.insert(name.to_owned(), json!(rounded));
    };
    let mut learned = Map::new();
    put("u", state.u);
    put("w", state.work.w);
    if let Cause::Signal { index, .. } = cause {
        let signal = &state.signals[*index];
        let pid = signal.controller.pid();
        let parts = pid.map_or_else(Terms::default, |pid| pid.terms);
        let model = pid.map(|pid| &pid.observer);
        let share = model
            .filter(|observer| observer.c.is_some())
            .map_or(1.0, |observer| observer.share(state.u.exp(), 0.0));
        let named = [
            ("p", parts.p),
            ("i", parts.i),
            ("d", parts.d),
            ("e", signal.e),
            ("x", signal.front.x),
        ];
        named.into_iter().for_each(|(name, value)| put(name, value));
        let named = [
            ("z", signal.front.z),
            ("integral", signal.controller.integral()),
            ("kc", pid.map_or(0.0, |pid| pid.kc)),
            ("share", share),
        ];
        named.into_iter().for_each(|(name, value)| put(name, value));
        if let Some(xp) = signal.predicted() {
            put("xp", xp);
        }
        if let Some(at) = signal.front.at {
            put("age_s", now - at);
        }
        if let Some(observer) = model.filter(|_| policy.signals[*index].kind == SignalKind::Load)
            && let Some(c) = observer.c
        {
            put("background", observer.b);
            put("cost", c * state.work.w);
            let room = pid.and_then(|pid| pid.model.room());
            if let Some(room) = room.filter(|_| policy.signals[*index].has_model(&policy.law)) {
                put("room", room.exp() / state.work.w);
                put("lag_s", signal.front.tau_s);
            }
        }
        if let Some(quota) = signal.controller.quota().and_then(|quota| quota.quota) {
            put("quota_rps", quota / state.work.w);
        }
    }
    for signal in state.signals {
        let quota = signal.controller.quota();
        if let Some(quota) = quota.and_then(|quota| quota.learned_quota(state.work.w)) {
            learned.insert(signal.name.clone(), json!(quota));
        }
    }
    if state.breaker.phase != Phase::Closed {
        put("trip_height", state.breaker.height);
        put("trip_rps", state.breaker.v_trip / state.work.w);
        put("trips", f64::from(state.breaker.trips));
        put("phase_s", now - state.breaker.since);
    }
    let evidence = &state.work.evidence;
    let is_judged = policy.checks_durations() && evidence.verdict != Verdict::Unknown;
    if is_judged {
        put("durations_score", evidence.score);
    }
    if let Some(hold) = state.hold {
        put("held_s", hold.until - now);
    }
    if let Cause::Signal { index, clamps } = cause {
        if clamps.contains(&Clamp::Week)
            && let Some(start) = state.week.start(policy, now)
        {
            put("week_rps", start.exp() / state.work.w);
        }
        terms.insert("signal".to_owned(), json!(state.signals[*index].name));
        terms.insert("clamps".to_owned(), json!(clamps));
    }
    if is_judged {
        terms.insert("durations".to_owned(), json!(evidence.verdict.as_str()));
    }
    if !learned.is_empty() {
        terms.insert("learned_quota".to_owned(), Value::Object(learned));
    }
    terms
}
