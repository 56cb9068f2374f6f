//! Strict reading of one line of JSON as an observation.

use crate::throttle::RateLimit;
use serde_json::Value;

use super::bounds::Bounds;
use super::observation::{Observation, SignalSample};
use super::policy::Policy;
use crate::input::wording::any_of;
use crate::input::{Issue, Reader};

/// The allowed fields of a line.
const FIELDS: [&str; 8] = [
    "now",
    "readings",
    "achieved_rps",
    "limiting_share",
    "mean_duration_s",
    "completed",
    "rejected",
    "knob_rps",
];
/// The allowed fields of a reading.
const READING_FIELDS: [&str; 3] = ["signal", "value", "at"];
/// The latest time, in unix seconds: the year 5138.
///
/// Milliseconds given by mistake exceed it.
const LATEST: f64 = 1e11;
/// The longest time by which a sample may be ahead of `now`, in seconds, because clocks differ; the
/// law reads none further ahead.
const MAX_SAMPLE_AHEAD_S: f64 = 60.0;
/// The maximum number of readings in one line.
const READINGS_MAX: usize = 10_000;
/// The maximum value of a signal.
const VALUE_MAX: f64 = 1e18;
/// The maximum number of jobs, and the maximum duration in seconds.
const COUNT_MAX: f64 = 1e15;

/// Reads a line whose time must be after `before`, or returns everything that is wrong with it.
pub(super) fn read(
    text: &str,
    policy: &Policy,
    before: Option<f64>,
) -> Result<Observation, Vec<Issue>> {
    let value: Value = serde_json::from_str(text)
        .map_err(|error| vec![Issue::new("", format!("is not JSON: {error}"))])?;
    let mut issues = Vec::new();
    let seen = Reader::of(&value, "", &FIELDS, &mut issues)
        .and_then(|line| observation(line.null_is_absent(), policy, before));
    match seen {
        Some(seen) if issues.is_empty() => Ok(seen),
        _ => Err(issues),
    }
}

fn observation(mut line: Reader<'_>, policy: &Policy, before: Option<f64>) -> Option<Observation> {
    let now = time(&mut line, "now", 0.0);
    if let (Some(now), Some(before)) = (now, before)
        && now <= before
    {
        let message =
            format!("must be after {before}, the time of the last line that was read, not {now}");
        line.wrong("now", message);
    }
    let readings = readings(&mut line, policy, now);
    let seen = Observation {
        readings,
        achieved_rps: line.number("achieved_rps", 0.0..=Bounds::MAX_RATE, ""),
        limiting_share: line.number("limiting_share", 0.0..=1.0, ""),
        mean_duration_s: line.number("mean_duration_s", 0.0..=COUNT_MAX, ""),
        completed: line
            .number("completed", 0.0..=COUNT_MAX, "")
            .unwrap_or_default(),
        rejected: line
            .number("rejected", 0.0..=COUNT_MAX, "")
            .unwrap_or_default(),
        knob_rps: knob(&mut line),
        ..Observation::default()
    };
    Some(Observation { now: now?, ..seen })
}

fn time(reader: &mut Reader<'_>, name: &str, least: f64) -> Option<f64> {
    if reader.get(name).is_none() {
        let allowed = format!("a number of unix seconds from {least} to {LATEST}");
        reader.missing(name, &allowed);
    }
    reader.number(name, least..=LATEST, " (unix seconds)")
}

fn readings(line: &mut Reader<'_>, policy: &Policy, now: Option<f64>) -> Vec<SignalSample> {
    let list = match line.take("readings") {
        None => return Vec::new(),
        Some(Value::Array(list)) => list,
        Some(other) => {
            line.refuse("readings", "a list of objects", &other);
            return Vec::new();
        }
    };
    if list.len() > READINGS_MAX {
        let message = format!("must have at most {READINGS_MAX} items, not {}", list.len());
        line.wrong("readings", message);
        return Vec::new();
    }
    let mut samples = Vec::new();
    for (n, reading) in list.iter().enumerate() {
        let reading = line.nested(reading, &format!("/readings/{n}"), &READING_FIELDS);
        samples.extend(reading.and_then(|reading| sample(reading, policy, now)));
    }
    samples
}

fn sample(mut reading: Reader<'_>, policy: &Policy, now: Option<f64>) -> Option<SignalSample> {
    let names: Vec<(&str, &str)> = policy
        .signals
        .iter()
        .map(|signal| (signal.name.as_str(), signal.name.as_str()))
        .collect();
    if !reading.has("signal") {
        let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        reading.missing("signal", &any_of(&names));
    }
    let signal = reading.choice("signal", &names);
    if !reading.contains("value") {
        let allowed = format!("a number from 0 to {VALUE_MAX}, or null for no reading");
        reading.missing("value", &allowed);
    }
    let value = reading.number("value", 0.0..=VALUE_MAX, "");
    let at = time(&mut reading, "at", -LATEST);
    if let (Some(at), Some(now)) = (at, now)
        && at > now + MAX_SAMPLE_AHEAD_S
    {
        let message = format!(
            "must be at most {MAX_SAMPLE_AHEAD_S} s after now, not {:.0} s",
            at - now
        );
        reading.wrong("at", message);
    }
    Some(SignalSample {
        signal: signal?.to_owned(),
        value,
        at: at?,
    })
}

fn knob(line: &mut Reader<'_>) -> Option<RateLimit> {
    let value = line.take("knob_rps")?;
    let (least, most) = (Bounds::MIN_RATE, Bounds::MAX_RATE);
    let is_knob = |rps: &f64| *rps == 0.0 || *rps == -1.0 || (least..=most).contains(rps);
    let knob = value.as_f64().filter(is_knob);
    if knob.is_none() {
        let allowed = format!("a number from {least} to {most}, 0 (stopped) or -1 (unlimited)");
        line.refuse("knob_rps", &allowed, &value);
    }
    knob.map(RateLimit::new)
}
