//! The governor as a filter: one line of JSON in, one line of JSON out, so that any external model
//! can drive it.
//!
//! It runs [`ControlState::tick`], as in mode `auto`; this file only parses a line strictly and reports
//! its errors. A refused line changes nothing.

use serde_json::{Map, Value};

use super::bounds::Bounds;
use super::observation::{Observation, SignalSample};
use super::plan::Plan;
use super::policy::Policy;
use super::state::ControlState;

/// The allowed keys of a line.
const KEYS: [&str; 8] = [
    "now",
    "readings",
    "achieved_rps",
    "limiting_share",
    "mean_duration_s",
    "completed",
    "rejected",
    "knob_rps",
];
/// The allowed keys of a reading.
const READING: [&str; 3] = ["signal", "value", "at"];
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
const VALUE_MAX: f64 = 1e300;
/// The maximum number of jobs, and the maximum duration in seconds.
const COUNT_MAX: f64 = 1e15;

/// A governor driven by lines.
#[derive(Clone, Debug)]
pub struct LineGovernor {
    policy: Policy,
    bounds: Bounds,
    rps: f64,
    state: Option<ControlState>,
    line: usize,
}

/// The reason for refusing a line.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Mistake {
    /// The number of the line, from 1.
    pub line: usize,
    /// The field, such as `readings[1].value`; empty for the line as a whole.
    pub field: String,
    /// The error and the allowed values.
    pub message: String,
}

/// The field and the message of an error.
type Wrong = (String, String);

impl LineGovernor {
    /// Creates a governor that begins at `rps` jobs per second without samples.
    pub fn new(policy: Policy, bounds: Bounds, rps: f64) -> Self {
        Self {
            policy,
            bounds,
            rps,
            state: None,
            line: 0,
        }
    }

    /// Creates a governor that continues from a state of [`Filter::state`]; `None` if the state
    /// cannot be read.
    pub fn resume(policy: Policy, bounds: Bounds, stored: Value) -> Option<Self> {
        let state = crate::governor::stored::read(stored, &policy)?;
        Some(Self {
            rps: state.knob,
            state: Some(state),
            policy,
            bounds,
            line: 0,
        })
    }

    /// Returns the state to continue from later; `None` before the first accepted line.
    pub fn state(&self) -> Option<Value> {
        self.state
            .as_ref()
            .and_then(|state| serde_json::to_value(state).ok())
    }

    /// Processes the next line; returns `None` for a blank one.
    pub fn take(&mut self, text: &str) -> Option<Result<Plan, Mistake>> {
        self.line += 1;
        if text.trim().is_empty() {
            return None;
        }
        let before = self.state.as_ref().and_then(|state| state.at);
        Some(match read(text, &self.policy, before) {
            Ok(seen) => {
                let begun = || ControlState::new(&self.policy, self.bounds, self.rps, seen.now);
                Ok(self
                    .state
                    .get_or_insert_with(begun)
                    .tick(&self.policy, self.bounds, &seen))
            }
            Err((field, message)) => Err(Mistake {
                line: self.line,
                field,
                message,
            }),
        })
    }

    /// Counts a line that could not be read at all, and returns its error with this message.
    pub fn refuse(&mut self, message: String) -> Mistake {
        self.line += 1;
        Mistake {
            line: self.line,
            field: String::new(),
            message,
        }
    }
}

fn read(text: &str, policy: &Policy, before: Option<f64>) -> Result<Observation, Wrong> {
    let value: Value = serde_json::from_str(text)
        .map_err(|error| (String::new(), format!("is not JSON: {error}")))?;
    let line = object(&value, "", &KEYS)?;
    let now = needed(line, "", "now", 0.0, LATEST)?;
    if let Some(before) = before
        && now <= before
    {
        return Err((
            "now".to_owned(),
            format!("{now} is not after {before}, the time of the last line that was read"),
        ));
    }
    let amount = |key: &str| Ok::<_, Wrong>(number(line, "", key, 0.0, COUNT_MAX)?.unwrap_or(0.0));
    Ok(Observation {
        now,
        readings: readings(line, policy, now)?,
        achieved_rps: number(line, "", "achieved_rps", 0.0, Bounds::MAX_RATE)?,
        limiting_share: number(line, "", "limiting_share", 0.0, 1.0)?,
        mean_duration_s: number(line, "", "mean_duration_s", 0.0, COUNT_MAX)?,
        completed: amount("completed")?,
        rejected: amount("rejected")?,
        idle: false,
        discounted: false,
        waiting: None,
        shared: None,
        capacity_rps: None,
        knob_rps: knob(line)?,
    })
}

fn readings(
    line: &Map<String, Value>,
    policy: &Policy,
    now: f64,
) -> Result<Vec<SignalSample>, Wrong> {
    let list = match line.get("readings") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(other) => {
            return Err((
                "readings".to_owned(),
                format!(
                    "{} is not allowed; use a list of objects",
                    abbreviated(other)
                ),
            ));
        }
    };
    if list.len() > READINGS_MAX {
        return Err((
            "readings".to_owned(),
            format!(
                "{} are too many; at most {READINGS_MAX} are allowed",
                list.len()
            ),
        ));
    }
    list.iter()
        .enumerate()
        .map(|(n, reading)| sample(reading, &format!("readings[{n}]"), policy, now))
        .collect()
}

fn sample(reading: &Value, place: &str, policy: &Policy, now: f64) -> Result<SignalSample, Wrong> {
    let reading = object(reading, place, &READING)?;
    let signal = match reading.get("signal") {
        Some(Value::String(name)) if policy.signal(name).is_some() => name.clone(),
        other => {
            let names: Vec<&str> = policy
                .signals
                .iter()
                .map(|signal| signal.name.as_str())
                .collect();
            let said = other.map_or_else(
                || "is missing".to_owned(),
                |other| format!("{} is not allowed", abbreviated(other)),
            );
            return Err((
                join(place, "signal"),
                format!("{said}; use a signal of the policy: {}", names.join(", ")),
            ));
        }
    };
    if !reading.contains_key("value") {
        return Err((
            join(place, "value"),
            format!(
                "is missing; use {}, or null for no reading",
                range(0.0, VALUE_MAX)
            ),
        ));
    }
    let value = number(reading, place, "value", 0.0, VALUE_MAX)?;
    let at = needed(reading, place, "at", -LATEST, LATEST)?;
    if at > now + MAX_SAMPLE_AHEAD_S {
        let message = format!(
            "{at} is {:.0} s after now; at most {MAX_SAMPLE_AHEAD_S} s are allowed",
            at - now
        );
        return Err((join(place, "at"), message));
    }
    Ok(SignalSample { signal, value, at })
}

fn knob(line: &Map<String, Value>) -> Result<Option<f64>, Wrong> {
    match line.get("knob_rps") {
        Some(Value::Number(n)) if n.as_f64() == Some(-1.0) => Ok(Some(-1.0)),
        Some(Value::Number(n)) if n.as_f64().is_some_and(|n| n != 0.0 && n < Bounds::MIN_RATE) => {
            let (least, most) = (Bounds::MIN_RATE, Bounds::MAX_RATE);
            let allowed = format!(
                "use a number from {least} to {most}, 0 (stopped), -1 (unlimited), or null if it \
                 was not changed"
            );
            Err((
                "knob_rps".to_owned(),
                format!("{n} is not allowed; {allowed}"),
            ))
        }
        _ => number(line, "", "knob_rps", 0.0, Bounds::MAX_RATE),
    }
}

/// Returns the object that `value` must be, with only these keys.
fn object<'a>(
    value: &'a Value,
    place: &str,
    keys: &[&str],
) -> Result<&'a Map<String, Value>, Wrong> {
    let Value::Object(map) = value else {
        return Err((
            place.to_owned(),
            format!(
                "{} is not allowed; use an object with {}",
                abbreviated(value),
                keys.join(", ")
            ),
        ));
    };
    match map.keys().find(|key| !keys.contains(&key.as_str())) {
        Some(unknown) => {
            let message = format!("is not a key; use one of {}", keys.join(", "));
            Err((
                join(place, &unknown.chars().take(64).collect::<String>()),
                message,
            ))
        }
        None => Ok(map),
    }
}

/// Returns the number at `key`; `None` if it is absent or null.
fn number(
    map: &Map<String, Value>,
    place: &str,
    key: &str,
    low: f64,
    high: f64,
) -> Result<Option<f64>, Wrong> {
    let refused = |value: &Value| {
        Err((
            join(place, key),
            format!(
                "{} is not allowed; use {}, or null where it is not known",
                abbreviated(value),
                range(low, high)
            ),
        ))
    };
    match map.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(x) if (low..=high).contains(&x) => Ok(Some(x)),
            _ => refused(value),
        },
    }
}

/// Returns the number at `key`, which is required.
fn needed(
    map: &Map<String, Value>,
    place: &str,
    key: &str,
    low: f64,
    high: f64,
) -> Result<f64, Wrong> {
    let wrong = |said: String| {
        (
            join(place, key),
            format!("{said}; use unix seconds, {}", range(low, high)),
        )
    };
    match map.get(key) {
        None => Err(wrong("is missing".to_owned())),
        Some(value) => {
            let number = value.as_f64().filter(|x| (low..=high).contains(x));
            number.ok_or_else(|| wrong(format!("{} is not allowed", abbreviated(value))))
        }
    }
}

fn range(low: f64, high: f64) -> String {
    let plain = |x: f64| {
        if x.abs() >= 1e6 {
            format!("{x:e}")
        } else {
            format!("{x}")
        }
    };
    format!("a number from {} to {}", plain(low), plain(high))
}

fn join(place: &str, key: &str) -> String {
    if place.is_empty() {
        key.to_owned()
    } else {
        format!("{place}.{key}")
    }
}

fn abbreviated(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() > 64 {
        text.chars().take(64).collect::<String>() + "…"
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: &str = "[[signal]]\nname = \"load\"\nquery = \"q\"\nsetpoint = 2.0\n";
    const BOUNDS: Bounds = Bounds {
        min: 0.1,
        max: 1000.0,
        safe_rps: 1.0,
    };

    fn filter() -> LineGovernor {
        LineGovernor::new(Policy::parse(POLICY, "f").unwrap().unwrap(), BOUNDS, 10.0)
    }

    #[test]
    fn a_line_is_a_tick_of_the_governor_and_a_blank_line_is_nothing() {
        let mut filter = filter();
        let mut state = ControlState::new(&filter.policy, BOUNDS, 10.0, 5.0);
        for n in 1..40 {
            let now = 5.0 * f64::from(n);
            let sample = SignalSample {
                signal: "load".to_owned(),
                value: Some(1.0),
                at: now - 2.0,
            };
            let seen = Observation {
                now,
                readings: vec![sample],
                achieved_rps: Some(9.0),
                limiting_share: Some(1.0),
                ..Observation::default()
            };
            let line = format!(
                "{{\"now\":{now},\"readings\":[{{\"signal\":\"load\",\"value\":1.0,\"at\":{}}}],\"achieved_rps\":9,\"limiting_share\":1}}",
                now - 2.0
            );
            assert_eq!(filter.take(" \r\n"), None);
            assert_eq!(
                filter.take(&line).unwrap().unwrap(),
                state.tick(&filter.policy, BOUNDS, &seen)
            );
        }
    }

    #[test]
    fn a_line_that_cannot_be_read_says_what_is_wrong_and_what_is_allowed() {
        let mut filter = filter();
        assert!(filter.take("{\"now\":100}").unwrap().is_ok());
        let with = |rest: &str| format!("{{\"now\":105,{rest}}}");
        let reading = |text: &str| {
            with(&format!(
                "\"readings\":[{{\"signal\":\"load\",\"value\":1,\"at\":104}},{text}]"
            ))
        };
        let cases = [
            ("{".to_owned(), "", "is not JSON: EOF while parsing"),
            ("{\"now\":NaN}".to_owned(), "", "is not JSON"),
            (
                "{\"now\":1e999}".to_owned(),
                "",
                "is not JSON: number out of range",
            ),
            (
                "[1]".to_owned(),
                "",
                "[1] is not allowed; use an object with now, readings",
            ),
            ("{}".to_owned(), "now", "is missing; use unix seconds"),
            (
                "{\"now\":null}".to_owned(),
                "now",
                "null is not allowed; use unix seconds, a number from 0 to 1e11",
            ),
            (
                "{\"now\":1700000000000}".to_owned(),
                "now",
                "1700000000000 is not allowed",
            ),
            (
                "{\"now\":100}".to_owned(),
                "now",
                "100 is not after 100, the time of the last line that was read",
            ),
            ("{\"now\":99.5}".to_owned(), "now", "99.5 is not after 100"),
            (
                with("\"rps\":5"),
                "rps",
                "is not a key; use one of now, readings",
            ),
            (
                with("\"readings\":{}"),
                "readings",
                "{} is not allowed; use a list of objects",
            ),
            (
                with("\"achieved_rps\":\"7\""),
                "achieved_rps",
                "\"7\" is not allowed; use a number from 0 to 1e9, or null",
            ),
            (
                with("\"achieved_rps\":-1"),
                "achieved_rps",
                "-1 is not allowed",
            ),
            (
                with("\"limiting_share\":1.5"),
                "limiting_share",
                "1.5 is not allowed; use a number from 0 to 1, or null",
            ),
            (
                with("\"mean_duration_s\":true"),
                "mean_duration_s",
                "true is not allowed",
            ),
            (with("\"completed\":-1"), "completed", "-1 is not allowed"),
            (with("\"rejected\":[]"), "rejected", "[] is not allowed"),
            (
                with("\"knob_rps\":-2"),
                "knob_rps",
                "-2 is not allowed; use a number from 0.000001 to 1000000000, 0 (stopped), -1",
            ),
            (
                with("\"knob_rps\":1e10"),
                "knob_rps",
                "10000000000.0 is not allowed",
            ),
            (
                reading("7"),
                "readings[1]",
                "7 is not allowed; use an object with signal, value, at",
            ),
            (
                reading("{\"signal\":\"x\",\"value\":1,\"at\":1}"),
                "readings[1].signal",
                "\"x\" is not allowed; use a signal of the policy: load",
            ),
            (
                reading("{\"value\":1,\"at\":1}"),
                "readings[1].signal",
                "is missing; use a signal of the policy: load",
            ),
            (
                reading("{\"signal\":\"load\",\"at\":1}"),
                "readings[1].value",
                "is missing",
            ),
            (
                reading("{\"signal\":\"load\",\"value\":\"NaN\",\"at\":1}"),
                "readings[1].value",
                "\"NaN\" is not allowed",
            ),
            (
                reading("{\"signal\":\"load\",\"value\":-0.5,\"at\":1}"),
                "readings[1].value",
                "-0.5 is not allowed; use a number from 0",
            ),
            (
                reading("{\"signal\":\"load\",\"value\":1}"),
                "readings[1].at",
                "is missing",
            ),
            (
                reading("{\"signal\":\"load\",\"value\":1,\"at\":500}"),
                "readings[1].at",
                "500 is 395 s after now; at most 60 s",
            ),
            (
                reading("{\"signal\":\"load\",\"value\":1,\"at\":1,\"x\":1}"),
                "readings[1].x",
                "is not a key; use one of signal, value, at",
            ),
        ];
        for (n, (line, field, message)) in cases.into_iter().enumerate() {
            let before = filter.state();
            let mistake = filter.take(&line).unwrap().expect_err(&line);
            assert_eq!(
                (mistake.line, mistake.field.as_str()),
                (n + 2, field),
                "{line}: {}",
                mistake.message
            );
            assert!(
                mistake.message.starts_with(message),
                "{line}: {}",
                mistake.message
            );
            assert_eq!(filter.state(), before, "{line} changed something");
        }
        assert!(
            filter
                .take("{\"now\":105,\"knob_rps\":null,\"readings\":null}")
                .unwrap()
                .is_ok()
        );
    }

    #[test]
    fn a_state_that_was_kept_goes_on_where_it_stood() {
        let line = |n: u32| {
            format!(
                "{{\"now\":{0},\"readings\":[{{\"signal\":\"load\",\"value\":1,\"at\":{0}}}],\"limiting_share\":1}}",
                5 * n
            )
        };
        let (mut whole, mut parts) = (filter(), filter());
        for n in 1..30 {
            let expected = whole.take(&line(n)).unwrap().unwrap();
            assert_eq!(parts.take(&line(n)).unwrap().unwrap(), expected);
            parts =
                LineGovernor::resume(parts.policy.clone(), BOUNDS, parts.state().unwrap()).unwrap();
        }
        assert!(
            LineGovernor::resume(
                whole.policy.clone(),
                BOUNDS,
                serde_json::json!({ "form": 99 })
            )
            .is_none()
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_line_breaks_it_and_what_it_answers_is_finite(lines in prop::collection::vec(any_line(), 1..60)) {
            let mut filter = filter();
            for line in lines {
                match filter.take(&line) {
                    Some(Ok(plan)) => {
                        prop_assert!(plan.rps.is_finite() && (0.0..=BOUNDS.max).contains(&plan.rps), "{line}: {}", plan.rps);
                        prop_assert!(!plan.reason.is_empty() && !plan.limiting.is_empty());
                    }
                    Some(Err(mistake)) => prop_assert!(!mistake.message.is_empty()),
                    None => prop_assert!(line.trim().is_empty()),
                }
            }
        }
    }

    /// Returns valid lines, lines with one error, and noise.
    fn any_line() -> impl Strategy<Value = String> {
        let number = prop_oneof![
            (0u32..2000).prop_map(|n| n.to_string()),
            any::<f64>().prop_map(|x| x.to_string()),
            Just("null".to_owned())
        ];
        let sound = (number.clone(), number.clone(), number.clone(), number).prop_map(|(now, value, achieved, knob)| {
            format!("{{\"now\":{now},\"readings\":[{{\"signal\":\"load\",\"value\":{value},\"at\":{now}}}],\"achieved_rps\":{achieved},\"limiting_share\":1,\"knob_rps\":{knob}}}")
        });
        prop_oneof![3 => sound, 1 => "\\PC{0,60}"]
    }
}
