//! All signals of one governor: their samples, and the lowest of the rates that they ask for.

use std::collections::BTreeMap;

use super::part::StatePart;
use super::signal::Signal;
use super::tick_context::TickContext;
use crate::control::History;
use crate::governor::observation::{Observation, SignalSample};
use crate::governor::policy::{FeedbackKind, Policy, SignalKind, SignalPolicy, SignalSource};

/// Creates the signals of a policy, which track the log work rate `u`.
pub(in crate::governor) fn fresh(policy: &Policy, u: f64) -> Vec<Signal> {
    let signal = |about| Signal::new(about, &policy.law, u);
    policy.signals.iter().map(signal).collect()
}

/// Brings the signals into the policy's order; new ones, and those of another kind, start from the
/// log work rate `u`, removed ones are dropped.
pub(in crate::governor) fn adopt(signals: &mut Vec<Signal>, policy: &Policy, u: f64) {
    let fits = |signal: &Signal, about: &SignalPolicy| {
        signal.name == about.name && signal.controller.fits(about.kind)
    };
    let mut pairs = signals.iter().zip(&policy.signals);
    if signals.len() == policy.signals.len() && pairs.all(|(signal, about)| fits(signal, about)) {
        return;
    }
    let mut known = std::mem::take(signals);
    let take = |about| match known.iter().position(|signal| fits(signal, about)) {
        Some(n) => known.swap_remove(n),
        None => Signal::new(about, &policy.law, u),
    };
    *signals = policy.signals.iter().map(take).collect();
}

/// Records for people why signals have no reading; `problems` are by signal.
pub(in crate::governor) fn note_problems(
    signals: &mut [Signal],
    problems: &BTreeMap<String, String>,
) {
    for signal in signals {
        signal.problem = problems.get(&signal.name).cloned();
    }
}

/// Ingests the samples of a tick, and the feedback of the throttle's own work; `w` is the work of a
/// job.
pub(in crate::governor) fn ingest(
    signals: &mut [Signal],
    policy: &Policy,
    history: &History,
    seen: &Observation,
    w: f64,
    now: f64,
) {
    let mut samples: Vec<&SignalSample> =
        seen.readings.iter().filter(|r| r.at.is_finite()).collect();
    samples.sort_by(|a, b| a.at.total_cmp(&b.at));
    for (signal, about) in signals.iter_mut().zip(&policy.signals) {
        let context = context(policy, about, history, now);
        signal.learn(about, history);
        let uses_durations = matches!(
            about.feedback,
            Some(FeedbackKind::Latency | FeedbackKind::LatencyP99)
        );
        if let Some(quota) = signal.controller.quota_mut() {
            let capacity_rps = seen.capacity_rps.filter(|rps| rps.is_finite());
            quota.capacity = capacity_rps.map(|rps| rps * w);
            // A paused throttle lets nothing through, so it is not in use.
            let flows = seen.achieved_rps.is_none_or(|rps| rps > 0.0);
            let is_used = flows && (seen.limiting_share.is_none() || seen.is_limited());
            quota.used_from = is_used.then(|| quota.used_from.unwrap_or(now));
        }
        for sample in samples.iter().filter(|r| r.signal == about.name) {
            if let Some(value) = sample.value {
                signal.ingest(context, sample.at, value);
                signal.discounted = false;
            } else if seen.discounted && uses_durations {
                signal.front.seen = Some(now);
                signal.discounted = true;
            }
        }
        if about.source == SignalSource::Feedback {
            let is_read = samples.iter().any(|r| r.signal == about.name);
            let value = about.feedback.and_then(|kind| seen.feedback(kind));
            if let Some(value) = value.filter(|_| !is_read) {
                signal.ingest(context, now, value * about.scale);
            }
            if seen.idle {
                signal.front.seen = Some(now);
            }
        }
    }
}

/// Returns the lowest log work rate that the signals ask for, and the index of that signal; signals
/// far from their limit abstain.
///
/// `in_force` is the log work rate in force; `follow` turns a signal's own rate into a follower's.
pub(in crate::governor) fn lowest_ask(
    signals: &mut [Signal],
    policy: &Policy,
    history: &History,
    (now, dt): (f64, f64),
    in_force: f64,
    mut follow: impl FnMut(&str, f64) -> f64,
) -> Option<(f64, usize)> {
    let mut asks: Vec<(usize, f64)> = Vec::new();
    for (n, (signal, about)) in signals.iter_mut().zip(&policy.signals).enumerate() {
        let context = context(policy, about, history, now);
        if let Some(u) = signal.ask(context, dt, in_force) {
            asks.push((n, follow(&about.name, u)));
        }
    }
    let lead = asks
        .iter()
        .filter_map(|&(n, _)| signals[n].predicted())
        .fold(0.0, f64::max);
    let counts = |n: usize| asks.len() == 1 || !signals[n].abstains(&policy.law, now, lead);
    let lower = |a: &&(usize, f64), b: &&(usize, f64)| a.1.total_cmp(&b.1);
    let lowest = asks.iter().filter(|&&(n, _)| counts(n)).min_by(lower);
    // If every signal abstains, all count: one must set the rate.
    lowest
        .or_else(|| asks.iter().min_by(lower))
        .map(|&(n, u)| (u, n))
}

/// Makes every signal ask for the rate in force.
pub(in crate::governor) fn rebase(
    signals: &mut [Signal],
    policy: &Policy,
    history: &History,
    now: f64,
    in_force: f64,
) {
    for (signal, about) in signals.iter_mut().zip(&policy.signals) {
        signal.rebase(context(policy, about, history, now), in_force);
    }
}

/// Returns the signals without a new sample for too long; those that never had one are silent since
/// `began_at`.
pub(in crate::governor) fn stale(
    signals: &[Signal],
    policy: &Policy,
    now: f64,
    began_at: f64,
) -> Vec<String> {
    let late = |(signal, about): &(&Signal, &SignalPolicy)| {
        let silence_s = now - signal.front.seen.unwrap_or(began_at);
        silence_s > signal.stale_after_s(about, &policy.law)
    };
    let pairs = signals.iter().zip(&policy.signals).filter(late);
    pairs.map(|(signal, _)| signal.name.clone()).collect()
}

/// Returns true if one of the signals with these names is a load.
pub(in crate::governor) fn any_load(names: &[String], policy: &Policy) -> bool {
    let is_load = |about: &SignalPolicy| about.kind == SignalKind::Load;
    names
        .iter()
        .any(|name| policy.signal(name).is_some_and(is_load))
}

/// Returns the highest of the newest values, in setpoints; `None` if none is fresh.
pub(in crate::governor) fn highest_load(
    signals: &[Signal],
    policy: &Policy,
    now: f64,
) -> Option<f64> {
    let load = |(signal, about): (&Signal, &SignalPolicy)| {
        let silence_s = now - signal.front.seen?;
        let is_fresh = silence_s <= signal.stale_after_s(about, &policy.law);
        is_fresh.then_some(signal.value? / about.setpoint)
    };
    signals
        .iter()
        .zip(&policy.signals)
        .filter_map(load)
        .filter(|x| x.is_finite())
        .reduce(f64::max)
}

/// Returns true if the newest sample of any signal is above its setpoint.
pub(in crate::governor) fn any_above(signals: &[Signal], policy: &Policy) -> bool {
    let mut pairs = signals.iter().zip(&policy.signals);
    pairs.any(|(signal, about)| signal.value.is_some_and(|value| value > about.setpoint))
}

/// Replaces signals whose numbers absurd input made infinite or NaN; they start over at `u`.
pub(in crate::governor) fn mend(signals: &mut [Signal], policy: &Policy, u: f64) {
    for (signal, about) in signals.iter_mut().zip(&policy.signals) {
        if !signal.is_sound() {
            *signal = Signal::new(about, &policy.law, u);
        }
    }
}

fn context<'a>(
    policy: &'a Policy,
    about: &'a SignalPolicy,
    history: &'a History,
    now: f64,
) -> TickContext<'a> {
    TickContext {
        policy: about,
        law: &policy.law,
        history,
        now,
    }
}
