//! Arguments of reindex jobs, parsed with every fault listed.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::catalogue::{Catalogue, Hidden, NamedSink, NamedSource, Rights, allows, one_query};
use crate::jobs::Issue;

/// Most documents that one bulk request may carry.
pub const MAX_BATCH_DOCS: u64 = 10_000;
/// Most bytes that one bulk request may carry; Elasticsearch itself refuses more than 100 MB.
pub const MAX_BATCH_BYTES: u64 = 50_000_000;
/// Most bulk requests in flight.
pub const MAX_CONCURRENCY: u64 = 64;

/// The arguments of a reindex job, all of them valid.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// The source of the documents.
    pub source: SourceArgs,
    /// The destination of the documents.
    pub sink: Sink,
    /// Most documents in one bulk request, 1 to 10,000; default 500.
    pub batch_docs: usize,
    /// Most bytes in one bulk request, 1,000 to 50,000,000; default 5,000,000. A larger document
    /// travels alone.
    pub batch_bytes: usize,
    /// Most bulk requests in flight, 1 to 64; default 8.
    pub concurrency: usize,
    /// The outcome of a job some of whose documents the index refused for good.
    pub on_bad_document: OnBadDocument,
}

/// A table or statement in Postgres, read in the order of a unique key.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceArgs {
    /// The location of the database's URL; `None` for the queue's own database.
    pub database: Option<Hidden>,
    /// The role to read as, and the limit on each statement's time.
    pub rights: Rights,
    /// The table or query to read.
    pub rows: Rows,
    /// Columns that together are unique and never null; the scan follows them upwards.
    pub key: Vec<String>,
    /// Columns that make up the document; `None` for all.
    pub columns: Option<Vec<String>>,
}

/// The rows of a source.
#[derive(Clone, Debug, PartialEq)]
pub enum Rows {
    /// A table or view, as its schema (if named) and its name.
    Table(Vec<String>),
    /// A query that starts with `select` or `with`.
    Query(String),
}

/// The destination of documents.
#[derive(Clone, Debug, PartialEq)]
pub enum Sink {
    /// An endpoint that speaks Elasticsearch's `_bulk`.
    Elastic(Elastic),
    /// A full-text table in Postgres: `id text`, `body jsonb`, `tsv tsvector`; created if absent.
    Postgres {
        /// The location of the database's URL; `None` for the queue's own database.
        database: Option<Hidden>,
        /// The role to write as, and the limit on each statement's time.
        rights: Rights,
        /// The table, as its schema (if named) and its name.
        table: Vec<String>,
        /// Fields of the document that are searched; `None` for all texts.
        text: Option<Vec<String>>,
        /// Postgres' text search configuration; default `english`.
        config: String,
        /// Column that is the document's id.
        id: String,
    },
}

/// An index behind `_bulk`, and options for writing documents to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Elastic {
    /// Base address, without a trailing slash.
    pub url: String,
    pub index: String,
    /// Column that is the document's id.
    pub id: String,
    /// The location of the text of the `authorization` header.
    pub authorization: Option<Hidden>,
    /// A file of certificates that are trusted besides the system's.
    pub ca_file: Option<String>,
    /// True if the address comes from the job, so that the guard must allow it.
    pub is_guarded: bool,
    /// True if documents are created and never overwritten, as data streams require.
    pub creates: bool,
    /// The ingest pipeline for the documents.
    pub pipeline: Option<String>,
    /// Column whose text determines the shard.
    pub routing: Option<String>,
}

impl Sink {
    /// Returns the column that is the document's id.
    pub fn id(&self) -> &str {
        match self {
            Self::Elastic(Elastic { id, .. }) | Self::Postgres { id, .. } => id,
        }
    }

    /// Returns the column that determines a document's shard, if there is one.
    pub fn routing(&self) -> Option<&str> {
        match self {
            Self::Elastic(elastic) => elastic.routing.as_deref(),
            Self::Postgres { .. } => None,
        }
    }
}

/// The outcome of a job some of whose documents the index refused for good; in either case all
/// others are indexed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBadDocument {
    /// The job ends dead with the count and the first refused ids, so that a person looks at it. A
    /// retry starts over.
    #[default]
    DeadLetter,
    /// The job ends completed; its progress note keeps the count and the first refused ids.
    Skip,
}

/// Prefix of variables that hold databases' URLs and that jobs may name, if jobs may bring their
/// own.
const DATABASES: &str = "REINDEX_DATABASE_";
/// Prefix of variables that hold texts of the `authorization` header and that jobs may name, if
/// jobs may bring their own.
const AUTHORIZATIONS: &str = "REINDEX_AUTH_";
/// Suffix of the variable that lists the origins to which such a header may be sent.
pub(super) const ORIGINS: &str = "_ORIGINS";

/// The refusal of addresses, tables and queries that a job brings.
const NOT_FREE: &str = "is not allowed: a job names a source and a sink of the settings file, and brings no address, table, SQL or variable \
     of its own unless the operator sets allow_reindex_queries";

/// The refusal of a database's URL in a job.
const NO_URL: &str = "credentials do not belong into a job: put the URL into an environment variable of the workers and name that in \"url_env\"";

impl Args {
    /// Parses arguments against the operator's catalogue, or lists everything that is wrong with
    /// them.
    pub fn parse(args: &Value, catalogue: &Catalogue) -> Result<Self, Vec<Issue>> {
        let mut fields = ArgsReader::new(args, "");
        let source = fields.part("source", |source| self::source(source, catalogue));
        let sink = {
            // An invalid source is one fault, not two: its missing key is no fault of the sink.
            let key = source.as_ref().map_or(Some(String::new()), |s| {
                (s.key.len() == 1).then(|| s.key[0].clone())
            });
            fields.part("sink", |sink| self::sink(sink, key, catalogue))
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
            (Some(source), Some(sink)) if issues.is_empty() => Ok(Self {
                source,
                sink,
                batch_docs,
                batch_bytes,
                concurrency,
                on_bad_document,
            }),
            _ => Err(issues),
        }
    }

    /// Returns `source` or `sink` and the name that this process does not know.
    pub fn lacking<'a>(args: &'a Value, catalogue: &Catalogue) -> Option<(&'static str, &'a str)> {
        let name = |part: &str| args.get(part)?.get("name")?.as_str();
        let source = name("source")
            .filter(|name| !catalogue.sources.contains_key(*name))
            .map(|name| ("source", name));
        let sink = name("sink")
            .filter(|name| !catalogue.sinks.contains_key(*name))
            .map(|name| ("sink", name));
        source.or(sink)
    }
}

/// Looks up the source or sink that a part names, and reports an unknown name.
fn named<'p, T>(
    fields: &mut ArgsReader<'_>,
    known: &'p BTreeMap<String, T>,
    part: &str,
) -> Option<&'p T> {
    let name = fields.text("name")?;
    let found = known.get(&name);
    if found.is_none() {
        let names: Vec<_> = known.keys().map(String::as_str).collect();
        let names = if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        };
        fields.issue::<()>(
            "name",
            format!(
                "is not a {part} of the settings file ([reindex.{part}s.<name>]); known are {names}"
            ),
        );
        fields.any_field = true;
    }
    found
}

/// Refuses every field of a part without a name, because jobs may not bring their own.
fn refuse_free<T>(fields: &mut ArgsReader<'_>, part: &str, known: Vec<&String>) -> Option<T> {
    for name in ["type", "url", "url_env", "authorization_env", "query"] {
        fields.refuse(name, NOT_FREE);
    }
    fields.any_field = true;
    let names: Vec<_> = known.into_iter().map(String::as_str).collect();
    let names = if names.is_empty() {
        "there are none yet".to_owned()
    } else {
        format!("one of {}", names.join(", "))
    };
    fields.issue(
        "name",
        format!("is missing: a {part} of the settings file ([reindex.{part}s.<name>]), {names}"),
    )
}

fn source(fields: &mut ArgsReader<'_>, catalogue: &Catalogue) -> Option<SourceArgs> {
    if fields.get("name").is_some() {
        let given = named(fields, &catalogue.sources, "source")?;
        return named_source(fields, given);
    }
    if !catalogue.allow_queries {
        return refuse_free(fields, "source", catalogue.sources.keys().collect());
    }
    fields.required_choice("type", &["postgres"]);
    fields.refuse("url", NO_URL);
    let database = fields.variable("url_env", DATABASES).map(Hidden::Variable);
    let rows = match (fields.table("table"), fields.text("query")) {
        (Some(_), Some(_)) => {
            fields.issue("query", "cannot stand beside \"table\": give one of them")
        }
        (Some(table), None) => Some(Rows::Table(table)),
        (None, Some(query)) => select(fields, &query),
        (None, None) if fields.has("table") || fields.has("query") => None,
        (None, None) => fields.issue(
            "table",
            "is missing: name a table (\"schema.table\") or give a \"query\"",
        ),
    };
    let key = fields.key(None);
    let columns = fields.columns("columns");
    Some(SourceArgs {
        database,
        rights: Rights::default(),
        rows: rows?,
        key: key?,
        columns,
    })
}

fn named_source(fields: &mut ArgsReader<'_>, given: &NamedSource) -> Option<SourceArgs> {
    let rows = match (fields.text("table"), fields.text("statement")) {
        (Some(_), Some(_)) => fields.issue(
            "statement",
            "cannot stand beside \"table\": give one of them",
        ),
        (Some(table), None) if allows(&given.tables, &table) => {
            fields.table("table").map(Rows::Table)
        }
        (Some(_), None) => fields.not_allowed("table", "tables", &given.tables),
        (None, Some(statement)) => match given.statements.get(&statement) {
            Some(query) => Some(Rows::Query(query.clone())),
            None => fields.not_allowed(
                "statement",
                "statements",
                &given.statements.keys().cloned().collect::<Vec<_>>(),
            ),
        },
        (None, None) if fields.has("table") || fields.has("statement") => None,
        (None, None) => fields.issue(
            "table",
            "is missing: name a table, or a \"statement\", of this source",
        ),
    };
    let key = fields.key(given.key.as_deref());
    let columns = fields.columns("columns");
    Some(SourceArgs {
        database: given.database.clone(),
        rights: given.rights.clone(),
        rows: rows?,
        key: key?,
        columns,
    })
}

/// Accepts one statement that reads; the transaction is read-only besides.
fn select(fields: &mut ArgsReader<'_>, query: &str) -> Option<Rows> {
    match one_query(query) {
        Some(query) => Some(Rows::Query(query)),
        None => fields.issue("query", "must be one query that starts with select or with"),
    }
}

fn sink(fields: &mut ArgsReader<'_>, key: Option<String>, catalogue: &Catalogue) -> Option<Sink> {
    let given = match fields.get("name").is_some() {
        true => Some(named(fields, &catalogue.sinks, "sink")?),
        false if catalogue.allow_queries => None,
        false => return refuse_free(fields, "sink", catalogue.sinks.keys().collect()),
    };
    let is_elastic = match given {
        Some(NamedSink::Elastic { .. }) => true,
        Some(NamedSink::Postgres { .. }) => false,
        None => match fields.required_choice("type", &["elastic", "postgres"]) {
            Some(kind) => kind == "elastic",
            None => {
                fields.any_field = true;
                return None;
            }
        },
    };
    let id = fields.text("id");
    let id = match (id, key) {
        (Some(id), _) => Some(id),
        (None, Some(key)) if !fields.has("id") => Some(key),
        _ => fields.issue("id", "must name the column that is the document's id"),
    };
    if is_elastic {
        elastic(fields, id, given)
    } else {
        full_text(fields, id, given)
    }
}

fn elastic(
    fields: &mut ArgsReader<'_>,
    id: Option<String>,
    given: Option<&NamedSink>,
) -> Option<Sink> {
    let base = match given {
        Some(NamedSink::Elastic {
            url,
            authorization,
            ca_file,
            ..
        }) => {
            let (authorization, ca_file) = (authorization.clone(), ca_file.clone());
            Some(Elastic {
                url: url.clone(),
                authorization,
                ca_file,
                ..Elastic::default()
            })
        }
        _ => {
            let url = fields.required(
                "url",
                "is missing: the address of the search engine, e.g. \"http://127.0.0.1:9200\"",
            );
            let url = url.and_then(|url| address(fields, url));
            let authorization = match fields.variable("authorization_env", AUTHORIZATIONS) {
                Some(name) if name.ends_with(ORIGINS) => fields.issue(
                    "authorization_env",
                    "must not name what says where such a text may go",
                ),
                name => name.map(Hidden::Bound),
            };
            url.map(|url| Elastic {
                url,
                authorization,
                is_guarded: true,
                ..Elastic::default()
            })
        }
    };
    let index = fields
        .required("index", "is missing: the name of the index")
        .and_then(|index| index_name(fields, index));
    let pipeline = fields
        .text("pipeline")
        .and_then(|pipeline| pipeline_name(fields, pipeline));
    let creates = fields.choice("op_type", &["index", "create"]) == Some("create");
    let routing = fields.text("routing");
    if let Some(NamedSink::Elastic {
        indexes, pipelines, ..
    }) = given
    {
        if index.as_ref().is_some_and(|index| !allows(indexes, index)) {
            return fields.not_allowed("index", "indexes", indexes);
        }
        if pipeline
            .as_ref()
            .is_some_and(|pipeline| !allows(pipelines, pipeline))
        {
            return fields.not_allowed("pipeline", "pipelines", pipelines);
        }
    }
    Some(Sink::Elastic(Elastic {
        index: index?,
        id: id?,
        pipeline,
        creates,
        routing,
        ..base?
    }))
}

fn full_text(
    fields: &mut ArgsReader<'_>,
    id: Option<String>,
    given: Option<&NamedSink>,
) -> Option<Sink> {
    let (database, rights) = match given {
        Some(NamedSink::Postgres {
            database, rights, ..
        }) => (database.clone(), rights.clone()),
        _ => {
            fields.refuse("url", NO_URL);
            (
                fields.variable("url_env", DATABASES).map(Hidden::Variable),
                Rights::default(),
            )
        }
    };
    let table = match (fields.text("table"), given) {
        (Some(name), Some(NamedSink::Postgres { tables, .. })) if !allows(tables, &name) => {
            fields.not_allowed("table", "tables", tables)
        }
        (Some(_), _) => fields.table("table"),
        (None, _) if fields.has("table") => None,
        (None, _) => fields.issue(
            "table",
            "is missing: the table to write, e.g. \"search.documents\"",
        ),
    };
    let text = fields.columns("text");
    let config = fields
        .text("config")
        .unwrap_or_else(|| "english".to_owned());
    Some(Sink::Postgres {
        database,
        rights,
        table: table?,
        text,
        config,
        id: id?,
    })
}

fn address(fields: &mut ArgsReader<'_>, url: String) -> Option<String> {
    let url = url.trim_end_matches('/').to_owned();
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    let Some(rest) = rest else {
        return fields.issue("url", "must start with http:// or https://");
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.is_empty() || rest.contains(['?', '#', ' ', '\n']) {
        return fields.issue(
            "url",
            "must be the base address of the search engine, without a query",
        );
    }
    if host.contains('@') {
        return fields.issue(
            "url",
            "must not carry a user name or password: use \"authorization_env\"",
        );
    }
    Some(url)
}

fn index_name(fields: &mut ArgsReader<'_>, index: String) -> Option<String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    if index.len() > 255 || index.starts_with(['-', '_', '.']) || !index.chars().all(allowed) {
        return fields
            .issue("index", "must be 1 to 255 lower-case letters, digits or any of - _ . and start with a letter or digit");
    }
    Some(index)
}

/// Accepts a name that needs no escaping in a URL.
fn pipeline_name(fields: &mut ArgsReader<'_>, pipeline: String) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if pipeline.len() > 255 || !pipeline.chars().all(allowed) {
        return fields.issue(
            "pipeline",
            "must be 1 to 255 letters, digits or any of - _ .",
        );
    }
    Some(pipeline)
}

// === Fields: one JSON object, read field by field ===

/// Reads an object's fields, collects faults, and refuses unknown fields.
struct ArgsReader<'a> {
    object: Option<&'a Map<String, Value>>,
    pointer: String,
    known: Vec<&'static str>,
    /// True if the part's type is not known, so that no field can be called unknown.
    any_field: bool,
    issues: Vec<Issue>,
}

impl<'a> ArgsReader<'a> {
    fn new(value: &'a Value, pointer: &str) -> Self {
        let pointer = pointer.to_owned();
        let mut fields = Self {
            object: value.as_object(),
            pointer,
            known: vec![],
            any_field: false,
            issues: vec![],
        };
        if fields.object.is_none() {
            fields.issues.push(Issue {
                pointer: fields.pointer.clone(),
                message: "must be an object".to_owned(),
            });
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
        self.issues.push(Issue {
            pointer: format!("{}/{name}", self.pointer),
            message: message.into(),
        });
        None
    }

    fn part<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut ArgsReader<'_>) -> Option<T>,
    ) -> Option<T> {
        let Some(value) = self.get(name) else {
            return if self.object.is_some() {
                self.issue(name, "is missing")
            } else {
                None
            };
        };
        let mut fields = ArgsReader::new(value, &format!("{}/{name}", self.pointer));
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

    fn variable(&mut self, name: &'static str, start: &str) -> Option<String> {
        let text = self.text(name)?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
        // Variables for database URLs and for headers have separate prefixes, so that a URL is
        // never sent as a header, nor the reverse.
        if !text.chars().all(allowed) || !text.starts_with(start) {
            return self.issue(
                name,
                format!(
                    "must name an environment variable of the workers that begins with {start}"
                ),
            );
        }
        Some(text)
    }

    /// Reads the key of a scan: the operator's if set, otherwise the job's.
    fn key(&mut self, set: Option<&[String]>) -> Option<Vec<String>> {
        let said = self.columns("key");
        match set {
            Some(set) if !self.has("key") => Some(set.to_vec()),
            Some(set) if said.as_deref().is_some_and(|said| said != set) => {
                self.issue("key", format!("is set for this source: leave it out, or say {}", set.join(", ")))
            }
            None if !self.has("key") => {
                self.issue("key", "is missing: name the unique column (or list of columns) that the scan follows, e.g. \"id\"")
            }
            _ => said,
        }
    }

    fn not_allowed<T>(&mut self, name: &str, setting: &str, allowed: &[String]) -> Option<T> {
        let list = if allowed.is_empty() {
            "none".to_owned()
        } else {
            allowed.join(", ")
        };
        self.issue(
            name,
            format!(
                "is not among the {setting} that the settings file allows here; allowed are {list}"
            ),
        )
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
            Some(columns)
                if !columns.is_empty()
                    && columns.iter().all(|c| !c.is_empty() && !c.contains('\0')) =>
            {
                Some(columns)
            }
            _ => self.issue(name, "must be a column's name or a list of them"),
        }
    }

    fn number(&mut self, name: &'static str, default: u64, least: u64, most: u64) -> usize {
        let Some(value) = self.get(name) else {
            return default as usize;
        };
        match value.as_u64() {
            Some(number) if (least..=most).contains(&number) => number as usize,
            _ => {
                self.issue::<()>(
                    name,
                    format!("{value} is not allowed: a whole number from {least} to {most}"),
                );
                default as usize
            }
        }
    }

    fn choice(&mut self, name: &'static str, allowed: &[&'static str]) -> Option<&'static str> {
        let value = self.get(name)?;
        let found = allowed.iter().find(|a| value.as_str() == Some(a)).copied();
        if found.is_none() {
            self.issue::<()>(
                name,
                format!("{value} is not allowed: one of {}", allowed.join(", ")),
            );
        }
        found
    }

    fn required_choice(
        &mut self,
        name: &'static str,
        allowed: &[&'static str],
    ) -> Option<&'static str> {
        if self.get(name).is_none() {
            return self.issue(name, format!("is missing: one of {}", allowed.join(", ")));
        }
        self.choice(name, allowed)
    }

    fn finish(mut self) -> Vec<Issue> {
        let all = self.object.into_iter().flat_map(Map::keys);
        let unknown: Vec<_> = all
            .filter(|k| !self.known.contains(&k.as_str()))
            .cloned()
            .collect();
        for name in if self.any_field { vec![] } else { unknown } {
            let message = format!(
                "is not a field of this; known are {}",
                self.known.join(", ")
            );
            self.issue::<()>(&name, message);
        }
        self.issues
    }
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;
