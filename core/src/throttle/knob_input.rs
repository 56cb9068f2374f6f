//! Knobs as people and programs give them, checked strictly.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Knobs;
use super::rules::{KnobKind, KnobProblem, knob, min_above_max, settable};
use crate::input::wording::unknown;

impl Knobs {
    /// Checks fields strictly, for entry points that can refuse, and returns the texts for the hash
    /// or all errors.
    ///
    /// `null` removes a field. The store checks again that `min` is not above `max`, because only
    /// it knows both.
    pub fn check(
        fields: &BTreeMap<String, Value>,
    ) -> Result<BTreeMap<String, Option<String>>, Vec<KnobProblem>> {
        let mut texts = BTreeMap::new();
        let mut problems = Vec::new();
        for (field, value) in fields {
            let checked = match knob(field) {
                Some(knob) => knob.text_of(value),
                None => Err(unknown(field, "knob", &settable())),
            };
            match checked {
                Ok(text) => drop(texts.insert(field.clone(), text)),
                Err(message) => problems.push(KnobProblem {
                    field: field.clone(),
                    message,
                }),
            }
        }
        let bound = |field| fields.get(field).and_then(Value::as_f64);
        if let (Some(min), Some(max)) = (bound("min"), bound("max"))
            && min > max
        {
            problems.push(min_above_max(min, max));
        }
        if problems.is_empty() {
            Ok(texts)
        } else {
            Err(problems)
        }
    }

    /// Converts the text that a person typed after `field=` for [`Knobs::check`]: to a number, true
    /// or false, null, or text.
    pub fn value_of(field: &str, text: &str) -> Value {
        let is_text = knob(field).is_some_and(|knob| {
            matches!(
                knob.kind,
                KnobKind::Throttle | KnobKind::Windows | KnobKind::Choice(_)
            )
        });
        match text {
            "" => Value::Null,
            _ if is_text => Value::String(text.to_owned()),
            "true" | "yes" | "on" => Value::Bool(true),
            "false" | "no" | "off" => Value::Bool(false),
            _ => match text
                .parse::<f64>()
                .ok()
                .and_then(serde_json::Number::from_f64)
            {
                Some(number)
                    if number
                        .as_f64()
                        .is_some_and(|n| n.fract() == 0.0 && n.abs() < 1e15) =>
                {
                    Value::from(number.as_f64().unwrap_or_default() as i64)
                }
                Some(number) => Value::Number(number),
                None => Value::String(text.to_owned()),
            },
        }
    }
}
