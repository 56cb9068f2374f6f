//! Values that violate one bound of a JSON schema.

use serde_json::{Value, json};

/// Returns values of a field that its schema forbids.
pub(super) fn broken(schema: &Value) -> Vec<Value> {
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
        _ => return Vec::new(),
    };
    let mut wrong = Vec::new();
    if !kinds.contains(&"object") {
        wrong.push(json!({}));
    }
    if !kinds.contains(&"null") {
        wrong.push(Value::Null);
    }
    if !kinds.contains(&"boolean") {
        wrong.push(json!([true]));
    }
    let whole = kinds.contains(&"integer");
    if whole {
        wrong.push(json!(schema["minimum"].as_i64().unwrap() as f64 + 0.5));
    }
    if let Some(most) = schema["maximum"].as_f64() {
        wrong.push(if whole && most < 9e15 {
            json!(most as i64 + 1)
        } else {
            json!(most * 1.001 + 1.0)
        });
    }
    if let Some(least) = schema["minimum"].as_f64() {
        wrong.push(if whole {
            json!(least as i64 - 1)
        } else {
            json!(least - 1e-7_f64.max(least.abs() / 10.0))
        });
    }
    if let Some(least) = schema["exclusiveMinimum"].as_f64() {
        wrong.push(json!(least));
    }
    if let Some(apart) = schema["anyOf"].as_array() {
        // Between the sentinel value and the range.
        let low = apart
            .iter()
            .find_map(|way| way["minimum"].as_f64())
            .unwrap();
        wrong.push(json!(low / 10.0));
    }
    if let Some(most) = schema["maxLength"].as_u64() {
        wrong.push(json!("a".repeat(usize::try_from(most).unwrap() + 1)));
    }
    if schema["minLength"] == 1 {
        wrong.push(json!(""));
    }
    if schema["enum"].is_array() {
        wrong.push(json!("no such word"));
    }
    if schema["format"] == "date-time" {
        wrong.push(json!("tomorrow"));
    }
    if kinds.contains(&"string")
        && schema["pattern"]
            .as_str()
            .is_some_and(|pattern| pattern.contains("\\u0000"))
    {
        wrong.push(json!("a\u{0}b"));
    }
    wrong
}
