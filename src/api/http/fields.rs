//! Reading of a request's object field by field, so that every wrong field is listed at once.

use std::ops::RangeInclusive;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

/// The most wrong fields that one answer lists, because a batch of 10,000 bad jobs must not cause
/// an answer of megabytes.
pub const MAX_LISTED: usize = 100;

/// An error in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct FieldError {
    /// The part of the request that holds the field: body, query, path or header.
    #[serde(rename = "in")]
    pub place: FieldLocation,
    /// The JSON pointer to the field; empty for the whole.
    #[schema(example = "/3/priority")]
    pub pointer: String,
    /// The error and the allowed values.
    #[schema(example = "7 is out of range; allowed: a whole number from 0 (first) to 3 (last)")]
    pub message: String,
}

/// The part of a request that holds a wrong field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FieldLocation {
    /// The JSON body.
    Body,
    /// The query string; the pointer is `/` and the parameter's name.
    Query,
    /// The path; the pointer is `/` and the name in the route.
    Path,
    /// A header; the pointer is `/` and the header's name.
    Header,
}

/// The wrong fields of one request, at most [`MAX_LISTED`] of them kept and all of them counted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// The first errors, in the order in which they were found.
    pub listed: Vec<FieldError>,
    /// The number of all errors.
    pub total: usize,
}

impl Errors {
    /// Adds a wrong field of the body.
    pub fn body(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        self.push(FieldLocation::Body, pointer.into(), message.into());
    }

    /// Adds a wrong field anywhere.
    pub fn push(&mut self, place: FieldLocation, pointer: String, message: String) {
        self.total += 1;
        if self.listed.len() < MAX_LISTED {
            self.listed.push(FieldError {
                place,
                pointer,
                message,
            });
        }
    }

    /// Returns true while there is no error.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }
}

/// A reader of an object of a request.
#[derive(Debug)]
pub struct ObjectReader<'e> {
    map: Map<String, Value>,
    at: String,
    errors: &'e mut Errors,
}

impl<'e> ObjectReader<'e> {
    /// Opens `value` as an object that may hold `allowed` fields; unknown ones are listed with the
    /// most similar allowed name.
    pub fn open(value: Value, at: &str, allowed: &[&str], errors: &'e mut Errors) -> Option<Self> {
        let Value::Object(map) = value else {
            errors.body(
                at,
                format!(
                    "{} is not an object; allowed: an object with {}",
                    describe(&value),
                    list(allowed)
                ),
            );
            return None;
        };
        for name in map.keys().filter(|name| !allowed.contains(&name.as_str())) {
            errors.body(pointer(at, name), unknown(name, "field", allowed));
        }
        Some(Self {
            map,
            at: at.to_owned(),
            errors,
        })
    }

    /// Takes a field without checking its value.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name)
    }

    /// Takes a field, with JSON's `null` read as absent; for fields whose absence has a meaning.
    pub fn take_nullable(&mut self, name: &str) -> Option<Value> {
        self.take(name).filter(|value| !value.is_null())
    }

    /// Reports that `name` is wrong.
    pub fn wrong(&mut self, name: &str, message: impl Into<String>) {
        let at = pointer(&self.at, name);
        self.errors.body(at, message);
    }

    /// Returns true if a field is given and not `null`.
    pub fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// Reports that the object as a whole is wrong.
    pub fn wrong_whole(&mut self, message: impl Into<String>) {
        let at = self.at.clone();
        self.errors.body(at, message);
    }

    /// Reports an error below `name`; `below` is a JSON pointer or empty.
    pub fn wrong_below(&mut self, name: &str, below: &str, message: impl Into<String>) {
        let at = format!("{}{below}", pointer(&self.at, name));
        self.errors.body(at, message);
    }

    /// Reports an error at a JSON pointer below this object.
    pub fn wrong_at(&mut self, below: &str, message: impl Into<String>) {
        let at = format!("{}{below}", self.at);
        self.errors.body(at, message);
    }

    /// Takes a text without NUL whose length in bytes is in `bytes`; `None` if it is absent or
    /// wrong.
    pub fn text(&mut self, name: &str, bytes: RangeInclusive<usize>) -> Option<String> {
        let value = self.take(name)?;
        self.text_of(name, value, bytes)
    }

    /// Checks a value as [`Self::text`] does that was already taken.
    pub fn text_of(
        &mut self,
        name: &str,
        value: Value,
        bytes: RangeInclusive<usize>,
    ) -> Option<String> {
        let allowed = format!("a text of {} to {} bytes", bytes.start(), bytes.end());
        match value {
            Value::String(text) if text.contains('\0') => {
                self.wrong(name, format!("the text holds a NUL character (\\u0000), which cannot be stored; allowed: {allowed}"));
                None
            }
            Value::String(text) if !bytes.contains(&text.len()) => {
                self.wrong(
                    name,
                    format!("the text has {} bytes; allowed: {allowed}", text.len()),
                );
                None
            }
            Value::String(text) => Some(text),
            other => {
                self.wrong(
                    name,
                    format!("{} is not a text; allowed: {allowed}", describe(&other)),
                );
                None
            }
        }
    }

    /// Takes a whole number in `range`; `meaning` completes "allowed: a whole number from 0 to 3".
    pub fn whole(&mut self, name: &str, range: RangeInclusive<i64>, meaning: &str) -> Option<i64> {
        let value = self.take(name)?;
        let allowed = format!(
            "a whole number from {} to {}{meaning}",
            range.start(),
            range.end()
        );
        let whole = value.as_i64().or_else(|| {
            value
                .as_f64()
                .filter(|f| f.fract() == 0.0 && f.abs() < 9e15)
                .map(|f| f as i64)
        });
        match whole {
            Some(number) if range.contains(&number) => return Some(number),
            _ if value.is_number() && (whole.is_some() || value.is_u64()) => {
                self.wrong(
                    name,
                    format!("{} is out of range; allowed: {allowed}", describe(&value)),
                );
            }
            _ => self.wrong(
                name,
                format!(
                    "{} is not a whole number; allowed: {allowed}",
                    describe(&value)
                ),
            ),
        }
        None
    }

    /// Takes a number above 0 and at most `max`; `unit` completes the sentence, e.g. ` seconds`.
    pub fn positive(&mut self, name: &str, max: f64, unit: &str) -> Option<f64> {
        let value = self.take(name)?;
        self.positive_of(name, &value, max, unit)
    }

    /// Checks a value as [`Self::positive`] does that was already taken.
    pub fn positive_of(&mut self, name: &str, value: &Value, max: f64, unit: &str) -> Option<f64> {
        let allowed = format!("a number above 0, at most {max}{unit}");
        match value.as_f64() {
            Some(number) if number > 0.0 && number <= max => Some(number),
            Some(_) => {
                self.wrong(
                    name,
                    format!("{} is out of range; allowed: {allowed}", describe(value)),
                );
                None
            }
            None => {
                self.wrong(
                    name,
                    format!("{} is not a number; allowed: {allowed}", describe(value)),
                );
                None
            }
        }
    }

    /// Takes a truth value; `None` if it is absent or wrong.
    pub fn flag(&mut self, name: &str) -> Option<bool> {
        let value = self.take(name)?;
        if !value.is_boolean() {
            self.wrong(
                name,
                format!(
                    "{} is not a truth value; allowed: true or false",
                    describe(&value)
                ),
            );
        }
        value.as_bool()
    }

    /// Takes a time; `None` if it is absent, `null` or wrong.
    pub fn time(&mut self, name: &str) -> Option<Timestamp> {
        let value = self.take_nullable(name)?;
        let parsed = value.as_str().and_then(time_of);
        if parsed.is_none() {
            self.wrong(
                name,
                format!("{} is not a time; allowed: {TIME}", describe(&value)),
            );
        }
        parsed
    }

    /// Takes one of a few words; `None` if it is absent, `null` or wrong.
    pub fn choice<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Option<T> {
        let value = self.take_nullable(name)?;
        let found = value
            .as_str()
            .and_then(|text| words.iter().find(|(word, _)| *word == text))
            .map(|(_, found)| *found);
        if found.is_none() {
            let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let message = match value.as_str() {
                Some(text) => unknown(text, "value", &names),
                None => format!(
                    "{} is not a text; allowed: {}",
                    describe(&value),
                    list(&names)
                ),
            };
            self.wrong(name, message);
        }
        found
    }

    /// Takes a text as [`Self::text`] does, with JSON's `null` read as absent.
    pub fn text_or_null(&mut self, name: &str, bytes: RangeInclusive<usize>) -> Option<String> {
        let value = self.take_nullable(name)?;
        self.text_of(name, value, bytes)
    }

    /// Returns the fields that are left after the known ones were taken (unknown ones are already
    /// reported).
    pub fn rest(self) -> Map<String, Value> {
        self.map
    }
}

/// The format of times, for messages.
pub const TIME: &str =
    "an RFC 3339 time with an offset, such as 2030-01-31T09:30:00Z or 2030-01-31T09:30:00+01:00";

/// Parses a time, if Postgres can store it.
pub fn time_of(text: &str) -> Option<Timestamp> {
    text.parse::<Timestamp>()
        .ok()
        .filter(|at| at.as_second() > -200_000_000_000)
}

/// Returns the JSON pointer of `name` below `at`.
pub fn pointer(at: &str, name: &str) -> String {
    format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// Describes a value for a message: its text, shortened, or its type.
pub fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("{:?}", clipped(text)),
        Value::Array(items) => format!("an array of {}", items.len()),
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

/// Returns the message about an unknown `what` named `name`, with the allowed names and the most
/// similar one.
pub fn unknown(name: &str, what: &str, allowed: &[&str]) -> String {
    let name = clipped(name);
    let meant = allowed
        .iter()
        .map(|known| (distance(&name, known), known))
        .min()
        .filter(|(far, _)| *far <= 2 && *far < name.len());
    match meant {
        Some((_, known)) => format!(
            "unknown {what} {name:?}; did you mean {known:?}? allowed: {}",
            list(allowed)
        ),
        None => format!("unknown {what} {name:?}; allowed: {}", list(allowed)),
    }
}

fn list(names: &[&str]) -> String {
    names.join(", ")
}

/// Returns the number of edits (insertions, deletions, replacements of a character) between two
/// short names.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unknown_field_is_named_with_what_was_probably_meant() {
        let mut errors = Errors::default();

        ObjectReader::open(
            json!({"priorty": 1, "colour": 2}),
            "/3",
            &["kind", "priority"],
            &mut errors,
        );

        assert_eq!(errors.listed[0].pointer, "/3/colour");
        assert_eq!(
            errors.listed[0].message,
            "unknown field \"colour\"; allowed: kind, priority"
        );
        assert_eq!(errors.listed[1].pointer, "/3/priorty");
        assert!(
            errors.listed[1]
                .message
                .contains("did you mean \"priority\"?")
        );
    }

    #[test]
    fn whole_numbers_may_be_written_with_a_point_but_not_with_a_fraction() {
        for (value, expected) in [
            (json!(2), Some(2)),
            (json!(2.0), Some(2)),
            (json!(2.5), None),
            (json!(9), None),
            (json!("2"), None),
        ] {
            let mut errors = Errors::default();
            let mut fields =
                ObjectReader::open(json!({"n": value}), "", &["n"], &mut errors).unwrap();
            assert_eq!(fields.whole("n", 0..=3, ""), expected);
            assert_eq!(errors.is_empty(), expected.is_some());
        }
    }

    #[test]
    fn pointers_escape_slashes_and_tildes() {
        assert_eq!(pointer("/0", "a/b~c"), "/0/a~1b~0c");
    }

    #[test]
    fn more_errors_than_are_listed_are_still_counted() {
        let mut errors = Errors::default();
        for i in 0..250 {
            errors.body(format!("/{i}"), "bad");
        }
        assert_eq!((errors.listed.len(), errors.total), (MAX_LISTED, 250));
    }
}
