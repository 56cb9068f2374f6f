//! `/openapi.json`: OpenAPI 3.1, generated from the declarations of the routes.
//!
//! The declarations hold types and descriptions. The limits of values come from the constants with
//! which requests are read ([`super::bounds`]), and the errors from the codes of problems
//! ([`super::problems`]).

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use utoipa::PartialSchema as _;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Info, License, OpenApi};

use super::operation_id::id_of;
use super::{bounds, examples, problems};
use crate::api::http::problem::ProblemBody;

/// The methods of an item of the document.
pub(super) const METHODS: [&str; 5] = ["get", "put", "post", "patch", "delete"];

/// The schemas that no operation names: the events of the stream.
const OF_THE_STREAM: [&str; 4] = ["Tick", "Decision", "FailedAttempt", "AuditEntry"];

/// The bodies that equal another one without a field: the new name, the other, the field, and the
/// operation that takes it.
const WITHOUT: [(&str, &str, &str, &str); 2] = [
    ("Peek", "AcquireBody", "wait_ms", "peek_tokens"),
    ("DeadDiscard", "DeadMany", "keep_attempts", "discard_dead"),
];

/// The text of the document, which is made when it is first asked for: few processes ever are.
#[derive(Clone)]
pub struct ApiDocument(Arc<LazyLock<String, MakeText>>);

type MakeText = Box<dyn FnOnce() -> String + Send>;

impl ApiDocument {
    /// Prepares the document of these declarations; `has_tokens` is true if this server requires a
    /// token.
    pub fn new(declared: OpenApi, has_tokens: bool) -> Self {
        let make: MakeText = Box::new(move || document(declared, has_tokens).to_string());
        Self(Arc::new(LazyLock::new(make)))
    }
}

/// Shows this document.
#[utoipa::path(get, path = "/openapi.json", operation_id = "show_openapi", tag = "meta",
    responses((status = 200, body = Object, description = "OpenAPI 3.1.")))]
pub async fn show(State(document): State<ApiDocument>) -> Response {
    (
        [(CONTENT_TYPE, "application/json")],
        String::clone(&document.0),
    )
        .into_response()
}

/// Completes the declarations of the routes; `has_tokens` is true if this server requires a token.
pub fn document(mut api: OpenApi, has_tokens: bool) -> Value {
    let mut info = Info::new("Flyball", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "Background jobs that go as fast as the systems they touch can bear, and no faster. Errors are RFC 9457 problems that list every wrong field."
            .to_owned(),
    );
    let mut license = License::new("MIT OR Apache-2.0");
    license.identifier = Some("MIT OR Apache-2.0".to_owned());
    info.license = Some(license);
    api.info = info;
    let components = api.components.get_or_insert_default();
    for (name, schema) in [
        ("Problem", ProblemBody::schema()),
        ("FieldError", crate::api::http::fields::FieldError::schema()),
        (
            "FieldLocation",
            crate::api::http::fields::FieldLocation::schema(),
        ),
        ("Tick", crate::api::stream::live::Tick::schema()),
        (
            "TickThrottle",
            crate::api::stream::live::TickThrottle::schema(),
        ),
        (
            "TickReplica",
            crate::api::stream::live::TickReplica::schema(),
        ),
        ("TickSignal", crate::api::stream::live::TickSignal::schema()),
    ] {
        components.schemas.insert(name.to_owned(), schema);
    }
    if has_tokens {
        components.add_security_scheme(
            "token",
            SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)),
        );
        api.security = Some(vec![SecurityRequirement::new::<_, [&str; 0], &str>(
            "token",
            [],
        )]);
    }
    let mut document = serde_json::to_value(&api).unwrap_or_default();
    document["servers"] = json!([{ "url": "/", "description": "This server." }]);
    flatten(&mut document);
    part(&mut document);
    bounds::apply(&mut document);
    for (path, method, operation) in operations(&mut document) {
        if !has_tokens {
            operation.remove("security");
        }
        describe_answers(operation);
        bounds::apply_to_operation(operation);
        problems::apply(&path, &method, operation, has_tokens);
        examples::apply(operation);
    }
    prune(&mut document);
    document
}

/// Returns every operation with its path and method.
pub(super) fn operations(document: &mut Value) -> Vec<(String, String, &mut Map<String, Value>)> {
    let Some(paths) = document.get_mut("paths").and_then(Value::as_object_mut) else {
        return Vec::new();
    };
    paths
        .iter_mut()
        .filter_map(|(path, item)| Some((path, item.as_object_mut()?)))
        .flat_map(|(path, item)| {
            item.iter_mut()
                .map(move |(method, operation)| (path.clone(), method.clone(), operation))
        })
        .filter(|(_, method, _)| METHODS.contains(&method.as_str()))
        .filter_map(|(path, method, operation)| Some((path, method, operation.as_object_mut()?)))
        .collect()
}

/// Flattens each schema that is composed of others, because an object that allows no field but its
/// own cannot be a part of one that has more.
fn flatten(document: &mut Value) {
    let Some(schemas) = document
        .pointer_mut("/components/schemas")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    let all = schemas.clone();
    for schema in schemas
        .values_mut()
        .filter(|schema| schema.get("allOf").is_some())
    {
        let flat = flat(schema, &all);
        *schema = flat;
    }
}

fn flat(schema: &Value, all: &Map<String, Value>) -> Value {
    let named = schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|name| all.get(name.rsplit('/').next()?));
    let schema = named.unwrap_or(schema);
    let Some(parts) = schema.get("allOf").and_then(Value::as_array) else {
        return schema.clone();
    };
    let mut whole = schema.as_object().cloned().unwrap_or_default();
    whole.remove("allOf");
    whole.insert("type".to_owned(), json!("object"));
    let (mut properties, mut required) = (Map::new(), BTreeSet::new());
    for part in parts.iter().map(|part| flat(part, all)) {
        properties.extend(
            part.get("properties")
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default(),
        );
        let names = part
            .get("required")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        required.extend(
            names
                .into_iter()
                .filter_map(|name| name.as_str().map(str::to_owned)),
        );
    }
    whole.insert("properties".to_owned(), Value::Object(properties));
    whole.insert("required".to_owned(), json!(required));
    Value::Object(whole)
}

/// Gives operations with fewer fields than others their own body schema.
fn part(document: &mut Value) {
    for (name, other, field, operation) in WITHOUT {
        let Some(schemas) = document
            .pointer_mut("/components/schemas")
            .and_then(Value::as_object_mut)
        else {
            return;
        };
        let Some(mut schema) = schemas.get(other).cloned() else {
            continue;
        };
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.remove(field);
        }
        schemas.insert(name.to_owned(), schema);
        for (_, _, found) in operations(document)
            .into_iter()
            .filter(|(_, _, found)| id_of(found) == operation)
        {
            if let Some(body) = found
                .get_mut("requestBody")
                .and_then(|body| body.pointer_mut("/content/application~1json"))
            {
                body["schema"] = json!({ "$ref": format!("#/components/schemas/{name}") });
            }
        }
    }
}

/// Describes every answer, as OpenAPI requires; an answer without a description gets the summary of
/// its operation.
fn describe_answers(operation: &mut Map<String, Value>) {
    let summary = operation.get("summary").cloned().unwrap_or_default();
    let answers = operation
        .get_mut("responses")
        .and_then(Value::as_object_mut);
    for answer in answers.into_iter().flat_map(|answers| answers.values_mut()) {
        if answer["description"].as_str().is_none_or(str::is_empty) {
            answer["description"] = summary.clone();
        }
    }
}

/// Removes the schemas that are not referenced.
fn prune(document: &mut Value) {
    let mut known: BTreeSet<String> = OF_THE_STREAM.map(str::to_owned).into();
    references(&document["paths"], &mut known);
    let Some(schemas) = document
        .pointer_mut("/components/schemas")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    loop {
        let mut more = known.clone();
        for name in &known {
            schemas
                .get(name)
                .into_iter()
                .for_each(|schema| references(schema, &mut more));
        }
        if more.len() == known.len() {
            break;
        }
        known = more;
    }
    schemas.retain(|name, _| known.contains(name));
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Object(map) => {
            for (name, item) in map {
                match item
                    .as_str()
                    .filter(|_| name == "$ref")
                    .and_then(|text| text.rsplit('/').next())
                {
                    Some(name) => drop(found.insert(name.to_owned())),
                    None => references(item, found),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
