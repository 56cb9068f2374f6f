//! The reason of a plan, in one sentence.

use super::cause::Cause;
use super::format::{number, seconds, tripped};
use super::terms::terms;
use crate::governor::actuator::Actuator;
use crate::governor::law::limits::{above_soft, late};
use crate::governor::law::{Clamp, Phase, Verdict};
use crate::governor::manual_override::ManualOverride;
use crate::governor::plan::Plan;
use crate::governor::policy::Policy;
use crate::governor::snapshot::Snapshot;

/// Returns the plan for the current state; `before` is the rate in force until now.
pub(in crate::governor) fn plan(
    state: &Snapshot<'_>,
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

fn limiting(state: &Snapshot<'_>, cause: &Cause) -> String {
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

fn reason(state: &Snapshot<'_>, policy: &Policy, now: f64, before: f64, cause: &Cause) -> String {
    let knob = state.actuator.amount(&number(state.knob));
    match cause {
        Cause::NoReading => format!("no signal has been read yet; holding {knob}"),
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
                    knob
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
            } else if before <= 0.0 && state.knob > 0.0 {
                format!("restarting at {knob}, not raised until it can be read again")
            } else if state.knob < before * (1.0 - 1e-6) {
                format!(
                    "lowering {} to {knob}, towards {}",
                    number(before),
                    state.actuator.refuge()
                )
            } else {
                format!("holding {knob} until it can be read again")
            };
            format!("no new reading of {} {how_long}; {does}", names.join(", "))
        }
        Cause::Open => {
            let breaker = &state.breaker;
            let rose = tripped(breaker.by.as_deref().unwrap_or_default(), breaker.height);
            let again = if breaker.trips > 0 {
                format!(", {} times in a row", breaker.trips + 1)
            } else {
                String::new()
            };
            if now - breaker.since < 1e-6 {
                format!("{rose}{again}: stopped")
            } else {
                let ago = seconds(now - breaker.since);
                format!("{rose} {ago} ago{again}; it restarts when the load is gone")
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
                "{reads}: {}{follows}{}{}",
                motion(before, state),
                clamps
                    .last()
                    .map_or_else(String::new, |c| bound(state, policy, now, *c)),
                found(state, now)
            )
        }
    }
}

/// Returns the change of the rate, as a verb phrase.
fn motion(before: f64, state: &Snapshot<'_>) -> String {
    let after = state.knob;
    let told = state.actuator.amount(&number(after));
    if before <= 0.0 {
        format!("restarting at {told}")
    } else if after > before * 1.005 {
        format!("raising {} to {told}", number(before))
    } else if after < before * 0.995 {
        format!("lowering {} to {told}", number(before))
    } else {
        format!("holding {told}")
    }
}

/// Returns the finding about durations, in the decision that it belongs to.
fn found(state: &Snapshot<'_>, now: f64) -> &'static str {
    let evidence = &state.work.evidence;
    match evidence.verdict {
        _ if evidence.since != Some(now) => "",
        Verdict::Unknown => "",
        Verdict::Informative => "; job durations follow the load that jobs cause, so they count",
        Verdict::Uninformative => "; job durations do not reflect the load, so jobs are counted",
    }
}

fn bound(state: &Snapshot<'_>, policy: &Policy, now: f64, clamp: Clamp) -> String {
    let waited_for = state.actuator.waited_for();
    match clamp {
        Clamp::Slew => ", at the fastest allowed rise".to_owned(),
        Clamp::Idle => format!("; not raised, because no job waits for {waited_for}"),
        Clamp::Week => format!(
            "; no job waits for {waited_for}, so it stays ready at the usual rate of this hour of \
             the week"
        ),
        Clamp::Confirm => "; not raised until a sample confirms the restart".to_owned(),
        Clamp::Late => {
            let late = late(state.signals, &policy.law, now);
            let names: Vec<&str> = late.map(|signal| signal.name.as_str()).collect();
            let of = match names.is_empty() {
                true => String::new(),
                false => format!(" of {}", names.join(", ")),
            };
            format!("; not raised, because the next reading{of} is late")
        }
        Clamp::Soft => above_soft(state.signals, policy).map_or_else(
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
                .manual_override
                .map_or_else(|| "a person".to_owned(), ManualOverride::who_and_why);
            format!(
                "; {who} set {} {set} ago, so it is not raised for another {left}",
                state.actuator.amount(&number(hold.rps))
            )
        }),
        Clamp::Max => ", the highest rate allowed (max or capacity)".to_owned(),
        Clamp::Min => ", the lowest rate allowed (min)".to_owned(),
    }
}

#[cfg(test)]
#[path = "reason_tests.rs"]
mod tests;
