//! TOML as JSON values, with the line of every key.

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};
use toml::de::{DeTable, DeValue};

use super::issue::pointer;

/// A parsed TOML text.
#[derive(Clone, Debug, PartialEq)]
pub struct TomlDocument {
    pub value: Value,
    lines: BTreeMap<String, usize>,
    /// The JSON pointers of texts that have no quotes: numbers and times that JSON lacks.
    unquoted: Vec<String>,
}

/// A text that is not TOML.
#[derive(Debug)]
pub struct NotToml {
    /// The line, from 1.
    pub line: usize,
    pub message: String,
}

impl TomlDocument {
    /// Parses a text.
    pub fn parse(text: &str) -> Result<Self, NotToml> {
        let table = DeTable::parse(text).map_err(|error| NotToml {
            line: error.span().map_or(1, |span| line_of(text, span.start)),
            message: error.message().trim().replace('\n', ", "),
        })?;
        let (mut lines, mut unquoted) = (BTreeMap::new(), Vec::new());
        let value = table_of(text, table.get_ref(), "", &mut lines, &mut unquoted);
        Ok(Self {
            value,
            lines,
            unquoted,
        })
    }

    /// Returns the line of each key that is given, by its JSON pointer.
    pub fn lines(&self) -> &BTreeMap<String, usize> {
        &self.lines
    }

    /// Returns the JSON pointers of values that are texts here and have no quotes in the file.
    pub fn unquoted(&self) -> &[String] {
        &self.unquoted
    }

    /// Returns the line, from 1, of the key at a JSON pointer, if it is given.
    pub fn line_of(&self, pointer: &str) -> Option<usize> {
        self.lines.get(pointer).copied()
    }

    /// Returns the line, from 1, of the key at a JSON pointer or else of the table that lacks it;
    /// `None` for the whole text.
    pub fn line(&self, pointer: &str) -> Option<usize> {
        let mut at = pointer;
        loop {
            if let Some(line) = self.line_of(at) {
                return Some(line);
            }
            at = at.rsplit_once('/')?.0;
        }
    }
}

/// Converts a table that was parsed elsewhere, without lines.
pub fn json_of(table: &toml::Table) -> Value {
    let text = toml::to_string(table).unwrap_or_default();
    TomlDocument::parse(&text).map_or(Value::Null, |document| document.value)
}

fn table_of(
    text: &str,
    table: &DeTable,
    at: &str,
    lines: &mut BTreeMap<String, usize>,
    unquoted: &mut Vec<String>,
) -> Value {
    let mut map = Map::new();
    for (key, value) in table {
        let below = pointer(at, key.get_ref());
        lines.insert(below.clone(), line_of(text, key.span().start));
        let value = value_of(text, value.get_ref(), &below, lines, unquoted);
        map.insert(key.get_ref().to_string(), value);
    }
    Value::Object(map)
}

/// Converts a value. Numbers and times that JSON lacks become texts, which no entry point takes for
/// a number.
fn value_of(
    text: &str,
    value: &DeValue,
    at: &str,
    lines: &mut BTreeMap<String, usize>,
    unquoted: &mut Vec<String>,
) -> Value {
    let mut as_text = |shown: &str| {
        unquoted.push(at.to_owned());
        Value::String(shown.to_owned())
    };
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Integer(n) => i64::from_str_radix(&n.as_str().replace('_', ""), n.radix())
            .map_or_else(|_| as_text(n.as_str()), Value::from),
        DeValue::Float(n) => n
            .as_str()
            .replace('_', "")
            .parse::<f64>()
            .ok()
            .and_then(Number::from_f64)
            .map_or_else(|| as_text(n.as_str()), Value::Number),
        DeValue::Datetime(time) => as_text(&time.to_string()),
        DeValue::Array(items) => {
            let items = items.iter().enumerate().map(|(n, item)| {
                let below = format!("{at}/{n}");
                lines.insert(below.clone(), line_of(text, item.span().start));
                value_of(text, item.get_ref(), &below, lines, unquoted)
            });
            Value::Array(items.collect())
        }
        DeValue::Table(table) => table_of(text, table, at, lines, unquoted),
    }
}

/// Returns the line, counted from 1, of a byte of the text.
fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_key_has_its_line_and_every_value_its_json() {
        let text =
            "a = 1_000\n\n[[t]]\nb = 0x10\nc = -2.5\n[[t]]\n\"d/e\" = nan\nf = { g = true }\n";

        let document = TomlDocument::parse(text).unwrap();

        assert_eq!(
            document.value,
            json!({"a": 1000, "t": [{"b": 16, "c": -2.5}, {"d/e": "nan", "f": {"g": true}}]})
        );
        assert_eq!(document.unquoted(), ["/t/1/d~1e"]);
        let lines = [
            "/a",
            "/t/0",
            "/t/0/c",
            "/t/1/d~1e",
            "/t/1/f/g",
            "/t/1/none",
            "",
        ];
        assert_eq!(
            lines.map(|at| document.line(at)),
            [Some(1), Some(3), Some(5), Some(7), Some(8), Some(6), None]
        );
        assert_eq!(TomlDocument::parse("a = 1\nb = \n").unwrap_err().line, 2);
    }
}
