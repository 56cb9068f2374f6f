//! Requests that are made from the document alone: those that it allows are not refused for their form, and those that break one of its
//! bounds are refused.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use reqwest::StatusCode;
use serde_json::{Map, Value, json};

use crate::support::contract::{Ask, Contract, Operation, contract};

/// Requests for each operation.
const EACH: usize = 25;

/// Draws values as a schema allows them. What is drawn is the same in each run.
struct Draw<'a> {
    contract: &'a Contract,
    runner: TestRunner,
    state: u64,
}

impl<'a> Draw<'a> {
    fn new(contract: &'a Contract) -> Self {
        Self {
            contract,
            runner: TestRunner::deterministic(),
            state: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Below `most`.
    fn pick(&mut self, most: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from(self.state >> 33).unwrap() % most
    }

    /// From 0 to 1, both ends more often than chance would have it.
    fn share(&mut self) -> f64 {
        match self.pick(6) {
            0 => 0.0,
            1 => 1.0,
            _ => self.pick(1_000_001) as f64 / 1e6,
        }
    }

    fn resolved(&self, schema: &Value) -> Value {
        let named = schema["$ref"]
            .as_str()
            .and_then(|name| self.contract.document.pointer(name.trim_start_matches('#')));
        named.unwrap_or(schema).clone()
    }

    /// A value that the schema allows.
    fn value(&mut self, schema: &Value) -> Value {
        let judge = self.contract.judge(schema);
        for _ in 0..400 {
            let value = self.candidate(schema);
            if judge.is_valid(&value) {
                return value;
            }
        }
        panic!("nothing was found that is allowed: {schema}")
    }

    /// A value of the right type, which may break what ties fields together.
    fn candidate(&mut self, schema: &Value) -> Value {
        let schema = &self.resolved(schema);
        if let Some(ways) = schema["anyOf"]
            .as_array()
            .filter(|ways| schema["type"].is_null() && ways[0]["$ref"].is_string())
        {
            let way = self.pick(ways.len());
            return self.candidate(&ways[way]);
        }
        if let Some(words) = schema["enum"].as_array() {
            return words[self.pick(words.len())].clone();
        }
        let kinds: Vec<&str> = match &schema["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
            _ => vec!["object", "string", "null"],
        };
        match kinds[self.pick(kinds.len())] {
            "null" => Value::Null,
            "boolean" => json!(self.pick(2) == 0),
            "integer" => {
                let (low, high) = (
                    schema["minimum"].as_i64().unwrap(),
                    schema["maximum"].as_i64().unwrap(),
                );
                json!(
                    low.saturating_add(((high as f64 - low as f64) * self.share()) as i64)
                        .min(high)
                )
            }
            "number" => self.number(schema),
            "string" => json!(self.text(schema)),
            "array" => (0..self.pick(4))
                .map(|_| self.candidate(&schema["items"]))
                .collect(),
            _ => self.object(schema),
        }
    }

    fn number(&mut self, schema: &Value) -> Value {
        let apart = schema["anyOf"]
            .as_array()
            .and_then(|ways| ways.iter().find_map(|way| way["enum"].as_array()));
        if let Some(apart) = apart.filter(|_| self.pick(4) == 0) {
            return apart[self.pick(apart.len())].clone();
        }
        let low = schema["minimum"]
            .as_f64()
            .or(schema["exclusiveMinimum"].as_f64().map(|low| low + 1e-3))
            .unwrap();
        // Most of a range of nine decades is in its last one.
        let share = self.share().powi(3);
        json!(low + (schema["maximum"].as_f64().unwrap() - low) * share)
    }

    fn text(&mut self, schema: &Value) -> String {
        if schema["format"] == "date-time" {
            let zones = ["Z", "+02:00", "-07:30"];
            return format!(
                "20{}-0{}-1{}T0{}:30:00{}",
                27 + self.pick(7),
                1 + self.pick(9),
                self.pick(10),
                self.pick(10),
                zones[self.pick(3)]
            );
        }
        let pattern = schema["pattern"].as_str().unwrap_or("^.*$");
        // What is not zero only was said by looking ahead.
        let plain = pattern
            .replace("(?!ff)", "")
            .replace("(?!0{32})", "")
            .replace("(?!0{16})", "");
        let inner = plain.trim_start_matches('^').trim_end_matches('$');
        let most = schema["maxLength"]
            .as_u64()
            .map_or(40, |most| usize::try_from(most).unwrap());
        let least = schema["minLength"]
            .as_u64()
            .map_or(0, |least| usize::try_from(least).unwrap());
        let drawn = proptest::string::string_regex(inner).unwrap();
        let mut text = drawn.new_tree(&mut self.runner).unwrap().current();
        while text.len() > most {
            text.pop();
        }
        if self.pick(8) == 0
            && most < 5000
            && !text.is_empty()
            && text.is_ascii()
            && inner.ends_with(['*', '+'])
        {
            text = text.chars().cycle().take(most).collect();
        }
        while text.len() < least {
            text.push('a');
        }
        text
    }

    fn object(&mut self, schema: &Value) -> Value {
        let required: Vec<&str> = schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let mut object = Map::new();
        let share = 1 + self.pick(4);
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            if required.contains(&name.as_str()) || self.pick(6) < share {
                object.insert(name.clone(), self.candidate(below));
            }
        }
        Value::Object(object)
    }

    /// A request that the document allows, with what this server has in place of what is only named.
    fn ask(&mut self, operation: &Operation) -> Ask {
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
                // Clients take dots for steps in the path, however they are written.
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
        // A recipient is what its channel makes of it, and an end lies behind its beginning.
        query.retain(|one| !one.starts_with("created_before="));
        if query.iter().any(|one| one.starts_with("recipient=")) {
            query.retain(|one| !one.starts_with("recipient=") && !one.starts_with("channel="));
            query.extend([
                "channel=email".to_owned(),
                "recipient=a%40example.com".to_owned(),
            ]);
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

/// Cursors, which only an answer can name.
const STATEFUL: [&str; 3] = ["start", "after", "cursor"];

fn of_throttle(operation: &str) -> String {
    if operation == "edit_throttle" {
        "edited"
    } else {
        "flow"
    }
    .to_owned()
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Puts what the document leaves to the server in place: kinds that it knows, recipients as their channel writes them, expressions of time,
/// costs that its throttle takes, cursors of its own, and pairs of which one may not be above the other.
fn settle(body: &mut Value) {
    if let Value::Array(items) = body {
        items.iter_mut().for_each(settle);
        return;
    }
    let Value::Object(body) = body else { return };
    let has = |body: &Map<String, Value>, name: &str| {
        body.get(name).is_some_and(|value| !value.is_null())
    };
    if body.contains_key("channel") {
        let to = match body["channel"].as_str().unwrap() {
            "email" => "a@example.com",
            "sms" => "+15550100",
            "webhook" => "https://example.com/",
            "push" => "token-of-a-device",
            _ => "@news",
        };
        // There is a pool for mails only.
        if body.contains_key("to") {
            body.insert("channel".into(), json!("email"));
            body.insert("to".into(), json!("a@example.com"));
            body.remove("provider");
            if body
                .get("body")
                .is_some_and(|text| !text.is_string() && !text.is_null())
            {
                body.insert("body".into(), json!("a text"));
            }
            // What a template may say is the template's own affair.
            if has(body, "template") {
                body.insert("template".into(), json!("Hello"));
            }
            // Mails have subjects, and whatever only a provider understands is its own affair.
            body.remove("extra");
            let has_body = body
                .get("body")
                .and_then(Value::as_str)
                .is_some_and(|text| !text.is_empty());
            if !has(body, "template") && !has_body {
                body.insert("body".into(), json!("a text"));
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
    // Texts within arguments cannot hold a NUL, however deep they are.
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

async fn opened() -> Contract {
    let contract = contract(false).await;
    for name in ["flow", "edited"] {
        let made = Ask::default()
            .part("name", name)
            .query("create=true")
            .json(json!({"rps": -1}));
        let (status, said) = contract
            .ask(&contract.operation("edit_throttle"), &made)
            .await;
        assert_eq!(status, 200, "{said}");
    }
    contract
}

#[tokio::test]
async fn a_request_that_the_document_allows_is_not_refused_for_its_form() {
    let contract = opened().await;
    let mut draw = Draw::new(&contract);
    let (mut asked, mut taken) = (0, 0);
    for operation in contract.operations() {
        if ["stream_events", "tell_provider_events"].contains(&operation.id.as_str()) {
            continue;
        }
        let is_plain = operation.declared["parameters"].is_null() && operation.body().is_none();
        for _ in 0..if is_plain { 1 } else { EACH } {
            let ask = draw.ask(&operation);
            let (status, said) = contract.ask(&operation, &ask).await;
            assert!(
                ![400, 415, 422].contains(&status),
                "{} {ask:?}: {status} {said}",
                operation.id
            );
            asked += 1;
            taken += usize::from(status < 300);
        }
    }
    assert!(
        asked > 1000 && taken > 600,
        "{asked} were sent and {taken} taken"
    );
}

/// Values of a field that its schema forbids.
fn broken(schema: &Value) -> Vec<Value> {
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
        // Between the value with a meaning of its own and the range.
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

#[tokio::test]
async fn a_request_that_breaks_one_bound_of_the_document_is_refused() {
    let contract = opened().await;
    let mut draw = Draw::new(&contract);
    let mut asked = 0;
    for operation in contract.operations() {
        let Some(schema) = operation.body() else {
            continue;
        };
        let is_list = schema["type"] == "array";
        let of_one = if is_list {
            &schema["items"]
        } else {
            schema.pointer("/anyOf/0").unwrap_or(schema)
        };
        let of_one = draw.resolved(of_one);
        let required: Vec<&str> = of_one["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let mut wrong: Vec<(String, Value)> =
            vec![("a field that is none".into(), json!({"nonsense": 1}))];
        for (name, limits) in of_one["properties"].as_object().unwrap() {
            wrong.extend(
                broken(limits)
                    .into_iter()
                    .map(|value| (name.clone(), json!({name: value}))),
            );
        }
        let example = operation
            .declared
            .pointer("/requestBody/content/application~1json/example")
            .unwrap();
        let good = if is_list {
            example[0].clone()
        } else {
            example.clone()
        };
        let mut bodies: Vec<(String, Value)> = wrong
            .into_iter()
            .map(|(name, more)| {
                let mut body = good.clone();
                body.as_object_mut()
                    .unwrap()
                    .extend(more.as_object().unwrap().clone());
                (name, body)
            })
            .collect();
        for name in required {
            let mut body = good.clone();
            body.as_object_mut().unwrap().remove(name);
            bodies.push((format!("{name} is missing"), body));
        }
        for (name, mut body) in bodies {
            if body["kind"] == "http" {
                body["kind"] = json!("anything");
            }
            let whole = if is_list { json!([body]) } else { body };
            assert!(
                !contract.judge(schema).is_valid(&whole),
                "{} {name}: the document allows {whole}",
                operation.id
            );
            let mut ask = Ask {
                query: String::new(),
                ..draw.ask(&operation)
            }
            .json(whole.clone());
            ask.parts
                .iter_mut()
                .filter(|(part, _)| part == "id")
                .for_each(|(_, id)| *id = "7".to_owned());
            let (status, said) = contract.ask(&operation, &ask).await;
            assert_eq!(
                status,
                StatusCode::UNPROCESSABLE_ENTITY,
                "{} {name}: {whole} was answered {said}",
                operation.id
            );
            asked += 1;
        }
    }
    assert!(asked > 300, "{asked}");
}

#[tokio::test]
async fn a_parameter_that_breaks_its_bound_is_refused() {
    let contract = opened().await;
    let mut draw = Draw::new(&contract);
    let mut asked = 0;
    for operation in contract.operations() {
        for parameter in operation.parameters("query") {
            let name = parameter["name"].as_str().unwrap();
            let is_text = |value: &Value| matches!(value, Value::String(_) | Value::Number(_));
            let mut wrong: Vec<Value> = broken(&parameter["schema"])
                .into_iter()
                .filter(is_text)
                .collect();
            if parameter["schema"]["type"] != "string"
                || parameter["schema"].get("enum").is_some()
                || parameter["schema"].get("format").is_some()
            {
                wrong.push(json!(""));
            }
            for value in wrong {
                let text = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                let good = Ask {
                    body: None,
                    ..draw.ask(&operation)
                };
                let needed = if operation.id == "unsuppress" && name != "recipient" {
                    "recipient=a%40example.com&"
                } else {
                    ""
                };
                let ask = Ask {
                    query: format!("{needed}{name}={}", encoded(&text)),
                    ..good
                };
                let ask = if operation.body().is_some() {
                    ask.json(json!({}))
                } else {
                    ask
                };
                let (status, said) = contract.ask(&operation, &ask).await;
                assert_eq!(
                    (status, &said["code"]),
                    (400, &json!("invalid_query")),
                    "{} {name}={text:?}: {said}",
                    operation.id
                );
                asked += 1;
            }
        }
    }
    assert!(asked > 100, "{asked}");
}
