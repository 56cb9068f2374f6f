//! Changes of a throttle's main knobs in Redis directly, past everything that records an author.

use std::collections::BTreeMap;

/// The knob that keeps the main knobs, and their author, as the last change through Flyball left
/// them.
pub const WRITTEN: &str = "written";

/// The knobs that say how much a throttle grants.
const MAIN: [&str; 3] = ["rps", "paused", "concurrency"];

/// Returns the text that a change through Flyball stores beside its knobs: the main ones, the
/// length of its reason in bytes, and its author. The Lua script makes the same.
pub fn written(raw: &BTreeMap<String, String>) -> String {
    format!("{} {}", main_knobs(raw), author(raw))
}

/// Returns true if a main knob was changed in Redis after the last change through Flyball.
pub fn is_changed_directly(raw: &BTreeMap<String, String>) -> bool {
    raw.get(WRITTEN).is_some_and(|text| {
        text.strip_prefix(&main_knobs(raw))
            .is_none_or(|rest| !rest.is_empty() && !rest.starts_with(' '))
    })
}

/// Returns true if a main knob was changed in Redis, and `by` and `why` are still those of the last
/// change through Flyball, so that they do not tell of it. People may write them with the knob.
pub fn is_author_unknown(raw: &BTreeMap<String, String>) -> bool {
    let before = raw
        .get(WRITTEN)
        .and_then(|text| text.splitn(MAIN.len() + 1, ' ').last());
    is_changed_directly(raw) && before.is_some_and(|before| before == author(raw))
}

fn main_knobs(raw: &BTreeMap<String, String>) -> String {
    MAIN.map(|field| raw.get(field).map_or("-", String::as_str))
        .join(" ")
}

fn author(raw: &BTreeMap<String, String>) -> String {
    let text = |field: &str| raw.get(field).map_or("", String::as_str);
    format!("{} {}", text("why").len(), text("by"))
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
        assert!(!is(&[
            ("rps", "5"),
            ("written", "5 - - 0 "),
            ("burst", "9")
        ]));
        assert!(is(&[("rps", "7"), ("written", "5 - - 0 ")]));
        assert!(is(&[
            ("rps", "5"),
            ("paused", "1"),
            ("written", "5 - - 0 ")
        ]));
        assert!(is(&[("rps", "5"), ("written", "5 - 3 0 ")]));
        assert!(is(&[
            ("rps", "5"),
            ("concurrency", "3"),
            ("written", "5 - 30 0 ")
        ]));
    }

    #[test]
    fn an_author_who_is_written_with_the_knob_is_known() {
        let mut hash = raw(&[("rps", "5"), ("by", "ann of ops"), ("why", "deploy")]);
        hash.insert(WRITTEN.to_owned(), written(&hash));
        assert_eq!(hash[WRITTEN], "5 - - 6 ann of ops");
        let with = |fields: &[(&str, &str)]| {
            let mut all = hash.clone();
            all.extend(raw(fields));
            (is_changed_directly(&all), is_author_unknown(&all))
        };
        assert_eq!(with(&[]), (false, false));
        assert_eq!(with(&[("rps", "7")]), (true, true));
        assert_eq!(with(&[("rps", "7"), ("by", "ben")]), (true, false));
        assert_eq!(with(&[("rps", "7"), ("why", "the move")]), (true, false));
        assert_eq!(with(&[("by", "ben")]), (false, false));
    }
}
