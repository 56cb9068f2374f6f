//! Reader of an object field by field, so that everything wrong is reported at once.

use std::ops::RangeInclusive;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::issue::{Issue, IssueSink, pointer, unknown_fields};
use super::wording::{any_of, missing, must_be, must_be_one_of};

/// The form of times, for messages.
pub const TIME: &str =
    "an RFC 3339 time with an offset, such as 2030-01-31T09:30:00Z or 2030-01-31T09:30:00+01:00";

/// Parses a time, if Postgres can store it.
pub fn time_of(text: &str) -> Option<Timestamp> {
    text.parse::<Timestamp>()
        .ok()
        .filter(|at| at.as_second() > -200_000_000_000)
}

/// A reader of an object.
pub struct Reader<'a> {
    object: Object<'a>,
    at: String,
    options: ReaderOptions,
    issues: &'a mut (dyn IssueSink + 'a),
}

/// The choices that the readers of parts inherit.
#[derive(Clone, Copy, Default)]
struct ReaderOptions {
    null_is_absent: bool,
    hides_values: bool,
}

enum Object<'a> {
    Owned(Map<String, Value>),
    Borrowed(&'a Map<String, Value>),
}

impl Object<'_> {
    fn map(&self) -> &Map<String, Value> {
        match self {
            Self::Owned(map) => map,
            Self::Borrowed(map) => map,
        }
    }
}

impl<'a> Reader<'a> {
    /// Opens `value`, at the JSON pointer `at`, as an object that may hold the `allowed` fields.
    pub fn open(
        value: Value,
        at: &str,
        allowed: &[&str],
        issues: &'a mut (impl IssueSink + 'a),
    ) -> Option<Self> {
        let Value::Object(map) = value else {
            issues.add(not_an_object(at, allowed, Some(&value)));
            return None;
        };
        let mut reader = Self {
            object: Object::Owned(map),
            at: at.to_owned(),
            options: ReaderOptions::default(),
            issues,
        };
        reader.only(allowed);
        Some(reader)
    }

    /// Opens a value that stays with its owner, as [`Reader::open`] does.
    pub fn of(
        value: &'a Value,
        at: &str,
        allowed: &[&str],
        issues: &'a mut (impl IssueSink + 'a),
    ) -> Option<Self> {
        Self::borrowed(
            value,
            at.to_owned(),
            allowed,
            ReaderOptions::default(),
            issues,
        )
    }

    fn borrowed(
        value: &'a Value,
        at: String,
        allowed: &[&str],
        options: ReaderOptions,
        issues: &'a mut (dyn IssueSink + 'a),
    ) -> Option<Self> {
        let Value::Object(map) = value else {
            let found = (!options.hides_values).then_some(value);
            issues.add(not_an_object(&at, allowed, found));
            return None;
        };
        let mut reader = Self {
            object: Object::Borrowed(map),
            at,
            options,
            issues,
        };
        reader.only(allowed);
        Some(reader)
    }

    /// Reads `null` like an absent field from now on.
    pub fn null_is_absent(mut self) -> Self {
        self.options.null_is_absent = true;
        self
    }

    /// Shows no value in messages from now on, because one may be an address or a secret.
    pub fn hide_values(mut self) -> Self {
        self.options.hides_values = true;
        self
    }

    /// Reports every field that is not `allowed`, very many in one; with an empty list every field
    /// is.
    pub fn only(&mut self, allowed: &[&str]) {
        if allowed.is_empty() {
            return;
        }
        for issue in unknown_fields(&self.at, self.names(), allowed) {
            self.issues.add(issue);
        }
    }

    /// Opens the object in a field. Reports a missing field.
    pub fn part(&mut self, name: &str, allowed: &[&str]) -> Option<Reader<'_>> {
        let value = match self.object.map().get(name) {
            Some(Value::Null) if self.options.null_is_absent => None,
            value => value,
        };
        let at = pointer(&self.at, name);
        let Some(value) = value else {
            self.issues
                .add(Issue::new(at, missing(&object_with(allowed))));
            return None;
        };
        let options = self.options;
        Reader::borrowed(value, at, allowed, options, &mut *self.issues)
    }

    /// Opens an object that was taken from a field, at the JSON pointer `below` this object.
    pub fn nested<'b>(
        &'b mut self,
        value: &'b Value,
        below: &str,
        allowed: &[&str],
    ) -> Option<Reader<'b>> {
        let options = self.options;
        let at = format!("{}{below}", self.at);
        Reader::borrowed(value, at, allowed, options, &mut *self.issues)
    }

    /// Returns the names of all fields.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.object.map().keys().map(String::as_str)
    }

    /// Returns the value of a field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.object
            .map()
            .get(name)
            .filter(|value| !(self.options.null_is_absent && value.is_null()))
    }

    /// Returns true if a field is given, be it as `null`.
    pub fn contains(&self, name: &str) -> bool {
        self.object.map().contains_key(name)
    }

    /// Takes a field without checking its value.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        let value = match &mut self.object {
            Object::Owned(map) => map.remove(name),
            Object::Borrowed(map) => map.get(name).cloned(),
        };
        value.filter(|value| !(self.options.null_is_absent && value.is_null()))
    }

    /// Returns the fields that are left after the known ones were taken (unknown ones are already
    /// reported).
    pub fn rest(self) -> Map<String, Value> {
        match self.object {
            Object::Owned(map) => map,
            Object::Borrowed(map) => map.clone(),
        }
    }

    /// Takes a field, with `null` read as absent; for fields whose absence has a meaning.
    pub fn take_nullable(&mut self, name: &str) -> Option<Value> {
        self.take(name).filter(|value| !value.is_null())
    }

    /// Returns true if a field is given and not `null`.
    pub fn has(&self, name: &str) -> bool {
        self.object
            .map()
            .get(name)
            .is_some_and(|value| !value.is_null())
    }

    /// Reports that `name` is wrong.
    pub fn wrong(&mut self, name: &str, message: impl Into<String>) {
        self.issues
            .add(Issue::new(pointer(&self.at, name), message));
    }

    /// Reports that the object as a whole is wrong.
    pub fn wrong_whole(&mut self, message: impl Into<String>) {
        self.issues.add(Issue::new(self.at.clone(), message));
    }

    /// Reports an error below `name`; `below` is a JSON pointer or empty.
    pub fn wrong_below(&mut self, name: &str, below: &str, message: impl Into<String>) {
        let at = format!("{}{below}", pointer(&self.at, name));
        self.issues.add(Issue::new(at, message));
    }

    /// Reports an error at a JSON pointer below this object.
    pub fn wrong_at(&mut self, below: &str, message: impl Into<String>) {
        self.issues
            .add(Issue::new(format!("{}{below}", self.at), message));
    }

    /// Reports that `name` must be `allowed` but is `found`.
    pub fn refuse(&mut self, name: &str, allowed: &str, found: &Value) {
        let message = if self.options.hides_values {
            format!("must be {allowed}")
        } else {
            must_be(allowed, found)
        };
        self.wrong(name, message);
    }

    /// Reports that the list `name` must be `allowed`. It shows the first item that does not fit, or
    /// else the whole value.
    pub fn refuse_items(
        &mut self,
        name: &str,
        allowed: &str,
        found: &Value,
        fits: impl Fn(&Value) -> bool,
    ) {
        let mut items = found.as_array().into_iter().flatten();
        let wrong = items.find(|item| !fits(item));
        self.refuse(name, allowed, wrong.unwrap_or(found));
    }

    /// Reports that `name` is missing.
    pub fn missing(&mut self, name: &str, allowed: &str) {
        self.wrong(name, missing(allowed));
    }

    /// Returns a text of any length.
    pub fn any_text(&mut self, name: &str) -> Option<String> {
        let value = self.get(name)?;
        let text = value.as_str().map(str::to_owned);
        if text.is_none() {
            let value = value.clone();
            self.refuse(name, "a text", &value);
        }
        text
    }

    /// Takes a text without NUL whose length in bytes is in `bytes`; `None` if it is absent or
    /// wrong.
    pub fn text(&mut self, name: &str, bytes: RangeInclusive<usize>) -> Option<String> {
        let value = self.take(name)?;
        self.text_of(name, value, bytes)
    }

    /// Takes a text as [`Self::text`] does, with `null` read as absent.
    pub fn text_or_null(&mut self, name: &str, bytes: RangeInclusive<usize>) -> Option<String> {
        let value = self.take_nullable(name)?;
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
                self.wrong(
                    name,
                    format!("must be {allowed} without the character NUL (\\u0000), which cannot be stored"),
                );
                None
            }
            Value::String(text) if !bytes.contains(&text.len()) => {
                self.wrong(name, format!("must be {allowed}, not of {}", text.len()));
                None
            }
            Value::String(text) => Some(text),
            other => {
                self.refuse(name, &allowed, &other);
                None
            }
        }
    }

    /// Takes a whole number in `range`; `meaning` completes "a whole number from 0 to 3".
    pub fn whole(&mut self, name: &str, range: RangeInclusive<i64>, meaning: &str) -> Option<i64> {
        let value = self.take(name)?;
        let whole = value.as_i64().or_else(|| {
            value
                .as_f64()
                .filter(|f| f.fract() == 0.0 && f.abs() < 9e15)
                .map(|f| f as i64)
        });
        let number = whole.filter(|number| range.contains(number));
        if number.is_none() {
            let (least, most) = (range.start(), range.end());
            let allowed = format!("a whole number from {least} to {most}{meaning}");
            self.refuse(name, &allowed, &value);
        }
        number
    }

    /// Takes a number in `range`; `unit` completes the sentence, e.g. ` seconds`.
    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>, unit: &str) -> Option<f64> {
        let value = self.take(name)?;
        let number = value.as_f64().filter(|number| range.contains(number));
        if number.is_none() {
            let (least, most) = (range.start(), range.end());
            self.refuse(
                name,
                &format!("a number from {least} to {most}{unit}"),
                &value,
            );
        }
        number
    }

    /// Takes a number above 0 and at most `max`; `unit` completes the sentence, e.g. ` seconds`.
    pub fn positive(&mut self, name: &str, max: f64, unit: &str) -> Option<f64> {
        let value = self.take(name)?;
        self.positive_of(name, &value, max, unit)
    }

    /// Checks a value as [`Self::positive`] does that was already taken.
    pub fn positive_of(&mut self, name: &str, value: &Value, max: f64, unit: &str) -> Option<f64> {
        let number = value
            .as_f64()
            .filter(|number| *number > 0.0 && *number <= max);
        if number.is_none() {
            self.refuse(
                name,
                &format!("a number above 0 and at most {max}{unit}"),
                value,
            );
        }
        number
    }

    /// Takes a truth value; `None` if it is absent or wrong.
    pub fn flag(&mut self, name: &str) -> Option<bool> {
        let value = self.take(name)?;
        if !value.is_boolean() {
            self.refuse(name, "true or false", &value);
        }
        value.as_bool()
    }

    /// Takes a time; `None` if it is absent, `null` or wrong.
    pub fn time(&mut self, name: &str) -> Option<Timestamp> {
        let value = self.take_nullable(name)?;
        let parsed = value.as_str().and_then(time_of);
        if parsed.is_none() {
            self.refuse(name, TIME, &value);
        }
        parsed
    }

    /// Takes one of a few words; `None` if it is absent, `null` or wrong.
    pub fn choice<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Option<T> {
        let value = self.take_nullable(name)?;
        let found = words
            .iter()
            .find(|(word, _)| value == *word)
            .map(|(_, found)| *found);
        if found.is_none() {
            let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            if self.options.hides_values {
                self.refuse(name, &any_of(&names), &value);
            } else {
                self.wrong(name, must_be_one_of(&names, &value));
            }
        }
        found
    }
}

fn object_with(allowed: &[&str]) -> String {
    if allowed.is_empty() {
        "an object".to_owned()
    } else {
        format!("an object with the fields {}", allowed.join(", "))
    }
}

fn not_an_object(at: &str, allowed: &[&str], found: Option<&Value>) -> Issue {
    let allowed = object_with(allowed);
    let message = match found {
        Some(found) => must_be(&allowed, found),
        None => format!("must be {allowed}"),
    };
    Issue::new(at, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_numbers_may_be_written_with_a_point_but_not_with_a_fraction() {
        for (value, expected) in [
            (json!(2), Some(2)),
            (json!(2.0), Some(2)),
            (json!(2.5), None),
            (json!(9), None),
            (json!("2"), None),
        ] {
            let mut issues = Vec::new();
            let mut fields = Reader::open(json!({"n": value}), "", &["n"], &mut issues).unwrap();
            assert_eq!(fields.whole("n", 0..=3, ""), expected);
            assert_eq!(issues.is_empty(), expected.is_some());
        }
    }

    #[test]
    fn every_problem_is_reported_with_its_place() {
        let value = json!({"a/b": 1, "part": {"n": null, "word": "tow", "x": 1}, "list": []});
        let mut issues = Vec::new();
        let mut fields = Reader::of(&value, "", &["part", "list"], &mut issues)
            .unwrap()
            .null_is_absent();
        let mut part = fields.part("part", &["n", "word"]).unwrap();
        assert_eq!(part.whole("n", 0..=3, ""), None);
        assert_eq!(part.choice("word", &[("one", 1), ("two", 2)]), None);
        assert!(fields.part("list", &[]).is_none() && fields.part("other", &["a"]).is_none());

        let lines: Vec<String> = issues
            .iter()
            .map(|issue| format!("{} {}", issue.pointer, issue.message))
            .collect();
        assert_eq!(
            lines,
            [
                "/a~1b is not a known field; allowed: part, list",
                "/part/x is not a known field; allowed: n, word",
                "/part/word must be one or two, not \"tow\"; did you mean \"two\"?",
                "/list must be an object, not a list of 0",
                "/other is missing: it must be an object with the fields a",
            ]
        );
    }

    #[test]
    fn a_hidden_value_is_in_no_message() {
        let mut issues = Vec::new();
        let value = json!({"to": 15_550_100});
        let fields = Reader::of(&value, "", &["to"], &mut issues).unwrap();
        assert_eq!(fields.hide_values().text("to", 1..=9), None);
        assert_eq!(issues[0].message, "must be a text of 1 to 9 bytes");
    }
}
