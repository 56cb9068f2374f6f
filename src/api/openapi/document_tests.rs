use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::api::router::api;

fn documents() -> [Value; 2] {
    [false, true].map(|has_tokens| document(api().into_openapi(), has_tokens))
}

/// Collects the names that the sources give to schemas, each with the types that have it.
fn schema_names(folder: &Path, found: &mut BTreeMap<String, Vec<String>>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            schema_names(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            // A long list of derives spans several lines.
            let text = text
                .replace("ToSchema,\n)]", "ToSchema)]")
                .replace("ToSchema))]", "ToSchema)]");
            for rest in text.split("ToSchema)]").skip(1) {
                let declared = |line: &&str| {
                    [" struct ", " enum "]
                        .iter()
                        .any(|word| line.contains(word))
                        && line.starts_with("pub")
                };
                let Some(line) = rest.lines().find(declared) else {
                    continue;
                };
                let before: String = rest.lines().take_while(|other| other != &line).collect();
                let of_type = line
                    .split([' ', '{', '(', '<', ';'])
                    .filter(|word| !word.is_empty());
                let of_type = of_type
                    .skip_while(|word| !["struct", "enum"].contains(word))
                    .nth(1)
                    .unwrap();
                let renamed = before
                    .split("as = ")
                    .nth(1)
                    .and_then(|rest| rest.split([')', ',']).next());
                found
                    .entry(renamed.unwrap_or(of_type).to_owned())
                    .or_default()
                    .push(format!("{of_type} in {}", path.display()));
            }
        }
    }
}

#[test]
fn no_two_types_have_one_name_in_the_document() {
    let mut found = BTreeMap::new();
    for folder in ["core/src", "src"] {
        schema_names(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join(folder),
            &mut found,
        );
    }

    assert!(
        found.len() > 70,
        "the sources are read no longer: {}",
        found.len()
    );
    for (name, types) in &found {
        assert_eq!(
            types.len(),
            1,
            "the schema {name} is defined by {types:?}; rename one of them, or one overwrites the other"
        );
    }
    let [document, _] = documents();
    let made: Vec<&str> = WITHOUT.iter().map(|(name, ..)| *name).collect();
    for name in document["components"]["schemas"]
        .as_object()
        .unwrap()
        .keys()
    {
        assert_ne!(
            found.contains_key(name),
            made.contains(&name.as_str()),
            "{name} is the name of one type, or made here"
        );
    }
}

/// Collects every schema below a value, with a pointer to it.
fn schemas<'a>(value: &'a Value, at: &str, found: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(map) => {
            if map.contains_key("type") && !at.ends_with("/properties") && !at.ends_with("example")
            {
                found.push((at.to_owned(), value));
            }
            map.iter()
                .filter(|(name, _)| *name != "example")
                .for_each(|(name, below)| schemas(below, &format!("{at}/{name}"), found));
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(i, item)| schemas(item, &format!("{at}/{i}"), found)),
        _ => {}
    }
}

fn is_kind(schema: &Value, kind: &str) -> bool {
    schema["type"] == kind
        || schema["type"]
            .as_array()
            .is_some_and(|kinds| kinds.iter().any(|one| one == kind))
}

#[test]
fn every_number_of_the_document_has_its_bounds() {
    let [document, _] = documents();
    let mut found = Vec::new();
    schemas(&document["components"]["schemas"], "", &mut found);
    schemas(&document["paths"], "/paths", &mut found);
    let figures = found
        .iter()
        .filter(|(_, schema)| is_kind(schema, "integer") || is_kind(schema, "number"));
    let is_bounded = |schema: &Value| {
        ["minimum", "exclusiveMinimum"]
            .iter()
            .any(|word| schema.get(*word).is_some())
    };
    let anything = |at: &str| {
        bounds::ANYTHING
            .iter()
            .any(|(name, field)| at == format!("/{name}/properties/{field}"))
    };
    let (mut all, mut loose) = (0, Vec::new());
    for (at, schema) in figures {
        all += 1;
        assert!(!(is_bounded(schema) && anything(at)), "{at} has bounds");
        if !is_bounded(schema) && !anything(at) {
            loose.push(at);
        }
    }
    assert!(all > 100, "{all}");
    assert!(loose.is_empty(), "{loose:#?}");
}

#[test]
fn whatever_is_sent_has_its_bounds_at_both_ends_and_is_closed() {
    let [mut document, _] = documents();
    let mut names = Vec::new();
    for (_, _, operation) in operations(&mut document) {
        let id = id_of(operation).to_owned();
        for parameter in operation
            .get("parameters")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let schema = &parameter["schema"];
            assert!(
                schema["type"] != "integer" || schema["maximum"].is_number(),
                "{id} {parameter}"
            );
            let is_limited = ["maxLength", "enum", "format", "pattern"]
                .iter()
                .any(|word| schema.get(*word).is_some());
            assert!(
                schema["type"] != "string" || is_limited || parameter["in"] == "header",
                "{id} {parameter}"
            );
        }
        let Some(schema) = operation
            .get("requestBody")
            .and_then(|body| body.pointer("/content/application~1json/schema"))
        else {
            continue;
        };
        let schema = if schema["type"] == "array" {
            &schema["items"]
        } else {
            schema
        };
        let schema = schema.pointer("/anyOf/0").unwrap_or(schema);
        names.push(
            schema["$ref"]
                .as_str()
                .unwrap()
                .rsplit('/')
                .next()
                .unwrap()
                .to_owned(),
        );
    }
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let schema = &document["components"]["schemas"][&name];
        assert_eq!(schema["additionalProperties"], false, "{name}");
        for (field, limits) in schema["properties"].as_object().unwrap() {
            let is_figure = is_kind(limits, "integer") || is_kind(limits, "number");
            assert!(
                !is_figure || limits["maximum"].is_number(),
                "{name} {field}: {limits}"
            );
            let is_text = is_kind(limits, "string");
            let is_limited = ["maxLength", "enum", "format", "pattern"]
                .iter()
                .any(|word| limits.get(*word).is_some());
            assert!(
                !is_text || is_limited || field == "template",
                "{name} {field}: {limits}"
            );
            assert!(
                limits["description"].is_string(),
                "{name} {field} is known to the readers and not to the type, or is described nowhere"
            );
        }
    }
}

/// Checks that no schema has parts, because a closed object cannot be a part of one that has more
/// fields.
#[test]
fn nothing_is_put_together_of_parts_that_forbid_each_other() {
    for document in documents() {
        assert!(!document.to_string().contains("\"allOf\""));
    }
}

#[test]
fn every_operation_says_what_can_go_wrong_in_it_by_status() {
    for (mut document, has_tokens) in documents().into_iter().zip([false, true]) {
        let ids: Vec<String> = operations(&mut document)
            .iter()
            .map(|(_, _, operation)| id_of(operation).to_owned())
            .collect();
        assert!(
            problems::unmatched(&ids).is_empty(),
            "{:?}",
            problems::unmatched(&ids)
        );
        for (path, _, operation) in operations(&mut document) {
            let answers = operation["responses"].as_object().unwrap();
            assert!(
                answers.contains_key("default") && answers.contains_key("500"),
                "{path}"
            );
            assert_eq!(
                answers.contains_key("404"),
                answers
                    .get("404")
                    .is_some_and(|one| one["description"] != ""),
                "{path}"
            );
            let is_open = ["/healthz", "/readyz"].contains(&path.as_str())
                || path.contains("provider-events");
            assert_eq!(
                answers.contains_key("401"),
                has_tokens && !is_open || path.contains("provider-events"),
                "{path}"
            );
            assert_eq!(
                answers.contains_key("413"),
                operation.contains_key("requestBody"),
                "{path}"
            );
        }
    }
}

#[test]
fn a_token_is_asked_for_in_the_document_where_the_server_asks_for_one() {
    let [open, closed] = documents();
    assert!(
        open.get("security").is_none() && open.pointer("/components/securitySchemes").is_none()
    );
    assert!(!open.to_string().contains("\"security\""));
    assert_eq!(closed["security"], json!([{ "token": [] }]));
    assert_eq!(closed["paths"]["/healthz"]["get"]["security"], json!([{}]));
    assert_eq!(
        (&open["servers"][0]["url"], &closed["servers"][0]["url"]),
        (&json!("/"), &json!("/"))
    );
}

#[test]
fn every_body_and_the_main_answers_have_an_example() {
    let [mut document, _] = documents();
    let mut answers = 0;
    for (path, method, operation) in operations(&mut document) {
        if let Some(content) = operation
            .get("requestBody")
            .and_then(|body| body.pointer("/content/application~1json"))
        {
            assert!(content.get("example").is_some(), "{method} {path}");
        }
        answers += operation["responses"]
            .as_object()
            .unwrap()
            .values()
            .filter(|one| one.to_string().contains("\"example\":{"))
            .count();
    }
    assert!(answers > 40, "{answers}");
}
