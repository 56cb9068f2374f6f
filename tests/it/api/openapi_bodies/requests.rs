//! Requests that the document allows, with this server's own identifiers.

use serde_json::{Map, Value, json};

use super::draw::Draw;
use crate::support::contract::{Ask, Operation};

impl Draw<'_> {
    /// A request that the document allows, with this server's own identifiers.
    pub(super) fn ask(&mut self, operation: &Operation) -> Ask {
        let mut ask = Ask::default();
        for parameter in operation.parameters("path") {
            let name = parameter["name"].as_str().unwrap();
            let value = match (name, self.value(&parameter["schema"])) {
                ("name", _) if operation.path.contains("/pools/") => "mail".to_owned(),
                ("account", _) => "a1".to_owned(),
                ("name", _)
                    if operation.path.contains("/throttles/")
                        && !operation.id.starts_with("delete") =>
                {
                    of_throttle(&operation.id)
                }
                // Clients resolve dots as path segments, however they are encoded.
                (_, Value::String(text)) if [".", ".."].contains(&text.as_str()) => {
                    "dots".to_owned()
                }
                (_, Value::String(text)) => text,
                (_, other) => other.to_string(),
            };
            ask = ask.part(name, value);
        }
        let mut query = Vec::new();
        for parameter in operation.parameters("query") {
            let name = parameter["name"].as_str().unwrap();
            let value = self.value(&parameter["schema"]);
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            if (parameter["required"] == true || self.pick(2) == 0) && !STATEFUL.contains(&name) {
                query.push(format!("{name}={}", encoded(&text)));
            }
        }
        // A recipient has the form of its channel, and an end comes after its start.
        query.retain(|one| !one.starts_with("created_before=") && !one.starts_with("wait_s="));
        if operation.id == "check_recipient"
            || query.iter().any(|one| one.starts_with("recipient="))
        {
            let of_recipient = ["recipient=", "channel=", "to="];
            query.retain(|one| !of_recipient.iter().any(|name| one.starts_with(name)));
            query.extend([
                "channel=email".to_owned(),
                "recipient=a%40example.com".to_owned(),
            ]);
        }
        if operation.id == "preview_expression" {
            query = vec!["expression=%40daily".to_owned()];
        }
        ask.query = query.join("&");
        if let Some(schema) = operation.body() {
            let optional = operation.declared["requestBody"]["required"] == false;
            if !optional || self.pick(5) > 0 {
                let mut body = self.value(schema);
                settle(&mut body);
                let faults = self.contract.faults(schema, &body);
                assert!(faults.is_empty(), "{faults:?} {body}");
                ask = ask.json(body);
            }
        }
        ask
    }
}
/// Cursors, which only a response can provide, and JSON in a query, whose form is not in
/// the schema.
const STATEFUL: [&str; 5] = ["start", "after", "cursor", "args", "tags"];

fn of_throttle(operation: &str) -> String {
    if operation == "edit_throttle" {
        "edited"
    } else {
        "flow"
    }
    .to_owned()
}

/// Percent-encodes a text.
pub(super) fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Replaces the values that the document leaves open: known kinds, recipients in their channel's
/// form, time expressions, costs that the throttle accepts, the server's own cursors, and ordered
/// pairs.
fn settle(body: &mut Value) {
    if let Value::Array(items) = body {
        items.iter_mut().for_each(settle);
        return;
    }
    let Value::Object(body) = body else { return };
    // The jobs of a new group, and its callback; no number of a group is known beforehand.
    for name in ["callback", "jobs"] {
        if let Some(inner) = body.get_mut(name) {
            settle(inner);
        }
    }
    if body.contains_key("group") {
        body.insert("group".into(), Value::Null);
    }
    // Nor that of a job after which another one runs.
    if body.contains_key("kind") {
        body.remove("after");
        body.remove("after_failure");
    }
    let is_message = body.contains_key("channel");
    let has = |body: &Map<String, Value>, name: &str| {
        body.get(name).is_some_and(|value| !value.is_null())
    };
    // Profiles have addresses in the form of their channel, zones that exist, and hours that go
    // together.
    for (name, value) in [
        ("addresses", json!({"email": "a@example.com"})),
        ("device_time_zone", json!("Asia/Tokyo")),
        (
            "quiet_hours",
            json!({"sms": {"start": "22:00", "end": "08:00", "weekdays": ["sat"]}}),
        ),
        (
            "preferences",
            json!({"all": {"sms": false}, "categories": {"news": true}}),
        ),
    ] {
        if has(body, name) {
            body.insert(name.into(), value);
        }
    }
    if has(body, "time_zone") && !body.contains_key("expression") {
        body.insert("time_zone".into(), json!("Europe/Berlin"));
    }
    if let Some(Value::Array(all)) = body.get_mut("recipients")
        && !is_message
    {
        for (nth, one) in all.iter_mut().enumerate() {
            settle(one);
            one["id"] = json!(format!("user-{nth}"));
        }
    }
    if is_message {
        let to = match body["channel"].as_str().unwrap() {
            "email" => "a@example.com",
            "sms" => "+15550100",
            "webhook" => "https://example.com/",
            "push" => "token-of-a-device",
            _ => "@news",
        };
        // There is a pool for mails only.
        let is_batch = body.contains_key("recipients");
        if body.contains_key("to") || is_batch {
            body.insert("channel".into(), json!("email"));
            if is_batch {
                body.insert("recipients".into(), json!(["a@example.com"]));
            } else {
                body.insert("to".into(), json!("a@example.com"));
            }
            body.remove("provider");
            if body
                .get("body")
                .is_some_and(|text| !text.is_string() && !text.is_null())
            {
                body.insert("body".into(), json!("a text"));
            }
            // Valid template content is not part of the document.
            if has(body, "template") {
                body.insert("template".into(), json!("Hello"));
            }
            // Mails have subjects, and provider-specific fields are not checked here.
            body.remove("extra");
            let has_body = body
                .get("body")
                .and_then(Value::as_str)
                .is_some_and(|text| !text.is_empty());
            if !has(body, "template") && !has_body {
                body.insert("body".into(), json!("a text"));
            }
            // Only an inbox keeps data that no template takes.
            if !has(body, "template") {
                body.remove("data");
            }
            body.remove("from");
        } else {
            body.insert("recipient".into(), json!(to));
        }
    } else if body.contains_key("kind")
        && !body.contains_key("limit")
        && !body.contains_key("start")
    {
        body.insert("kind".into(), json!("anything"));
    }
    // Strings inside arguments cannot contain NUL, however deeply nested.
    for name in ["result", "checkpoint"] {
        if body.contains_key(name) {
            body.insert(name.into(), json!({"n": [1, "two"]}));
        }
    }
    if body.contains_key("args") {
        body.insert("args".into(), json!({"n": [1, "two"]}));
    }
    if body.contains_key("expression") {
        body.insert("expression".into(), json!("30 2 * * *"));
        body.remove("time_zone");
    }
    for name in ["cost", "tokens"] {
        if let Some(value) = body.get(name).and_then(Value::as_f64) {
            body.insert(name.into(), json!(value.min(1000.0)));
        }
    }
    if has(body, "kinds") {
        // A kind of workers elsewhere, and no wait for a job of it.
        body.insert("kinds".into(), json!(["render"]));
        body.insert("throttles".into(), json!(["flow"]));
        body.insert("wait_s".into(), json!(0));
    }
    if has(body, "wait_ms") {
        body.insert("wait_ms".into(), json!(5));
    }
    if has(body, "debounce") && has(body, "debounce_max") {
        body.insert("debounce".into(), json!(1));
    }
    for (low, high) in [
        ("created_after", "created_before"),
        ("died_after", "died_before"),
    ] {
        if has(body, low) && has(body, high) {
            body.insert(low.into(), json!("2020-01-01T00:00:00Z"));
        }
    }
    if has(body, "start") {
        body.remove("start");
    }
    if body.contains_key("parent") {
        body.insert("parent".into(), json!("flow"));
    }
    if has(body, "manual_until_ms") {
        body.insert("manual_until_ms".into(), json!(8_000_000_000_000_i64));
    }
    if has(body, "min") || has(body, "max") {
        body.insert("min".into(), json!(0.5));
        body.insert("max".into(), json!(2000.0));
    }
}
