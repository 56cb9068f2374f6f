//! The length of JSON in the form in which Postgres writes it.

use serde_json::{Number, Value};

/// Returns the number of bytes of a value as Postgres writes it, or a few more.
///
/// It writes a space after each comma and colon, and numbers without an exponent.
pub(super) fn text_bytes(value: &Value) -> usize {
    match value {
        Value::Object(fields) => {
            let each = fields
                .iter()
                .map(|(name, value)| string_bytes(name) + text_bytes(value) + 4);
            2 + each.sum::<usize>()
        }
        Value::Array(items) => 2 + items.iter().map(|item| text_bytes(item) + 2).sum::<usize>(),
        Value::String(text) => string_bytes(text),
        Value::Number(number) => number_bytes(number),
        Value::Null | Value::Bool(_) => 5,
    }
}

fn string_bytes(text: &str) -> usize {
    let each = text.chars().map(|char| match char {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..' ' => 6,
        char => char.len_utf8(),
    });
    2 + each.sum::<usize>()
}

fn number_bytes(number: &Number) -> usize {
    let text = number.to_string();
    let exponent = text.split_once(['e', 'E']).and_then(|(_, exponent)| {
        let exponent: i64 = exponent.parse().ok()?;
        usize::try_from(exponent.unsigned_abs()).ok()
    });
    text.len() + exponent.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_text_of_postgres_is_longer() {
        for (value, text) in [
            (json!(null), "null"),
            (json!([1, true, false]), "[1, true, false]"),
            (json!({"a": {}, "b": []}), r#"{"a": {}, "b": []}"#),
            (json!("a\"\\\n\u{1}ü😀"), r#""a\"\\\n\u0001ü😀""#),
            (json!(1e20), "100000000000000000000"),
            (json!(-1.5e-7), "-0.00000015"),
            (json!(0.1), "0.1"),
        ] {
            let bytes = text_bytes(&value);
            assert!((text.len()..text.len() + 9).contains(&bytes), "{value}");
        }
    }
}
