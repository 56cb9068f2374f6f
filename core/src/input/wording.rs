//! Wording of problems, the same at every entry point.

use serde_json::Value;

/// The most edits between a wrong name and the one that was probably meant.
const NEAR: usize = 2;

/// Returns the message about a value outside of `allowed`.
pub fn must_be(allowed: &str, found: &Value) -> String {
    format!("must be {allowed}, not {}", describe(found))
}

/// Returns the message about a field without a value.
pub fn missing(allowed: &str) -> String {
    format!("is missing: it must be {allowed}")
}

/// Returns the message about a value that is none of the `allowed` texts, with the most similar
/// one.
pub fn must_be_one_of(allowed: &[&str], found: &Value) -> String {
    let message = must_be(&any_of(allowed), found);
    match found.as_str().and_then(|text| similar(text, allowed)) {
        Some(meant) => format!("{message}; did you mean {meant:?}?"),
        None => message,
    }
}

/// Returns the message about a name that is not one of the `allowed`, such as a `field`, with the
/// most similar one.
pub fn unknown(name: &str, what: &str, allowed: &[&str]) -> String {
    let list = allowed.join(", ");
    match similar(name, allowed) {
        Some(meant) => format!("is not a known {what}; did you mean {meant:?}? allowed: {list}"),
        None => format!("is not a known {what}; allowed: {list}"),
    }
}

/// Joins names as `a, b or c`.
pub fn any_of(names: &[&str]) -> String {
    match names {
        [] => "absent".to_owned(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

/// Describes a value: its text, shortened, or its type.
pub fn describe(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("{:?}", clipped(text)),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Returns the first 40 characters of a text.
pub fn clipped(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// Returns the one of the `allowed` names that was probably meant.
pub fn similar<'a>(name: &str, allowed: &[&'a str]) -> Option<&'a str> {
    let name = clipped(name);
    let length = name.chars().count();
    allowed
        .iter()
        // As many edits are needed at least, and counting is faster.
        .filter(|known| known.chars().count().abs_diff(length) <= NEAR)
        .map(|known| (strsim::levenshtein(&name, known), *known))
        .min()
        .filter(|(far, _)| *far <= NEAR && *far < name.len())
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_that_is_nearly_right_is_suggested() {
        let names = ["kind", "priority"];
        assert_eq!(
            unknown("priorty", "field", &names),
            "is not a known field; did you mean \"priority\"? allowed: kind, priority"
        );
        assert_eq!(
            unknown("colour", "field", &names),
            "is not a known field; allowed: kind, priority"
        );
        assert_eq!(
            must_be_one_of(&["ready", "dead"], &json!("redy")),
            "must be ready or dead, not \"redy\"; did you mean \"ready\"?"
        );
        assert_eq!(
            must_be_one_of(&["a", "b", "c"], &json!("x")),
            "must be a, b or c, not \"x\""
        );
    }
}
