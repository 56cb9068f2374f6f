//! What a reindex job is asked to do, read from its arguments with every fault listed.

use serde_json::{Map, Value};

use crate::jobs::Issue;

/// Most documents that one bulk request may carry.
pub const MAX_BATCH_DOCS: u64 = 10_000;
/// Most bytes that one bulk request may carry: Elasticsearch itself refuses more than 100 MB.
pub const MAX_BATCH_BYTES: u64 = 50_000_000;
/// Most bulk requests in flight.
pub const MAX_CONCURRENCY: u64 = 64;

/// The arguments of a reindex job, all of them usable.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Where documents come from.
    pub source: Source,
    /// Where they go.
    pub sink: Sink,
    /// Most documents in one bulk request, 1 to 10,000; default 500.
    pub batch_docs: usize,
    /// Most bytes in one bulk request, 1,000 to 50,000,000; default 5,000,000. A larger document travels alone.
    pub batch_bytes: usize,
    /// Most bulk requests in flight, 1 to 64; default 8.
    pub concurrency: usize,
    /// What happens at the end when the index refused documents for good.
    pub on_bad_document: OnBadDocument,
}

/// A table or query in Postgres, read in the order of a unique key.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Name of the environment variable that holds the database's URL; the queue's own database without it.
    pub url_env: Option<String>,
    /// What is read.
    pub rows: Rows,
    /// Columns that together are unique and never null; the scan follows them upwards.
    pub key: Vec<String>,
    /// Columns that make the document; all of them without it.
    pub columns: Option<Vec<String>>,
}

/// What is read from the source.
#[derive(Clone, Debug, PartialEq)]
pub enum Rows {
    /// A table or view, as its schema (if named) and its name.
    Table(Vec<String>),
    /// A query that starts with `select` or `with`.
    Query(String),
}

/// Where documents go.
#[derive(Clone, Debug, PartialEq)]
pub enum Sink {
    /// An endpoint that speaks Elasticsearch's `_bulk`.
    Elastic {
        /// Base address, without a trailing slash.
        url: String,
        /// The index.
        index: String,
        /// Column that is the document's id.
        id: String,
        /// Name of the environment variable whose text is sent as the `authorization` header.
        authorization_env: Option<String>,
    },
    /// A full-text table in Postgres: `id text`, `body jsonb`, `tsv tsvector`; created where absent.
    Postgres {
        /// Name of the environment variable that holds the database's URL; the queue's own database without it.
        url_env: Option<String>,
        /// The table, as its schema (if named) and its name.
        table: Vec<String>,
        /// Fields of the document that are searched; all texts without it.
        text: Option<Vec<String>>,
        /// Postgres' text search configuration; default `english`.
        config: String,
        /// Column that is the document's id.
        id: String,
    },
}

impl Sink {
    /// The column that is the document's id.
    pub fn id(&self) -> &str {
        match self {
            Self::Elastic { id, .. } | Self::Postgres { id, .. } => id,
        }
    }
}

/// What happens at the end when the index refused documents for good; either way all others are indexed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBadDocument {
    /// The job ends dead with the count and the first refused ids, so that somebody looks. Retrying it starts over.
    #[default]
    DeadLetter,
    /// The job ends completed; its progress note keeps the count and the first refused ids.
    Skip,
}

/// What the names of environment variables begin with that jobs may name.
const VARIABLES: &str = "REINDEX_";

impl Args {
    /// Reads arguments, or lists everything that is wrong with them.
    pub fn parse(args: &Value) -> Result<Self, Vec<Issue>> {
        let mut fields = Fields::new(args, "");
        let source = fields.part("source", source);
        let sink = {
            // A source that could not be read is one fault, not two: its missing key is no fault of the sink.
            let key = source.as_ref().map_or(Some(String::new()), |s| (s.key.len() == 1).then(|| s.key[0].clone()));
            fields.part("sink", |sink| self::sink(sink, key))
        };
        let batch_docs = fields.number("batch_docs", 500, 1, MAX_BATCH_DOCS);
        let batch_bytes = fields.number("batch_bytes", 5_000_000, 1_000, MAX_BATCH_BYTES);
        let concurrency = fields.number("concurrency", 8, 1, MAX_CONCURRENCY);
        let on_bad_document = match fields.choice("on_bad_document", &["dead_letter", "skip"]) {
            Some("skip") => OnBadDocument::Skip,
            _ => OnBadDocument::DeadLetter,
        };
        let issues = fields.finish();
        match (source, sink) {
            (Some(source), Some(sink)) if issues.is_empty() => {
                Ok(Self { source, sink, batch_docs, batch_bytes, concurrency, on_bad_document })
            }
            _ => Err(issues),
        }
    }
}

fn source(fields: &mut Fields<'_>) -> Option<Source> {
    fields.required_choice("type", &["postgres"]);
    fields.refuse("url", "credentials do not belong into a job: put the URL into an environment variable of the workers and name that in \"url_env\"");
    let url_env = fields.variable("url_env");
    let rows = match (fields.table("table"), fields.text("query")) {
        (Some(_), Some(_)) => fields.issue("query", "cannot stand beside \"table\": give one of them"),
        (Some(table), None) => Some(Rows::Table(table)),
        (None, Some(query)) => select(fields, query),
        (None, None) if fields.has("table") || fields.has("query") => None,
        (None, None) => fields.issue("table", "is missing: name a table (\"schema.table\") or give a \"query\""),
    };
    let key = fields.columns("key");
    if !fields.has("key") {
        fields.issue::<()>("key", "is missing: name the unique column (or list of columns) that the scan follows, e.g. \"id\"");
    }
    let columns = fields.columns("columns");
    Some(Source { url_env, rows: rows?, key: key?, columns })
}

/// Accepts one statement that reads; the session is read-only besides.
fn select(fields: &mut Fields<'_>, query: String) -> Option<Rows> {
    let query = query.trim().trim_end_matches(';').trim_end().to_owned();
    let first = query.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default().to_ascii_lowercase();
    if !matches!(first.as_str(), "select" | "with" | "table" | "values") {
        return fields.issue("query", "must be one query that starts with select or with");
    }
    Some(Rows::Query(query))
}

fn sink(fields: &mut Fields<'_>, key: Option<String>) -> Option<Sink> {
    let Some(kind) = fields.required_choice("type", &["elastic", "postgres"]) else {
        fields.any_field = true;
        return None;
    };
    let id = fields.text("id");
    let id = match (id, key) {
        (Some(id), _) => Some(id),
        (None, Some(key)) if !fields.has("id") => Some(key),
        _ => fields.issue("id", "must name the column that is the document's id"),
    };
    if kind == "elastic" {
        let url = fields.required("url", "is missing: the address of the search engine, e.g. \"http://127.0.0.1:9200\"");
        let url = url.and_then(|url| address(fields, url));
        let index = fields.required("index", "is missing: the name of the index").and_then(|index| index_name(fields, index));
        let authorization_env = fields.variable("authorization_env");
        return Some(Sink::Elastic { url: url?, index: index?, id: id?, authorization_env });
    }
    fields.refuse("url", "credentials do not belong into a job: put the URL into an environment variable of the workers and name that in \"url_env\"");
    let url_env = fields.variable("url_env");
    let table = fields.table("table");
    if !fields.has("table") {
        fields.issue::<()>("table", "is missing: the table to write, e.g. \"search.documents\"");
    }
    let text = fields.columns("text");
    let config = fields.text("config").unwrap_or_else(|| "english".to_owned());
    Some(Sink::Postgres { url_env, table: table?, text, config, id: id? })
}

fn address(fields: &mut Fields<'_>, url: String) -> Option<String> {
    let url = url.trim_end_matches('/').to_owned();
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let Some(rest) = rest else {
        return fields.issue("url", "must start with http:// or https://");
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.is_empty() || rest.contains(['?', '#', ' ', '\n']) {
        return fields.issue("url", "must be the base address of the search engine, without a query");
    }
    if host.contains('@') {
        return fields.issue("url", "must not carry a user name or password: use \"authorization_env\"");
    }
    Some(url)
}

fn index_name(fields: &mut Fields<'_>, index: String) -> Option<String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    if index.len() > 255 || index.starts_with(['-', '_', '.']) || !index.chars().all(allowed) {
        return fields
            .issue("index", "must be 1 to 255 lower-case letters, digits or any of - _ . and start with a letter or digit");
    }
    Some(index)
}

// === Fields: one JSON object, read field by field ===

/// Reads an object's fields, collects what is wrong, and refuses what nobody asked for.
struct Fields<'a> {
    object: Option<&'a Map<String, Value>>,
    pointer: String,
    known: Vec<&'static str>,
    /// True where the part's type is not known, so that no field can be called unknown.
    any_field: bool,
    issues: Vec<Issue>,
}

impl<'a> Fields<'a> {
    fn new(value: &'a Value, pointer: &str) -> Self {
        let pointer = pointer.to_owned();
        let mut fields = Self { object: value.as_object(), pointer, known: vec![], any_field: false, issues: vec![] };
        if fields.object.is_none() {
            fields.issues.push(Issue { pointer: fields.pointer.clone(), message: "must be an object".to_owned() });
        }
        fields
    }

    fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        if !self.known.contains(&name) {
            self.known.push(name);
        }
        self.object?.get(name).filter(|value| !value.is_null())
    }

    fn has(&mut self, name: &'static str) -> bool {
        self.object.is_none() || self.get(name).is_some()
    }

    fn issue<T>(&mut self, name: &str, message: impl Into<String>) -> Option<T> {
        let name = name.replace('~', "~0").replace('/', "~1");
        self.issues.push(Issue { pointer: format!("{}/{name}", self.pointer), message: message.into() });
        None
    }

    fn part<T>(&mut self, name: &'static str, read: impl FnOnce(&mut Fields<'_>) -> Option<T>) -> Option<T> {
        let Some(value) = self.get(name) else {
            return if self.object.is_some() { self.issue(name, "is missing") } else { None };
        };
        let mut fields = Fields::new(value, &format!("{}/{name}", self.pointer));
        let part = fields.object.is_some().then(|| read(&mut fields)).flatten();
        self.issues.extend(fields.finish());
        part
    }

    fn refuse(&mut self, name: &'static str, message: &str) {
        if self.get(name).is_some() {
            self.issue::<()>(name, message);
        }
    }

    fn text(&mut self, name: &'static str) -> Option<String> {
        match self.get(name)? {
            Value::String(text) if !text.is_empty() && !text.contains('\0') => Some(text.clone()),
            _ => self.issue(name, "must be a text that is not empty"),
        }
    }

    fn required(&mut self, name: &'static str, missing: &str) -> Option<String> {
        if self.get(name).is_none() {
            return self.issue(name, missing);
        }
        self.text(name)
    }

    fn variable(&mut self, name: &'static str) -> Option<String> {
        let text = self.text(name)?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
        // Its text is sent to where the job says, so a job may name only what was put there for jobs.
        if !text.chars().all(allowed) || !text.starts_with(VARIABLES) {
            return self.issue(
                name,
                "must name an environment variable of the workers that begins with REINDEX_, e.g. REINDEX_SOURCE_URL",
            );
        }
        Some(text)
    }

    fn table(&mut self, name: &'static str) -> Option<Vec<String>> {
        let parts: Vec<_> = self.text(name)?.split('.').map(str::to_owned).collect();
        if parts.len() > 2 || parts.iter().any(String::is_empty) {
            return self.issue(name, "must be \"table\" or \"schema.table\"");
        }
        Some(parts)
    }

    fn columns(&mut self, name: &'static str) -> Option<Vec<String>> {
        let columns: Option<Vec<String>> = match self.get(name)? {
            Value::String(one) => Some(vec![one.clone()]),
            Value::Array(many) => many.iter().map(|v| v.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        match columns {
            Some(columns) if !columns.is_empty() && columns.iter().all(|c| !c.is_empty() && !c.contains('\0')) => Some(columns),
            _ => self.issue(name, "must be a column's name or a list of them"),
        }
    }

    fn number(&mut self, name: &'static str, default: u64, least: u64, most: u64) -> usize {
        let Some(value) = self.get(name) else { return default as usize };
        match value.as_u64() {
            Some(number) if (least..=most).contains(&number) => number as usize,
            _ => {
                self.issue::<()>(name, format!("{value} is not allowed: a whole number from {least} to {most}"));
                default as usize
            }
        }
    }

    fn choice(&mut self, name: &'static str, allowed: &[&'static str]) -> Option<&'static str> {
        let value = self.get(name)?;
        let found = allowed.iter().find(|a| value.as_str() == Some(a)).copied();
        if found.is_none() {
            self.issue::<()>(name, format!("{value} is not allowed: one of {}", allowed.join(", ")));
        }
        found
    }

    fn required_choice(&mut self, name: &'static str, allowed: &[&'static str]) -> Option<&'static str> {
        if self.get(name).is_none() {
            return self.issue(name, format!("is missing: one of {}", allowed.join(", ")));
        }
        self.choice(name, allowed)
    }

    fn finish(mut self) -> Vec<Issue> {
        let all = self.object.into_iter().flat_map(Map::keys);
        let unknown: Vec<_> = all.filter(|k| !self.known.contains(&k.as_str())).cloned().collect();
        for name in if self.any_field { vec![] } else { unknown } {
            let message = format!("is not a field of this; known are {}", self.known.join(", "));
            self.issue::<()>(&name, message);
        }
        self.issues
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn good() -> Value {
        json!({
            "source": {"type": "postgres", "table": "public.articles", "key": "id"},
            "sink": {"type": "elastic", "url": "http://127.0.0.1:9200/", "index": "articles"},
        })
    }

    #[test]
    fn the_smallest_arguments_get_documented_defaults_and_the_key_as_id() {
        let args = Args::parse(&good()).unwrap();

        assert_eq!((args.batch_docs, args.batch_bytes, args.concurrency), (500, 5_000_000, 8));
        assert_eq!(args.source.rows, Rows::Table(vec!["public".into(), "articles".into()]));
        assert_eq!(args.sink.id(), "id");
        assert_eq!(args.on_bad_document, OnBadDocument::DeadLetter);
        let Sink::Elastic { url, .. } = args.sink else { panic!() };
        assert_eq!(url, "http://127.0.0.1:9200");
    }

    #[test]
    fn every_fault_is_listed_with_its_pointer() {
        let bad = json!({
            "source": {"type": "mysql", "url": "postgres://u:secret@h/d", "query": "delete from x", "key": 7, "colums": []},
            "sink": {"type": "elastic", "url": "127.0.0.1:9200", "index": "Docs"},
            "batch_docs": 0, "concurrency": -1, "batch_bytes": "many", "speed": 11, "on_bad_document": "ignore",
        });

        let issues = Args::parse(&bad).unwrap_err();

        let mut pointers: Vec<_> = issues.iter().map(|i| i.pointer.as_str()).collect();
        pointers.sort_unstable();
        assert_eq!(
            pointers,
            [
                "/batch_bytes",
                "/batch_docs",
                "/concurrency",
                "/on_bad_document",
                "/sink/index",
                "/sink/url",
                "/source/colums",
                "/source/key",
                "/source/query",
                "/source/type",
                "/source/url",
                "/speed",
            ]
        );
        assert!(issues.iter().all(|i| !i.message.contains("secret")));
    }

    #[test]
    fn anything_but_an_object_is_refused_without_a_panic() {
        for bad in [json!(null), json!([]), json!("x"), json!({"source": [], "sink": 3}), json!({})] {
            assert!(!Args::parse(&bad).unwrap_err().is_empty(), "{bad}");
        }
    }

    #[test]
    fn a_key_of_several_columns_needs_an_id_that_says_which() {
        let mut args = good();
        args["source"]["key"] = json!(["tenant", "id"]);

        let issues = Args::parse(&args).unwrap_err();
        assert_eq!(issues[0].pointer, "/sink/id");

        args["sink"]["id"] = json!("id");
        assert_eq!(Args::parse(&args).unwrap().source.key, ["tenant", "id"]);
    }

    #[test]
    fn credentials_in_addresses_are_refused() {
        let mut args = good();
        args["sink"]["url"] = json!("http://elastic:hunter2@search:9200");

        let issues = Args::parse(&args).unwrap_err();

        assert!(issues[0].message.contains("authorization_env") && !issues[0].message.contains("hunter2"), "{issues:?}");
    }
}
