//! The identifier of an operation of the OpenAPI document.

use serde_json::{Map, Value};

/// Returns the identifier of an operation.
pub(super) fn id_of(operation: &Map<String, Value>) -> &str {
    operation
        .get("operationId")
        .and_then(Value::as_str)
        .unwrap_or_default()
}
