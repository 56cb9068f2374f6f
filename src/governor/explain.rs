//! Explanations: one plain sentence and the numbers behind it, for every plan.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::actuator::Actuator;
use super::breaker::Phase;
use super::limits::Clamp;
use super::manual_override::ManualOverride;
use super::plan::{ControlState, Plan};
use super::policy::{Policy, SignalKind};
use super::view::QuotaView;

/// The cause of a decision.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cause {
    /// No signal has had a sample yet.
    NoReading,
    /// A person wrote 0.
    StoppedByHand,
    /// The governor leaves the knob alone and follows it.
    Followed {
        /// The reason, for the sentence.
        why: String,
    },
    /// The manual mode has ended; the governor continues from the rate in force.
    HandedBack {
        /// The reason, for the sentence.
        why: String,
    },
    /// Signals without a new sample for too long.
    Stale { names: Vec<String> },
    /// The breaker is open.
    Open,
    /// A signal asked for the lowest rate, and these bounds limited it.
    Signal {
        /// The index of the signal in the policy.
        index: usize,
        /// The bounds that acted, in order.
        clamps: Vec<Clamp>,
    },
}

/// Returns the plan for the current state; `before` is the rate in force until now.
pub(super) fn plan(
    state: &ControlState,
    policy: &Policy,
    now: f64,
    before: f64,
    cause: &Cause,
) -> Plan {
    Plan {
        rps: state.knob,
        breaker: state.breaker.phase,
        limiting: limiting(state, cause),
        reason: reason(state, policy, now, before, cause),
        terms: terms(state, policy, now, cause),
    }
}

fn limiting(state: &ControlState, cause: &Cause) -> String {
    match cause {
        Cause::NoReading => "start".to_owned(),
        Cause::StoppedByHand | Cause::Followed { .. } | Cause::HandedBack { .. } => {
            "person".to_owned()
        }
        Cause::Stale { .. } => "stale".to_owned(),
        Cause::Open => "breaker".to_owned(),
        Cause::Signal { index, clamps } => clamps.last().map_or_else(
            || state.signals[*index].name.clone(),
            |clamp| clamp.as_str().to_owned(),
        ),
    }
}

fn reason(state: &ControlState, policy: &Policy, now: f64, before: f64, cause: &Cause) -> String {
    let unit = state.actuator.unit();
    let rate = number(state.knob);
    match cause {
        Cause::NoReading => format!("no signal has been read yet; holding {rate} {unit}"),
        Cause::StoppedByHand => {
            let (field, what) = (
                state.actuator.field(),
                if state.actuator == Actuator::Rps {
                    "a rate"
                } else {
                    "a number"
                },
            );
            format!("stopped manually ({field} 0); it resumes when someone sets {what}")
        }
        Cause::Followed { why } => format!("{why}; the governor only tracks it"),
        Cause::HandedBack { why } => {
            format!(
                "{why}, continuing from {}",
                if state.knob < 0.0 {
                    "no limit".to_owned()
                } else {
                    format!("{rate} {unit}")
                }
            )
        }
        Cause::Stale { names } => {
            let blind_s = names
                .iter()
                .filter_map(|n| state.signals.iter().find(|s| s.name == *n))
                .filter_map(|s| s.front.seen);
            let blind_s = blind_s.fold(None, |least: Option<f64>, seen| {
                Some(least.map_or(seen, |l| l.min(seen)))
            });
            let how_long = blind_s.map_or_else(
                || "at all".to_owned(),
                |seen| format!("for {}", seconds(now - seen)),
            );
            let does = if state.breaker.phase == Phase::Open {
                "staying stopped".to_owned()
            } else if state.knob < before * (1.0 - 1e-6) {
                format!(
                    "lowering {} to {rate} {unit}, towards {}",
                    number(before),
                    state.actuator.refuge()
                )
            } else {
                format!("holding {rate} {unit} until it can be read again")
            };
            format!("no new reading of {} {how_long}; {does}", names.join(", "))
        }
        Cause::Open => {
            let breaker = &state.breaker;
            let by = breaker.by.as_deref().unwrap_or("a load");
            let again = if breaker.trips > 0 {
                format!(", {} times in a row", breaker.trips + 1)
            } else {
                String::new()
            };
            if now - breaker.since < 1e-6 {
                format!(
                    "{by} rose to {} x its setpoint{again}: stopped",
                    number(breaker.height)
                )
            } else {
                let ago = seconds(now - breaker.since);
                format!(
                    "{by} rose to {} x its setpoint {ago} ago{again}; it restarts when the load is \
                     gone",
                    number(breaker.height)
                )
            }
        }
        Cause::Signal { index, clamps } => {
            let (signal, about) = (&state.signals[*index], &policy.signals[*index]);
            let age = signal.front.at.map_or(0.0, |at| (now - at).max(0.0));
            let follows = state
                .links
                .get(&about.name)
                .map_or_else(String::new, |link| format!(", following {}", link.throttle));
            let reads = format!(
                "{} reads {}, setpoint {} ({} old)",
                about.name,
                number(signal.value.unwrap_or(0.0)),
                number(about.setpoint),
                seconds(age)
            );
            let reads = match signal.discounted {
                true => format!("{reads}; later job durations do not indicate load"),
                false => reads,
            };
            format!(
                "{reads}: {}{follows}{}",
                motion(before, state.knob, unit),
                clamps
                    .last()
                    .map_or_else(String::new, |c| bound(state, policy, now, *c))
            )
        }
    }
}

/// Returns the change of the rate, as a verb phrase.
fn motion(before: f64, after: f64, unit: &str) -> String {
    if before <= 0.0 {
        format!("restarting at {} {unit}", number(after))
    } else if after > before * 1.005 {
        format!("raising {} to {} {unit}", number(before), number(after))
    } else if after < before * 0.995 {
        format!("lowering {} to {} {unit}", number(before), number(after))
    } else {
        format!("holding {} {unit}", number(after))
    }
}

fn bound(state: &ControlState, policy: &Policy, now: f64, clamp: Clamp) -> String {
    let (unit, waited_for) = (state.actuator.unit(), state.actuator.waited_for());
    match clamp {
        Clamp::Slew => ", at the fastest allowed rise".to_owned(),
        Clamp::Idle => format!("; not raised, because no job waits for {waited_for}"),
        Clamp::Week => format!(
            "; no job waits for {waited_for}, so it stays ready at the usual rate of this hour of \
             the week"
        ),
        Clamp::Confirm => "; not raised until a sample confirms the restart".to_owned(),
        Clamp::Late => "; not raised, because the next reading is late".to_owned(),
        Clamp::Soft => state.above_soft(policy).map_or_else(
            || "; not raised while a signal is above its soft level".to_owned(),
            |about| {
                format!(
                    "; not raised while {} is above its soft level {}",
                    about.name,
                    number(about.soft.unwrap_or_default())
                )
            },
        ),
        Clamp::Floor => ", the floor below the usual rate".to_owned(),
        Clamp::Person => state.hold.map_or_else(String::new, |hold| {
            let (set, left) = (seconds(now - hold.from), seconds(hold.until - now));
            let who = state
                .watch
                .hand
                .as_ref()
                .map_or_else(|| "a person".to_owned(), ManualOverride::who_and_why);
            format!(
                "; {who} set {} {unit} {set} ago, so it is not raised for another {left}",
                number(hold.rps)
            )
        }),
        Clamp::Max => ", the highest rate allowed (max or capacity)".to_owned(),
        Clamp::Min => ", the lowest rate allowed (min)".to_owned(),
    }
}

fn terms(
    state: &ControlState,
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
        let share = if signal.observer.c.is_some() {
            signal.observer.share(state.u.exp(), 0.0)
        } else {
            1.0
        };
        let named = [
            ("p", signal.terms.p),
            ("i", signal.terms.i),
            ("d", signal.terms.d),
            ("e", signal.e),
            ("x", signal.front.x),
        ];
        named.into_iter().for_each(|(name, value)| put(name, value));
        let named = [
            ("z", signal.front.z),
            ("integral", signal.pid.integral),
            ("kc", signal.kc),
            ("share", share),
        ];
        named.into_iter().for_each(|(name, value)| put(name, value));
        if let Some(xp) = signal.xp {
            put("xp", xp);
        }
        if let Some(at) = signal.front.at {
            put("age_s", now - at);
        }
        if let Some(c) = signal
            .observer
            .c
            .filter(|_| policy.signals[*index].kind == SignalKind::Load)
        {
            put("background", signal.observer.b);
            put("cost", c * state.work.w);
        }
        if let Some(quota) = signal.quota {
            put("quota_rps", quota / state.work.w);
        }
    }
    for signal in &state.signals {
        if let Some(quota) = QuotaView::of(signal, state.work.w) {
            learned.insert(signal.name.clone(), json!(quota));
        }
    }
    if state.breaker.phase != Phase::Closed {
        put("trip_height", state.breaker.height);
        put("trip_rps", state.breaker.v_trip / state.work.w);
        put("trips", f64::from(state.breaker.trips));
        put("phase_s", now - state.breaker.since);
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
    if !learned.is_empty() {
        terms.insert("learned_quota".to_owned(), Value::Object(learned));
    }
    terms
}

/// Formats a value for people: three digits, no trailing zeros.
pub fn number(value: f64) -> String {
    let text = match value.abs() {
        a if a == 0.0 || (99.95..1e9).contains(&a) => return format!("{value:.0}"),
        a if a >= 1e9 => return format!("{value:.2e}"),
        a if a >= 9.995 => format!("{value:.1}"),
        a if a >= 0.01 => format!("{value:.2}"),
        _ => return format!("{value:.2e}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a duration in seconds for people.
pub fn seconds(value: f64) -> String {
    match value.max(0.0) {
        s if s < 119.5 => format!("{s:.0} s"),
        s if s < 7170.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3600.0),
    }
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
