//! Requests generated from the document: valid ones are never rejected for their form, and those
//! that violate one bound are rejected.

mod broken;
mod draw;
mod requests;

use reqwest::StatusCode;
use serde_json::{Value, json};

use self::broken::broken;
use self::draw::Draw;
use self::requests::encoded;
use crate::support::contract::{Ask, Contract, contract};

/// The number of requests for each operation.
const EACH: usize = 25;

async fn opened() -> Contract {
    let contract = contract(false).await;
    for name in ["flow", "edited"] {
        let made = Ask::default()
            .part("name", name)
            .query("create=true")
            .json(json!({"rps": -1}));
        let (status, answer) = contract
            .ask(&contract.operation("edit_throttle"), &made)
            .await;
        assert_eq!(status, 200, "{answer}");
    }
    contract
}

#[tokio::test]
async fn a_request_that_the_document_allows_is_not_refused_for_its_form() {
    let contract = opened().await;
    let mut draw = Draw::new(&contract);
    let (mut requests, mut taken) = (0, 0);
    for operation in contract.operations() {
        // Streams, a signature, an upgrade and tickets cannot be drawn.
        let others = [
            "stream_events",
            "stream_channel",
            "open_connection",
            "receive_provider_events",
        ];
        if others.contains(&operation.id.as_str()) {
            continue;
        }
        let is_plain = operation.declared["parameters"].is_null() && operation.body().is_none();
        for _ in 0..if is_plain { 1 } else { EACH } {
            let ask = draw.ask(&operation);
            let (status, answer) = contract.ask(&operation, &ask).await;
            assert!(
                ![400, 415, 422].contains(&status),
                "{} {ask:?}: {status} {answer}",
                operation.id
            );
            requests += 1;
            taken += usize::from(status < 300);
        }
    }
    assert!(
        requests > 1000 && taken > 600,
        "{requests} were sent and {taken} taken"
    );
}

#[tokio::test]
async fn a_request_that_breaks_one_bound_of_the_document_is_refused() {
    let contract = opened().await;
    let mut draw = Draw::new(&contract);
    let mut requests = 0;
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
            let (status, answer) = contract.ask(&operation, &ask).await;
            assert_eq!(
                status,
                StatusCode::UNPROCESSABLE_ENTITY,
                "{} {name}: {whole} was answered {answer}",
                operation.id
            );
            requests += 1;
        }
    }
    assert!(requests > 300, "{requests}");
}

#[tokio::test]
async fn a_parameter_that_breaks_its_bound_is_refused() {
    let contract = opened().await;
    let mut draw = Draw::new(&contract);
    let mut requests = 0;
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
                let what = format!("{name}={text:?}");
                contract
                    .refuses(&operation, &ask, "invalid_query", &what)
                    .await;
                requests += 1;
            }
        }
    }
    assert!(requests > 100, "{requests}");
}
