//! Readers of the fields that the arguments of reindex jobs are made of.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::input::Reader;
use crate::input::wording::any_of;

/// Prefix of variables that hold databases' URLs and that jobs may name, if jobs may bring their
/// own.
pub(super) const DATABASES: &str = "REINDEX_DATABASE_";

/// The refusal of addresses, tables and queries that a job brings.
const NOT_FREE: &str = "must be left out: a job names a source and a sink of the settings file, and brings no address, table, SQL or variable \
     of its own unless the operator sets allow_reindex_queries";

/// The refusal of a database's URL in a job.
pub(super) const NO_URL: &str = "must be left out, because credentials do not belong into a job: put the URL into an environment variable of the workers and name that in \"url_env\"";

pub(super) fn wrong<T>(
    fields: &mut Reader<'_>,
    name: &str,
    message: impl Into<String>,
) -> Option<T> {
    fields.wrong(name, message);
    None
}

pub(super) fn missing<T>(fields: &mut Reader<'_>, name: &str, allowed: &str) -> Option<T> {
    fields.missing(name, allowed);
    None
}

pub(super) fn refuse(fields: &mut Reader<'_>, name: &str, message: &str) {
    if fields.has(name) {
        fields.wrong(name, message);
    }
}

/// Reads a text. It may be a credential by mistake, so it is not shown.
pub(super) fn text(fields: &mut Reader<'_>, name: &str) -> Option<String> {
    match fields.take(name)? {
        Value::String(text) if !text.is_empty() && !text.contains('\0') => Some(text),
        _ => wrong(fields, name, "must be a text that is not empty"),
    }
}

pub(super) fn required(fields: &mut Reader<'_>, name: &str, allowed: &str) -> Option<String> {
    if !fields.has(name) {
        return missing(fields, name, allowed);
    }
    text(fields, name)
}

pub(super) fn required_choice<T: Copy>(
    fields: &mut Reader<'_>,
    name: &str,
    words: &[(&str, T)],
) -> Option<T> {
    if !fields.has(name) {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        return missing(fields, name, &any_of(&words));
    }
    fields.choice(name, words)
}

pub(super) fn variable(fields: &mut Reader<'_>, name: &str, start: &str) -> Option<String> {
    let text = text(fields, name)?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
    // Variables for database URLs and for headers have separate prefixes, so that a URL is never
    // sent as a header, nor the reverse.
    if !text.chars().all(allowed) || !text.starts_with(start) {
        let message =
            format!("must name an environment variable of the workers that begins with {start}");
        return wrong(fields, name, message);
    }
    Some(text)
}

/// Reads the key of a scan: the operator's if set, otherwise the job's.
pub(super) fn key(fields: &mut Reader<'_>, set: Option<&[String]>) -> Option<Vec<String>> {
    let given = columns(fields, "key");
    match set {
        Some(set) if !fields.has("key") => Some(set.to_vec()),
        Some(set) if given.as_deref().is_some_and(|given| given != set) => {
            let set = set.join(", ");
            wrong(
                fields,
                "key",
                format!("must be {set} for this source, or left out"),
            )
        }
        None if !fields.has("key") => {
            let allowed =
                "the unique column (or list of columns) that the scan follows, e.g. \"id\"";
            missing(fields, "key", allowed)
        }
        _ => given,
    }
}

pub(super) fn not_allowed<'n, T>(
    fields: &mut Reader<'_>,
    name: &str,
    setting: &str,
    allowed: impl Iterator<Item = &'n String>,
) -> Option<T> {
    let message = format!(
        "must be one of the {setting} that the settings file allows here; allowed: {}",
        list(allowed)
    );
    wrong(fields, name, message)
}

pub(super) fn list<'n>(names: impl Iterator<Item = &'n String>) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

pub(super) fn table(fields: &mut Reader<'_>, name: &str, text: &str) -> Option<Vec<String>> {
    let parts: Vec<_> = text.split('.').map(str::to_owned).collect();
    if parts.len() > 2 || parts.iter().any(String::is_empty) {
        return wrong(fields, name, "must be \"table\" or \"schema.table\"");
    }
    Some(parts)
}

pub(super) fn columns(fields: &mut Reader<'_>, name: &str) -> Option<Vec<String>> {
    let value = fields.take(name)?;
    let columns: Option<Vec<String>> = match &value {
        Value::String(one) => Some(vec![one.clone()]),
        Value::Array(many) => many.iter().map(|v| v.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    let is_name = |name: &String| !name.is_empty() && !name.contains('\0');
    let columns = columns.filter(|columns| !columns.is_empty() && columns.iter().all(is_name));
    if columns.is_none() {
        fields.refuse(name, "a column's name or a list of them", &value);
    }
    columns
}

/// Looks up the source or sink that a part names, and reports an unknown name.
pub(super) fn named<'p, T>(
    fields: &mut Reader<'_>,
    known: &'p BTreeMap<String, T>,
    part: &str,
) -> Option<&'p T> {
    let name = text(fields, "name")?;
    let found = known.get(&name);
    if found.is_none() {
        let message = format!(
            "must be a {part} of the settings file ([reindex.{part}s.<name>]); allowed: {}",
            list(known.keys())
        );
        fields.wrong("name", message);
    }
    found
}

/// Refuses every field of a part without a name, because jobs may not bring their own.
pub(super) fn refuse_free<'n, T>(
    fields: &mut Reader<'_>,
    part: &str,
    known: impl Iterator<Item = &'n String>,
) -> Option<T> {
    for name in ["type", "url", "url_env", "authorization_env", "query"] {
        refuse(fields, name, NOT_FREE);
    }
    let allowed = format!(
        "a {part} of the settings file ([reindex.{part}s.<name>]); allowed: {}",
        list(known)
    );
    fields.missing("name", &allowed);
    None
}
