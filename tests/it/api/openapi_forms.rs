//! The document about requests that cannot be read, and its examples.

use super::openapi::{absent, there};
use crate::support::contract::contract;

#[tokio::test]
async fn bad_json_and_parts_of_a_path_that_are_none_are_refused_as_the_document_says() {
    let contract = contract(false).await;
    let mut requested = 0;
    for operation in contract.operations() {
        if operation.body().is_some() {
            let cut_off = there(&operation).text("application/json", "{\"a\":");
            contract
                .refuses(&operation, &cut_off, "malformed_json", "body")
                .await;
            requested += 1;
        }
        for parameter in operation.parameters("path") {
            let name = parameter["name"].as_str().unwrap();
            // The id of a recipient is any text.
            let is_text = name == "id" && parameter["schema"]["type"] == "string";
            if is_text || parameter["schema"]["pattern"].is_null() && name != "id" {
                continue;
            }
            let wrong = if name == "key" || operation.id == "register_kind" {
                "k".repeat(600)
            } else if name == "recipient" {
                "a\u{1}b".to_owned()
            } else {
                "no such thing!".to_owned()
            };
            let mut ask = absent(&operation);
            ask.parts
                .iter_mut()
                .filter(|(part, _)| part == name)
                .for_each(|(_, value)| value.clone_from(&wrong));
            if let Some(example) = operation
                .declared
                .pointer("/requestBody/content/application~1json/example")
            {
                ask = ask.json(example.clone());
            }
            contract
                .refuses(&operation, &ask, "invalid_path", name)
                .await;
            requested += 1;
        }
    }
    assert!(requested > 50, "{requested}");
}

#[tokio::test]
async fn the_examples_of_the_document_are_what_its_schemas_say() {
    let contract = contract(false).await;
    let mut held = 0;
    for operation in contract.operations() {
        let answers = operation.declared["responses"]
            .as_object()
            .unwrap()
            .values();
        let body = operation.declared.get("requestBody");
        for content in body
            .into_iter()
            .chain(answers)
            .filter_map(|one| one.pointer("/content/application~1json"))
        {
            if let Some(example) = content.get("example") {
                let faults = contract.faults(&content["schema"], example);
                assert!(
                    faults.is_empty(),
                    "{}: {faults:#?}\n{example}",
                    operation.id
                );
                held += 1;
            }
        }
    }
    assert!(held > 60, "{held}");
}
