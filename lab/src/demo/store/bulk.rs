//! A parser for the body of a bulk request.

use serde_json::Value;

/// One action of a bulk request.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// The operation: `index`, `create` or `delete`.
    pub verb: Verb,
    /// The name of the index.
    pub index: String,
    /// The document's id; the store generates one if it is absent.
    pub id: Option<String>,
    /// The document and its searchable text, or an error if the line holds no document.
    pub document: Result<StoredDocument, String>,
}

/// The operation on a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Stores the document, or replaces the one with the same id.
    Index,
    /// Stores the document unless its id exists.
    Create,
    /// Removes the document with this id.
    Delete,
}

impl Verb {
    /// Returns the name in requests and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Create => "create",
            Self::Delete => "delete",
        }
    }
}

/// A document in its stored form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredDocument {
    /// The document as one line of JSON.
    pub source: String,
    /// All strings in the document, one per line.
    pub text: String,
}

/// Parses the lines of a bulk request; `default_index` is the index in the path.
pub fn parse(body: &str, default_index: Option<&str>) -> Result<Vec<Action>, String> {
    let mut lines = body
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let mut actions = Vec::new();
    while let Some((number, line)) = lines.next() {
        let wrong = |what: &str| format!("line {}: {what}", number + 1);
        let head: Value =
            serde_json::from_str(line).map_err(|e| wrong(&format!("malformed action: {e}")))?;
        let Some((verb, meta)) = head
            .as_object()
            .filter(|o| o.len() == 1)
            .and_then(|o| o.iter().next())
        else {
            return Err(wrong(
                "an action is an object with one of index, create, delete",
            ));
        };
        let verb = match verb.as_str() {
            "index" => Verb::Index,
            "create" => Verb::Create,
            "delete" => Verb::Delete,
            other => {
                return Err(wrong(&format!(
                    "unknown action {other:?}: one of index, create, delete"
                )));
            }
        };
        let index = meta["_index"]
            .as_str()
            .or(default_index)
            .ok_or_else(|| wrong("the index name is missing"))?;
        check_index(index).map_err(|e| wrong(&e))?;
        let id = meta["_id"]
            .as_str()
            .map(str::to_owned)
            .or_else(|| meta["_id"].as_i64().map(|n| n.to_string()));
        let document = match verb {
            Verb::Delete => Ok(StoredDocument::default()),
            _ => document(
                lines
                    .next()
                    .ok_or_else(|| wrong("its document is missing"))?
                    .1,
            ),
        };
        actions.push(Action {
            verb,
            index: index.to_owned(),
            id,
            document,
        });
    }
    if actions.is_empty() {
        Err("the request holds no actions".to_owned())
    } else {
        Ok(actions)
    }
}

/// Accepts the name of an index, or returns an error with the allowed form.
pub fn check_index(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    if begins && name.len() <= 40 && name.chars().all(allowed) {
        return Ok(());
    }
    Err(format!(
        "index {name:?} is not allowed: 1 to 40 lower-case letters, digits or - _ . and a letter or digit first"
    ))
}

fn document(line: &str) -> Result<StoredDocument, String> {
    let value: Value = serde_json::from_str(line).map_err(|e| format!("failed to parse: {e}"))?;
    if !value.is_object() {
        return Err("failed to parse: a document is an object".to_owned());
    }
    let mut text = String::new();
    gather(&value, &mut text);
    if text.contains('\0') {
        return Err("failed to parse: a text contains the character 0".to_owned());
    }
    Ok(StoredDocument {
        source: line.to_owned(),
        text,
    })
}

/// Collects all strings in a document, at any depth, one per line.
fn gather(value: &Value, text: &mut String) {
    match value {
        Value::String(s) => {
            text.push_str(s);
            text.push('\n');
        }
        Value::Array(items) => items.iter().for_each(|item| gather(item, text)),
        Value::Object(fields) => fields.values().for_each(|field| gather(field, text)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_create_and_delete_are_read_with_their_documents() {
        let body = "{\"index\":{\"_id\":\"1\"}}\n{\"title\":\"a\",\"n\":3,\"tags\":[\"b\"]}\n{\"delete\":{\"_index\":\"old\",\"_id\":2}}\n\
                    {\"create\":{}}\r\n{}\r\n";

        let actions = parse(body, Some("docs")).unwrap();

        let brief: Vec<_> = actions
            .iter()
            .map(|a| (a.verb.name(), a.index.as_str(), a.id.as_deref()))
            .collect();
        assert_eq!(
            brief,
            [
                ("index", "docs", Some("1")),
                ("delete", "old", Some("2")),
                ("create", "docs", None)
            ]
        );
        let text = &actions[0].document.as_ref().unwrap().text;
        assert!(text.contains("a\n") && text.contains("b\n"), "{text:?}");
    }

    #[test]
    fn a_line_that_is_no_document_spoils_only_itself() {
        let actions = parse(
            "{\"index\":{}}\n[1]\n{\"index\":{}}\n{\"a\":\"b\"}\n",
            Some("docs"),
        )
        .unwrap();

        assert!(actions[0].document.is_err() && actions[1].document.is_ok());
    }

    #[test]
    fn a_request_that_cannot_be_read_names_the_line() {
        for (body, index, line) in [
            ("{\"index\":{}}\n{}\nnonsense\n", Some("docs"), "line 3"),
            ("{\"update\":{}}\n{}\n", Some("docs"), "line 1"),
            ("{\"index\":{}}\n", Some("docs"), "line 1"),
            ("{\"index\":{}}\n{}\n", None, "line 1"),
            ("{\"index\":{\"_index\":\"../etc\"}}\n{}\n", None, "line 1"),
            ("", Some("docs"), "no actions"),
        ] {
            let error = parse(body, index).unwrap_err();
            assert!(error.contains(line), "{body:?}: {error}");
        }
    }
}
