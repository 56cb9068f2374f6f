//! Integers of a JSON text that have no exact value: those of more than 64 bits become floats.

use crate::input::pointer;
use crate::input::wording::clipped;

/// An integer that would be rounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongInteger {
    /// Its JSON pointer.
    pub pointer: String,
    /// Its text.
    pub text: String,
}

impl LongInteger {
    /// Returns the problem, and the allowed values.
    pub fn refusal(&self) -> String {
        let text = clipped(&self.text);
        format!(
            "is {text}, which would be rounded; allowed: integers of at most 64 bits, and larger ones as texts"
        )
    }
}

/// A container, with the place in it.
enum JsonPlace {
    Index(usize),
    Name(String),
}

/// Returns the first integer of more than 64 bits of a text that is valid JSON.
pub fn first_long_integer(text: &[u8]) -> Option<LongInteger> {
    let mut places: Vec<JsonPlace> = Vec::new();
    let (mut is_name_next, mut at) = (false, 0);
    while let Some(byte) = text.get(at) {
        let rest = text.get(at..).unwrap_or_default();
        let length = match byte {
            b'"' => string_length(rest),
            b'-' | b'0'..=b'9' => number_length(rest),
            _ => 1,
        };
        let token = rest.get(..length).unwrap_or(rest);
        match byte {
            b'{' => {
                places.push(JsonPlace::Name(String::new()));
                is_name_next = true;
            }
            b'[' => places.push(JsonPlace::Index(0)),
            b'}' | b']' => {
                places.pop();
            }
            b',' => match places.last_mut() {
                Some(JsonPlace::Index(index)) => *index += 1,
                Some(JsonPlace::Name(_)) => is_name_next = true,
                None => {}
            },
            b'"' if is_name_next => {
                is_name_next = false;
                if let Some(JsonPlace::Name(name)) = places.last_mut() {
                    *name = serde_json::from_slice(token).unwrap_or_default();
                }
            }
            b'-' | b'0'..=b'9' if is_long(token) => {
                return Some(LongInteger {
                    pointer: places.iter().fold(String::new(), below),
                    text: String::from_utf8_lossy(token).into_owned(),
                });
            }
            _ => {}
        }
        at += length;
    }
    None
}

fn below(at: String, place: &JsonPlace) -> String {
    match place {
        JsonPlace::Index(index) => pointer(&at, &index.to_string()),
        JsonPlace::Name(name) => pointer(&at, name),
    }
}

/// Returns the length of the string at the beginning, with its quotes.
fn string_length(text: &[u8]) -> usize {
    let mut is_escaped = false;
    let end = text.iter().skip(1).position(|byte| {
        let ends = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 2)
}

/// Returns the length of the number at the beginning.
fn number_length(text: &[u8]) -> usize {
    let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    text.iter()
        .position(|byte| !is_part(byte))
        .unwrap_or(text.len())
}

/// Returns true for an integer that neither 64 bits with a sign nor without one hold, and that is
/// not the text of a float.
fn is_long(number: &[u8]) -> bool {
    let text = std::str::from_utf8(number).unwrap_or_default();
    let is_whole = !text.contains(['.', 'e', 'E']);
    let is_short = text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok();
    is_whole && !is_short && !is_float(text)
}

/// Returns true if a float has all digits of an integer: JavaScript and Go write floats below 1e21
/// without an exponent, so 1e20 comes as 100000000000000000000.
fn is_float(integer: &str) -> bool {
    let float = integer.parse::<f64>();
    float.is_ok_and(|float| float.to_string() == integer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_integer_of_more_than_64_bits_is_found_with_its_pointer() {
        let cases = [
            (
                r#"{"a": 18446744073709551616}"#,
                "/a",
                "18446744073709551616",
            ),
            (
                r#"[1, [-9223372036854775809]]"#,
                "/1/0",
                "-9223372036854775809",
            ),
            (
                r#"{"x,\"{": [{"y": "[9"}, {"a/b": [1e30, 99999999999999999999]}]}"#,
                "/x,\"{/1/a~1b/1",
                "99999999999999999999",
            ),
            (
                r#"{"a": {"b": {}}, "c": 100000000000000000001}"#,
                "/c",
                "100000000000000000001",
            ),
            ("99999999999999999999", "", "99999999999999999999"),
        ];
        for (text, pointer, number) in cases {
            let found = first_long_integer(text.as_bytes()).unwrap();
            assert_eq!(
                (found.pointer.as_str(), found.text.as_str()),
                (pointer, number)
            );
        }
        for text in [
            "18446744073709551615",
            "[-9223372036854775808, 1e300, 123456789012345678901234567890.5]",
            r#"{"99999999999999999999": "99999999999999999999 \" 99999999999999999999"}"#,
            r#"["\\", 1]"#,
            // Floats as JavaScript writes 1e20, 2 to the power of 69, and -1.5e20.
            "[100000000000000000000, 590295810358705700000, -150000000000000000000]",
        ] {
            assert_eq!(first_long_integer(text.as_bytes()), None, "{text}");
        }
    }
}
