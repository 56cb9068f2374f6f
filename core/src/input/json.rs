//! Strict parser of JSON: it refuses a broken text with line and column, an object that repeats a
//! field, and an integer that would be rounded.
//!
//! The memory of a value is counted while it is read, because a short text can become large: two
//! bytes of an array become thirty-two, and eight of an object seven hundred. The parser stops when
//! a bound is exceeded.

use std::{fmt, io};

use serde::Serialize;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::long_integers::{LongInteger, first_long_integer};
use super::wording::clipped;

/// Returns the memory of a value as [`parse`] counts it, in bytes.
pub fn memory_of(value: &Value) -> usize {
    let below = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(memory_of).sum::<usize>(),
        Value::Object(fields) => memory_of_fields(fields),
    };
    VALUE_BYTES + below
}

/// Returns the memory of an object besides its head, as [`parse`] counts it, in bytes.
pub fn memory_of_fields(fields: &Map<String, Value>) -> usize {
    let field =
        |(name, value): (&String, &Value)| size_of::<String>() + name.len() + memory_of(value);
    OBJECT_BYTES + fields.iter().map(field).sum::<usize>()
}

/// Returns the length of a value as JSON, in bytes, without writing it anywhere.
pub fn text_len(value: &impl Serialize) -> usize {
    let mut counter = ByteCounter(0);
    // A value has names of text only, and the counter takes everything, so this cannot fail.
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

struct ByteCounter(usize);

impl io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An error of syntax or a repeated field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body is not valid JSON: {what} at line {line}, column {column}{hint}")]
pub struct Malformed {
    /// The message of the parser.
    pub what: String,
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1; 0 at the very end of a line.
    pub column: usize,
    /// A hint with its own leading punctuation, or an empty text.
    pub hint: &'static str,
}

/// The size of a number, a truth value or `null`, in bytes; the head of every other value is as
/// large.
const VALUE_BYTES: usize = size_of::<Value>();

/// A number that is not larger is no integer of more than 64 bits: 2^63.
const LARGE: f64 = 9_223_372_036_854_775_808.0;

/// The memory of an object besides its names and values, in bytes: its map allocates room for
/// eleven of them at once.
const OBJECT_BYTES: usize = 640;

/// The reason for which a text could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonReadError {
    /// The text is not valid JSON.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The outermost array has more items than allowed.
    #[error("the array has more than {0} items")]
    Items(usize),
    /// The value would take more memory than allowed.
    #[error("the body would take more than {0} bytes of memory once it is read")]
    Bytes(usize),
    /// An integer has more than 64 bits.
    #[error("{} has more than 64 bits", .0.text)]
    LongInteger(LongInteger),
    /// The memory budget of all requests is used up.
    #[error("too many bodies are being read")]
    NoRoom,
}

impl JsonReadError {
    /// Returns the JSON pointer of the part that is wrong, empty for the whole text, and what is wrong
    /// with it, without the line and the column.
    pub fn into_problem(self) -> (String, String) {
        match self {
            Self::LongInteger(found) => (found.pointer.clone(), found.refusal()),
            Self::Malformed(wrong) => (String::new(), wrong.what),
            wrong => (String::new(), wrong.to_string()),
        }
    }
}

/// A counter of the items and the bytes that are read.
pub struct JsonBudget<'a> {
    /// The most items of the outermost array.
    items_max: usize,
    /// The most memory, in bytes.
    bytes_max: usize,
    bytes: usize,
    /// The callback that grants each further piece of memory; `false` ends the reading.
    room: &'a mut (dyn FnMut(usize) -> bool + Send),
    passed: Option<JsonReadError>,
    /// True if a number was read that may be an integer of more than 64 bits.
    has_large: bool,
    /// True if such an integer may be rounded.
    rounds: bool,
}

impl<'a> JsonBudget<'a> {
    /// Creates a meter with these bounds, which asks `room` for memory.
    pub fn new(
        items_max: usize,
        bytes_max: usize,
        room: &'a mut (dyn FnMut(usize) -> bool + Send),
    ) -> Self {
        Self {
            items_max,
            bytes_max,
            bytes: 0,
            room,
            passed: None,
            has_large: false,
            rounds: false,
        }
    }

    /// Rounds integers of more than 64 bits instead of refusing them.
    pub fn rounding(mut self) -> Self {
        self.rounds = true;
        self
    }

    fn take<E: serde::de::Error>(&mut self, bytes: usize) -> Result<(), E> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.bytes_max {
            return self.pass(JsonReadError::Bytes(self.bytes_max));
        }
        if !(self.room)(bytes) {
            return self.pass(JsonReadError::NoRoom);
        }
        Ok(())
    }

    fn pass<E: serde::de::Error>(&mut self, bound: JsonReadError) -> Result<(), E> {
        self.passed = Some(bound);
        Err(E::custom("a bound is passed"))
    }
}

/// Parses a text. Unlike `serde_json::from_slice` it refuses an object that repeats a field,
/// because one of the two values would silently be lost, and an integer of more than 64 bits,
/// because its last digits would. The meter counts the memory.
pub fn parse(text: &[u8], mut meter: JsonBudget<'_>) -> Result<Value, JsonReadError> {
    let read = strict(text, &mut meter);
    match meter.passed {
        Some(bound) => Err(bound),
        None => {
            let value = read?;
            // A large number may be a float, which the value alone does not tell.
            let is_in_doubt = meter.has_large && !meter.rounds;
            match is_in_doubt.then(|| first_long_integer(text)).flatten() {
                Some(found) => Err(JsonReadError::LongInteger(found)),
                None => Ok(value),
            }
        }
    }
}

/// Parses a text that is short enough to need no bounds.
pub fn parse_short(text: &str) -> Result<Value, JsonReadError> {
    parse(
        text.as_bytes(),
        JsonBudget::new(usize::MAX, usize::MAX, &mut |_| true),
    )
}

fn strict(text: &[u8], meter: &mut JsonBudget<'_>) -> Result<Value, Malformed> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    Strict { meter, depth: 0 }
        .deserialize(&mut parser)
        .and_then(|value| parser.end().map(|()| value))
        .map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let whole = error.to_string();
            let what = whole.split(" at line ").next().unwrap_or(&whole).to_owned();
            Malformed {
                what,
                line,
                column,
                hint: hint(text, line, column),
            }
        })
}

/// Returns a hint for an empty body, and for NaN and infinity, which JSON lacks and other tools
/// print.
fn hint(text: &[u8], line: usize, column: usize) -> &'static str {
    if text.iter().all(u8::is_ascii_whitespace) {
        return "; the body is empty";
    }
    let start = text
        .split(|byte| *byte == b'\n')
        .take(line.saturating_sub(1))
        .map(|line| line.len() + 1)
        .sum::<usize>();
    let rest = text
        .get(start + column.saturating_sub(1)..)
        .unwrap_or_default();
    let named = |names: [&[u8]; 4]| names.iter().any(|name| rest.starts_with(name));
    match () {
        () if named([b"NaN", b"nan", b"Inf", b"inf"]) || rest.starts_with(b"Infinity") => {
            "; JSON has no NaN and no infinity, only finite numbers"
        }
        () if rest.starts_with(b"'") => "; texts are written in double quotes",
        () => "",
    }
}

struct Strict<'m, 'a> {
    meter: &'m mut JsonBudget<'a>,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Strict<'_, '_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.meter.take(VALUE_BYTES)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_, '_> {
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
        self.meter.has_large |= value.abs() >= LARGE;
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.meter.take(value.len())?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: serde::de::Error>(self, value: String) -> Result<Value, E> {
        self.meter.take(value.len())?;
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let Self { meter, depth } = self;
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(Strict {
            meter: &mut *meter,
            depth: depth + 1,
        })? {
            if depth == 0 && array.len() >= meter.items_max {
                meter.pass(JsonReadError::Items(meter.items_max))?;
            }
            array.push(item);
        }
        // Releases the spare capacity of the array.
        array.shrink_to_fit();
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let Self { meter, depth } = self;
        meter.take(OBJECT_BYTES)?;
        let mut object = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!(
                    "the field {:?} is given twice",
                    clipped(&name)
                )));
            }
            meter.take(size_of::<String>() + name.len())?;
            object.insert(
                name,
                entries.next_value_seed(Strict {
                    meter: &mut *meter,
                    depth: depth + 1,
                })?,
            );
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &[u8]) -> Result<Value, Malformed> {
        match super::parse(text, JsonBudget::new(usize::MAX, usize::MAX, &mut |_| true)) {
            Ok(value) => Ok(value),
            Err(JsonReadError::Malformed(malformed)) => Err(malformed),
            Err(other) => panic!("{other}"),
        }
    }

    /// Parses a text under these bounds and returns the result with the memory that was asked for.
    fn bounded(
        text: &str,
        items_max: usize,
        bytes_max: usize,
        room: usize,
    ) -> (Result<Value, JsonReadError>, usize) {
        let mut requested = 0;
        let mut grant = |bytes: usize| {
            requested += bytes;
            requested <= room
        };
        let read = super::parse(
            text.as_bytes(),
            JsonBudget::new(items_max, bytes_max, &mut grant),
        );
        (read, requested)
    }

    #[test]
    fn reading_ends_where_a_bound_is_passed_and_not_behind_it() {
        let zeros = format!("[{}0]", "0,".repeat(1_000_000));
        let (read, requested) = bounded(&zeros, 10_000, usize::MAX, usize::MAX);
        assert_eq!(read, Err(JsonReadError::Items(10_000)));
        assert!(requested < 400_000, "{requested}");
        let nested = format!("[{zeros}]");
        let (read, requested) = bounded(&nested, 10_000, 1_000_000, usize::MAX);
        assert_eq!(read, Err(JsonReadError::Bytes(1_000_000)));
        assert!(requested <= 1_000_000, "{requested}");
        for short in ["[]", "{}", "[{\"a\":0}]", "[[]]", "{\"a\":{}}"] {
            let many = format!("[[{}]]", vec![short; 10_000].join(","));
            let (read, requested) = bounded(&many, 10_000, 16 * 1024 * 1024, 100_000);
            assert_eq!(read, Err(JsonReadError::NoRoom), "{short}");
            assert!(requested < 110_000, "{requested}");
        }
    }

    #[test]
    fn what_is_within_the_bounds_is_read_as_before() {
        let text = r#"[{"kind":"http","args":{"url":"http://a","list":[1,2.5,null,true,"x"]}},{}]"#;
        let (read, requested) = bounded(text, 2, 4096, 4096);
        assert_eq!(read.unwrap(), serde_json::from_str::<Value>(text).unwrap());
        assert!(requested > text.len());
        let value = serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(memory_of(&value), requested);
        assert_eq!(text_len(&value), value.to_string().len());
        // Broken JSON is reported as such, even beyond the bounds.
        assert!(matches!(
            bounded("[1,", 2, 4096, 4096).0,
            Err(JsonReadError::Malformed(_))
        ));
    }

    #[test]
    fn a_broken_text_is_refused_with_its_line_and_column() {
        let error = parse(b"{\n  \"kind\": \"http\",\n  \"args\": {,}\n}").unwrap_err();
        assert_eq!((error.line, error.column), (3, 12));
        assert!(error.to_string().contains("line 3, column 12"), "{error}");
    }

    #[test]
    fn nan_empty_bodies_single_quotes_and_overflows_are_explained() {
        assert!(
            parse(b"{\"cost\":NaN}")
                .unwrap_err()
                .to_string()
                .contains("no NaN")
        );
        assert!(
            parse(b"{\"cost\":\n Infinity}")
                .unwrap_err()
                .to_string()
                .contains("no infinity")
        );
        assert!(
            parse(b"  ")
                .unwrap_err()
                .to_string()
                .contains("the body is empty")
        );
        assert!(
            parse(b"{'kind':1}")
                .unwrap_err()
                .to_string()
                .contains("double quotes")
        );
        assert!(
            parse(b"{\"cost\":1e999}")
                .unwrap_err()
                .to_string()
                .contains("out of range")
        );
        assert!(parse(b"{\"a\":\"\xff\"}").is_err());
        assert!(
            parse(b"{} {}")
                .unwrap_err()
                .to_string()
                .contains("trailing")
        );
    }

    #[test]
    fn an_integer_that_would_be_rounded_is_refused_unless_it_may_be() {
        let text = r#"{"args": {"id": 123456789012345678901}}"#;
        let Err(JsonReadError::LongInteger(found)) = bounded(text, 9, 4096, 4096).0 else {
            panic!("{text}");
        };
        assert_eq!(found.pointer, "/args/id");
        let mut grant = |_: usize| true;
        let rounding = JsonBudget::new(9, 4096, &mut grant).rounding();
        let rounded = super::parse(text.as_bytes(), rounding).unwrap();
        assert_eq!(rounded, serde_json::from_str::<Value>(text).unwrap());
        for exact in [
            "[18446744073709551615]",
            "[-9223372036854775808]",
            "[1e20]",
            "[100000000000000000000]",
            "[0.1]",
        ] {
            assert!(bounded(exact, 9, 4096, 4096).0.is_ok(), "{exact}");
        }
    }

    #[test]
    fn a_field_given_twice_is_refused_because_one_would_be_lost() {
        assert!(
            parse(br#"{"a":{"b":1,"b":2}}"#)
                .unwrap_err()
                .what
                .contains("\"b\" is given twice")
        );
    }

    #[test]
    fn a_text_nested_without_end_is_refused_and_does_not_overflow_the_stack() {
        assert!(
            parse("[".repeat(1_000_000).as_bytes())
                .unwrap_err()
                .what
                .contains("recursion limit")
        );
    }

    #[test]
    fn refusals_are_as_pinned() {
        let cases = [
            "",
            "  ",
            "{,}",
            "{'kind':1}",
            "{\"cost\":NaN}",
            "{\"cost\":\n Infinity}",
            "{\"cost\":1e999}",
            "{} {}",
            "{\"a\":{\"b\":1,\"b\":2}}",
            "[1,",
        ];
        crate::input::pinned::check(
            "json",
            cases.map(|text| {
                let error = parse(text.as_bytes()).unwrap_err();
                (format!("{text:?}"), vec![error.to_string()])
            }),
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut grant = |_: usize| true;
            let budget = JsonBudget::new(usize::MAX, usize::MAX, &mut grant).rounding();
            let strict = super::parse(&bytes, budget);
            let lax: Result<Value, _> = serde_json::from_slice(&bytes);
            if let Ok(value) = strict {
                prop_assert_eq!(value, lax.unwrap());
            }
        }
    }
}
