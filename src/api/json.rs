//! JSON text to a value, strictly: a broken text is refused with its line and column, and so is a field given twice.

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Why a text is not usable JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body is not valid JSON: {what} at line {line}, column {column}{hint}")]
pub struct Malformed {
    /// What is wrong, as the parser puts it.
    pub what: String,
    /// From 1.
    pub line: usize,
    /// From 1; 0 at the very end of a line.
    pub column: usize,
    /// What may help, with its own leading punctuation; or empty.
    pub hint: &'static str,
}

/// Parses a text; unlike `serde_json::from_slice` it refuses an object that names a field twice, because one of the two
/// would silently be lost.
pub fn parse(text: &[u8]) -> Result<Value, Malformed> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    Strict.deserialize(&mut parser).and_then(|value| parser.end().map(|()| value)).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let whole = error.to_string();
        let what = whole.split(" at line ").next().unwrap_or(&whole).to_owned();
        Malformed { what, line, column, hint: hint(text, line, column) }
    })
}

/// JSON has no NaN and no infinity, and people who print floats with other tools find out here.
fn hint(text: &[u8], line: usize, column: usize) -> &'static str {
    if text.iter().all(u8::is_ascii_whitespace) {
        return "; the body is empty";
    }
    let start = text.split(|byte| *byte == b'\n').take(line.saturating_sub(1)).map(|line| line.len() + 1).sum::<usize>();
    let rest = text.get(start + column.saturating_sub(1)..).unwrap_or_default();
    let named = |names: [&[u8]; 4]| names.iter().any(|name| rest.starts_with(name));
    match () {
        () if named([b"NaN", b"nan", b"Inf", b"inf"]) || rest.starts_with(b"Infinity") => {
            "; JSON has no NaN and no infinity, only finite numbers"
        }
        () if rest.starts_with(b"'") => "; texts are written in double quotes",
        () => "",
    }
}

struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(Strict)? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!("the field {:?} is given twice", super::fields::clipped(&name))));
            }
            object.insert(name, entries.next_value_seed(Strict)?);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_broken_text_is_refused_with_its_line_and_column() {
        let error = parse(b"{\n  \"kind\": \"http\",\n  \"args\": {,}\n}").unwrap_err();
        assert_eq!((error.line, error.column), (3, 12));
        assert!(error.to_string().contains("line 3, column 12"), "{error}");
    }

    #[test]
    fn nan_empty_bodies_single_quotes_and_overflows_are_explained() {
        assert!(parse(b"{\"cost\":NaN}").unwrap_err().to_string().contains("no NaN"));
        assert!(parse(b"{\"cost\":\n Infinity}").unwrap_err().to_string().contains("no infinity"));
        assert!(parse(b"  ").unwrap_err().to_string().contains("the body is empty"));
        assert!(parse(b"{'kind':1}").unwrap_err().to_string().contains("double quotes"));
        assert!(parse(b"{\"cost\":1e999}").unwrap_err().to_string().contains("out of range"));
        assert!(parse(b"{\"a\":\"\xff\"}").is_err());
        assert!(parse(b"{} {}").unwrap_err().to_string().contains("trailing"));
    }

    #[test]
    fn a_field_given_twice_is_refused_because_one_would_be_lost() {
        assert!(parse(br#"{"a":{"b":1,"b":2}}"#).unwrap_err().what.contains("\"b\" is given twice"));
    }

    #[test]
    fn a_text_nested_without_end_is_refused_and_does_not_overflow_the_stack() {
        assert!(parse("[".repeat(1_000_000).as_bytes()).unwrap_err().what.contains("recursion limit"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let strict = parse(&bytes);
            let lax: Result<Value, _> = serde_json::from_slice(&bytes);
            if let Ok(value) = strict {
                prop_assert_eq!(value, lax.unwrap());
            }
        }
    }
}
