//! The sentences about readings: values beside their setpoints, signals that are silent or late, and
//! what keeps an open breaker open.

use super::format::{number, seconds};
use super::view::{GovernorView, SignalView};
use crate::governor::policy::SignalKind;
use crate::governor::time::unix_s;

/// The age up to which a direct look tells the present, in seconds.
const LOOK_S: f64 = 10.0;

/// Returns the phrase for a signal's value, setpoint and age.
pub(super) fn reads(signal: &SignalView) -> String {
    let Some(value) = signal.value else {
        return format!("{} has not been read yet", signal.name);
    };
    let beside = beside(value, signal.setpoint);
    format!("{} {beside}{}", signal.name, age(signal))
}

/// Returns the age of a signal's sample, in brackets.
fn age(signal: &SignalView) -> String {
    signal
        .age_s
        .map_or_else(String::new, |age| format!(" (sample {} old)", seconds(age)))
}

/// Formats a value beside its setpoint.
fn beside(value: f64, setpoint: f64) -> String {
    let value = number(value);
    format!("{value} of {}", alike(setpoint, &value))
}

/// Formats `setpoint` with at least as many decimal places as `value`.
fn alike(setpoint: f64, value: &str) -> String {
    let plain = number(setpoint);
    if plain.contains('e') || value.contains('e') {
        return plain;
    }
    let digits = |text: &str| text.split_once('.').map_or(0, |(_, digits)| digits.len());
    if digits(value) > digits(&plain) {
        format!("{setpoint:.*}", digits(value))
    } else {
        plain
    }
}

/// Returns the phrase for a rate that falls because the signals with these names are silent, with
/// the reasons for which they are.
pub(super) fn blind(view: &GovernorView, stale: &[&str]) -> String {
    let silent = || view.signals.iter().filter(|s| s.stale);
    let oldest = silent().filter_map(|s| s.age_s).reduce(f64::max);
    let names = stale.join(", ");
    let since = match oldest {
        Some(age) => format!(
            "there has been no new reading of {names} for {}",
            seconds(age)
        ),
        None => format!("{names} has never been read"),
    };
    format!(
        "lowered towards {} and not raised, because {since}{}",
        view.actuator.refuge(),
        problems(silent())
    )
}

/// Returns the reasons for which signals have never been read, in brackets.
pub(super) fn unread(view: &GovernorView) -> String {
    problems(view.signals.iter().filter(|s| s.value.is_none()))
}

/// Returns the clause about the signals whose next reading is late.
pub(super) fn late(view: &GovernorView, now: f64) -> String {
    let is_late = |s: &&SignalView| s.value.is_some() && now - s.sampled_at > s.late_after_s;
    let signals = || view.signals.iter().filter(is_late);
    let names: Vec<&str> = signals().map(|s| s.name.as_str()).collect();
    if names.is_empty() {
        return "the next reading is late".to_owned();
    }
    format!(
        "the next reading of {} is late{}",
        names.join(", "),
        problems(signals())
    )
}

/// Returns the reasons for which these signals have no reading, in brackets; one that they share
/// once, and others with the signals' names.
fn problems<'a>(signals: impl Iterator<Item = &'a SignalView>) -> String {
    let known: Vec<(&str, &str)> = signals
        .filter_map(|s| Some((s.name.as_str(), s.problem.as_deref()?)))
        .collect();
    let Some((_, first)) = known.first() else {
        return String::new();
    };
    if known.iter().all(|(_, problem)| problem == first) {
        return format!(" ({first})");
    }
    let each = known
        .iter()
        .map(|(name, problem)| format!("{name}: {problem}"));
    format!(" ({})", each.collect::<Vec<_>>().join("; "))
}

/// Returns phrases for what keeps an open breaker open: the reason of a silent load, and the present
/// value of a high signal, also where only a direct look shows it.
pub(super) fn keep_open(view: &GovernorView) -> Vec<String> {
    let now = unix_s(view.at);
    let of = |signal: &SignalView| {
        let (name, setpoint) = (&signal.name, signal.setpoint);
        let is_load = signal.kind == SignalKind::Load;
        if !signal.keeps_open || signal.stale && !is_load {
            return None;
        }
        if signal.stale {
            let problem = signal.problem.as_ref()?;
            return Some(format!("{name}: {problem}"));
        }
        let most = if is_load { setpoint } else { signal.trip };
        if let Some(value) = signal.value.filter(|value| *value > most) {
            let (beside, age) = (beside(value, setpoint), age(signal));
            return Some(format!("{name} still reads {beside}{age}"));
        }
        let (at, looked) = signal.looked?;
        let is_high = looked > signal.trip && (now - at).abs() <= LOOK_S;
        is_high.then(|| {
            let beside = beside(looked, setpoint);
            format!("the probe of {name} still reads {beside}")
        })
    };
    view.signals.iter().filter_map(of).collect()
}
