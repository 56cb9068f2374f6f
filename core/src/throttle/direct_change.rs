//! Changes of a throttle's main knobs in Redis directly, past everything that records an author.

use std::collections::BTreeMap;

/// The knob that keeps the main knobs as the last change through Flyball left them.
pub const WRITTEN: &str = "written";

/// The knobs that say how much a throttle grants.
const MAIN: [&str; 3] = ["rps", "paused", "concurrency"];

/// Returns the text of the main knobs that a change through Flyball stores beside them. The Lua
/// script makes the same.
pub fn written(raw: &BTreeMap<String, String>) -> String {
    MAIN.map(|field| raw.get(field).map_or("-", String::as_str))
        .join(" ")
}

/// Returns true if a main knob was changed in Redis after the last change through Flyball, whose
/// author, time and reason do not tell of it.
pub fn is_changed_directly(raw: &BTreeMap<String, String>) -> bool {
    raw.get(WRITTEN).is_some_and(|text| *text != written(raw))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(fields: &[(&str, &str)]) -> BTreeMap<String, String> {
        fields
            .iter()
            .map(|(field, text)| (field.to_string(), text.to_string()))
            .collect()
    }

    #[test]
    fn a_main_knob_that_differs_from_the_record_was_changed_directly() {
        let is = |fields: &[(&str, &str)]| is_changed_directly(&raw(fields));
        assert!(!is(&[("rps", "5")]), "nothing was recorded");
        assert!(!is(&[("rps", "5"), ("written", "5 - -"), ("burst", "9")]));
        assert!(is(&[("rps", "7"), ("written", "5 - -")]));
        assert!(is(&[("rps", "5"), ("paused", "1"), ("written", "5 - -")]));
        assert!(is(&[("rps", "5"), ("written", "5 - 3")]));
    }
}
