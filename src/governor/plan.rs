//! The decision of one tick.

use std::collections::BTreeMap;

use serde_json::Value;

use super::law::Phase;

/// The action to take, and its reason.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Plan {
    /// The knob to set, in jobs per second or slots; 0 stops.
    pub rps: f64,
    pub breaker: Phase,
    /// The deciding signal's name, or `start`, `stale`, `breaker`, `person`, `idle`, `slew`,
    /// `late`, `soft`, `week`, `confirm`, `floor`, `min`, `max`.
    pub limiting: String,
    /// The reason, one sentence for a person.
    pub reason: String,
    /// The numbers behind the reason, by name.
    pub terms: BTreeMap<String, Value>,
}

impl Plan {
    /// Returns the plan before the first tick.
    pub(super) fn start() -> Self {
        Self {
            limiting: "start".to_owned(),
            ..Self::default()
        }
    }

    /// Returns the signal that really limits the rate, with the one that tripped the breaker last;
    /// `None` if a bound limits it.
    pub(super) fn limiting_signal<'a>(&'a self, tripped_by: Option<&'a str>) -> Option<&'a str> {
        match self.limiting.as_str() {
            "idle" | "week" | "person" | "min" | "max" | "floor" | "stale" | "start" => None,
            "breaker" => tripped_by,
            _ => self.terms.get("signal").and_then(Value::as_str),
        }
    }
}
