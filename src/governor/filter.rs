//! The governor as a filter: one line of JSON in, one line of JSON out, so that any external model
//! can drive it.
//!
//! It runs [`ControlState::tick`], as in mode `auto`; this file only parses a line strictly and
//! reports its errors. A refused line changes nothing.

use crate::throttle::RateLimit;
use serde_json::Value;

use super::bounds::Bounds;
use super::line::read;
use super::plan::Plan;
use super::policy::Policy;
use super::state::ControlState;
use super::stored;
use crate::input::{Issue, issue::segments};

/// A governor driven by lines.
#[derive(Clone, Debug)]
pub struct LineGovernor {
    policy: Policy,
    bounds: Bounds,
    limit: RateLimit,
    state: Option<ControlState>,
    line: usize,
}

/// The reason for refusing a line.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Mistake {
    /// The number of the line, from 1.
    pub line: usize,
    /// The first wrong field, such as `readings[1].value`; empty for the line as a whole.
    pub field: String,
    /// The error and the allowed values.
    pub message: String,
    /// Everything that is wrong, the first included.
    pub issues: Vec<FieldIssue>,
}

/// One wrong field of a line.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FieldIssue {
    /// The field, such as `readings[1].value`; empty for the line as a whole.
    pub field: String,
    /// The error and the allowed values.
    pub message: String,
}

impl Mistake {
    fn new(line: usize, issues: Vec<Issue>) -> Self {
        let issues: Vec<FieldIssue> = issues
            .into_iter()
            .map(|issue| FieldIssue {
                field: field_of(&issue.pointer),
                message: issue.message,
            })
            .collect();
        let (field, message) = issues.first().map_or_else(Default::default, |first| {
            (first.field.clone(), first.message.clone())
        });
        Self {
            line,
            field,
            message,
            issues,
        }
    }
}

/// Writes a JSON pointer as people name a field: `/readings/1/value` is `readings[1].value`.
fn field_of(pointer: &str) -> String {
    let mut field = String::new();
    for segment in segments(pointer) {
        if segment.bytes().all(|byte| byte.is_ascii_digit()) {
            field += &format!("[{segment}]");
        } else {
            if !field.is_empty() {
                field.push('.');
            }
            field.extend(segment.chars().take(64));
        }
    }
    field
}

impl LineGovernor {
    /// Creates a governor that begins at `limit` without samples.
    pub fn new(policy: Policy, bounds: Bounds, limit: RateLimit) -> Self {
        Self {
            policy,
            bounds,
            limit,
            state: None,
            line: 0,
        }
    }

    /// Creates a governor that continues from a state of [`Filter::state`]; `None` if the state
    /// cannot be read.
    pub fn resume(policy: Policy, bounds: Bounds, stored: Value) -> Option<Self> {
        let state = stored::read(stored, &policy)?;
        Some(Self {
            limit: RateLimit::new(state.knob),
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
                let begun = || ControlState::new(&self.policy, self.bounds, self.limit, seen.now);
                Ok(self
                    .state
                    .get_or_insert_with(begun)
                    .tick(&self.policy, self.bounds, &seen))
            }
            Err(issues) => Err(Mistake::new(self.line, issues)),
        })
    }

    /// Counts a line that could not be read at all, and returns its error with this message.
    pub fn refuse(&mut self, message: String) -> Mistake {
        self.line += 1;
        Mistake::new(self.line, vec![Issue::new("", message)])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::governor::{Observation, SignalSample};

    const POLICY: &str = "[[signal]]\nname = \"load\"\nquery = \"q\"\nsetpoint = 2.0\n";
    const BOUNDS: Bounds = Bounds {
        min: 0.1,
        max: 1000.0,
        safe_rps: 1.0,
    };

    fn filter() -> LineGovernor {
        LineGovernor::new(
            Policy::parse(POLICY, "f").unwrap().unwrap(),
            BOUNDS,
            RateLimit::PerSecond(10.0),
        )
    }

    #[test]
    fn a_line_is_a_tick_of_the_governor_and_a_blank_line_is_nothing() {
        let mut filter = filter();
        let mut state = ControlState::new(&filter.policy, BOUNDS, RateLimit::PerSecond(10.0), 5.0);
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
                "must be an object with the fields now, readings",
            ),
            (
                "{}".to_owned(),
                "now",
                "is missing: it must be a number of unix seconds from 0 to 100000000000",
            ),
            (
                "{\"now\":null}".to_owned(),
                "now",
                "is missing: it must be a number of unix seconds",
            ),
            (
                "{\"now\":1700000000000}".to_owned(),
                "now",
                "must be a number from 0 to 100000000000 (unix seconds), not 1700000000000",
            ),
            (
                "{\"now\":100}".to_owned(),
                "now",
                "must be after 100, the time of the last line that was read, not 100",
            ),
            ("{\"now\":99.5}".to_owned(), "now", "must be after 100"),
            (
                with("\"rps\":5"),
                "rps",
                "is not a known field; allowed: now, readings",
            ),
            (
                with("\"readings\":{}"),
                "readings",
                "must be a list of objects, not an object",
            ),
            (
                with("\"achieved_rps\":\"7\""),
                "achieved_rps",
                "must be a number from 0 to 1000000000, not \"7\"",
            ),
            (
                with("\"achieved_rps\":-1"),
                "achieved_rps",
                "must be a number from 0 to 1000000000, not -1",
            ),
            (
                with("\"limiting_share\":1.5"),
                "limiting_share",
                "must be a number from 0 to 1, not 1.5",
            ),
            (
                with("\"mean_duration_s\":true"),
                "mean_duration_s",
                "must be a number from 0 to 1000000000000000, not true",
            ),
            (
                with("\"completed\":-1"),
                "completed",
                "must be a number from 0",
            ),
            (
                with("\"rejected\":[]"),
                "rejected",
                "must be a number from 0 to 1000000000000000, not a list of 0",
            ),
            (
                with("\"knob_rps\":-2"),
                "knob_rps",
                "must be a number from 0.000001 to 1000000000, 0 (stopped) or -1 (unlimited), not -2",
            ),
            (
                with("\"knob_rps\":1e10"),
                "knob_rps",
                "must be a number from 0.000001",
            ),
            (
                reading("7"),
                "readings[1]",
                "must be an object with the fields signal, value, at, not 7",
            ),
            (
                reading("{\"signal\":\"x\",\"value\":1,\"at\":1}"),
                "readings[1].signal",
                "must be load, not \"x\"",
            ),
            (
                reading("{\"value\":1,\"at\":1}"),
                "readings[1].signal",
                "is missing: it must be load",
            ),
            (
                reading("{\"signal\":\"load\",\"at\":1}"),
                "readings[1].value",
                "is missing",
            ),
            (
                reading("{\"signal\":\"load\",\"value\":\"NaN\",\"at\":1}"),
                "readings[1].value",
                "must be a number from 0",
            ),
            (
                reading("{\"signal\":\"load\",\"value\":-0.5,\"at\":1}"),
                "readings[1].value",
                "must be a number from 0",
            ),
            (
                reading("{\"signal\":\"load\",\"value\":1}"),
                "readings[1].at",
                "is missing",
            ),
            (
                reading("{\"signal\":\"load\",\"value\":1,\"at\":500}"),
                "readings[1].at",
                "must be at most 60 s after now, not 395 s",
            ),
            (
                reading("{\"signal\":\"load\",\"value\":1,\"at\":1,\"x\":1}"),
                "readings[1].x",
                "is not a known field; allowed: signal, value, at",
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
