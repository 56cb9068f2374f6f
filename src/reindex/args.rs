//! Arguments of reindex jobs, parsed with every fault listed.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::Value;

use super::arg_fields::{
    columns, key, list, missing, not_allowed, refuse, required, required_choice, table, text,
    variable, wrong,
};
use super::catalogue::{
    Catalogue, Hidden, NamedSink, NamedSource, Rights, SourceKind, USUAL_BULK_PATH, one_query,
};
use crate::input::patterns::allows;
use crate::input::{Issue, Reader};

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

/// A table or statement in Postgres, or a collection in MongoDB, read in the order of a unique key.
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
    /// True if the job copies changes as well, from the start of the scan on, and does not end.
    pub follow: bool,
    /// The response to changes that the source no longer has.
    pub on_lost_changes: OnLostChanges,
}

/// The response to changes that the source no longer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLostChanges {
    /// The job ends dead and says so. A retry scans from the beginning.
    #[default]
    DeadLetter,
    /// The job scans from the beginning by itself.
    Rescan,
}

/// The rows of a source.
#[derive(Clone, Debug, PartialEq)]
pub enum Rows {
    /// A table or view, as its schema (if named) and its name.
    Table(Vec<String>),
    /// A query that starts with `select` or `with`.
    Query(String),
    /// A collection of MongoDB.
    Collection(CollectionName),
}

/// A collection of MongoDB with its database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionName {
    pub database: String,
    pub name: String,
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
#[derive(Clone, Debug, PartialEq)]
pub struct Elastic {
    /// Base address, without a trailing slash.
    pub url: String,
    pub index: String,
    /// The path of a bulk request; `{index}` stands for the index.
    pub bulk_path: String,
    /// The alias that is moved to the index after the last document.
    pub alias: Option<String>,
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

impl Default for Elastic {
    fn default() -> Self {
        Self {
            url: String::new(),
            index: String::new(),
            bulk_path: USUAL_BULK_PATH.to_owned(),
            alias: None,
            id: String::new(),
            authorization: None,
            ca_file: None,
            is_guarded: false,
            creates: false,
            pipeline: None,
            routing: None,
        }
    }
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

/// The fields of the arguments.
const FIELDS: [&str; 6] = [
    "source",
    "sink",
    "batch_docs",
    "batch_bytes",
    "concurrency",
    "on_bad_document",
];

/// The words of `on_bad_document`.
const ON_BAD_DOCUMENT: [(&str, OnBadDocument); 2] = [
    ("dead_letter", OnBadDocument::DeadLetter),
    ("skip", OnBadDocument::Skip),
];

/// Prefix of variables that hold databases' URLs and that jobs may name, if jobs may bring their
/// own.
const DATABASES: &str = "REINDEX_DATABASE_";
/// Prefix of variables that hold texts of the `authorization` header and that jobs may name, if
/// jobs may bring their own.
const AUTHORIZATIONS: &str = "REINDEX_AUTH_";
/// Suffix of the variable that lists the origins to which such a header may be sent.
pub(super) const ORIGINS: &str = "_ORIGINS";

/// The refusal of addresses, tables and queries that a job brings.
const NOT_FREE: &str = "must be left out: a job names a source and a sink of the settings file, and brings no address, table, SQL or variable \
     of its own unless the operator sets allow_reindex_queries";

/// The refusal of what makes a deleted document impossible to find.
const FOLLOWED_BY_ID: &str =
    "must be left out with \"follow\": a deleted document is known by its _id alone";

/// The words of `on_lost_changes`.
const ON_LOST_CHANGES: [(&str, OnLostChanges); 2] = [
    ("dead_letter", OnLostChanges::DeadLetter),
    ("rescan", OnLostChanges::Rescan),
];

/// The refusal of a database's URL in a job.
const NO_URL: &str = "must be left out, because credentials do not belong into a job: put the URL into an environment variable of the workers and name that in \"url_env\"";

impl Args {
    /// Parses arguments against the operator's catalogue, or lists everything that is wrong with
    /// them.
    pub fn parse(args: &Value, catalogue: &Catalogue) -> Result<Self, Vec<Issue>> {
        let mut issues = Vec::new();
        let read = Reader::of(args, "", &FIELDS, &mut issues)
            .and_then(|fields| Self::read(fields.null_is_absent(), catalogue));
        match read {
            Some(read) if issues.is_empty() => Ok(read),
            _ => Err(issues),
        }
    }

    fn read(mut fields: Reader<'_>, catalogue: &Catalogue) -> Option<Self> {
        let source = fields
            .part("source", &[])
            .and_then(|mut source| self::source(&mut source, catalogue));
        // An invalid source is one fault, not two: its missing key is no fault of the sink.
        let key = source.as_ref().map_or(Some(String::new()), |source| {
            (source.key.len() == 1).then(|| source.key[0].clone())
        });
        let follow = source.as_ref().is_some_and(|source| source.follow);
        let sink = fields.part("sink", &[]).and_then(|mut sink| {
            if follow {
                refuse(&mut sink, "id", FOLLOWED_BY_ID);
                refuse(&mut sink, "routing", FOLLOWED_BY_ID);
                refuse(&mut sink, "op_type", FOLLOWED_BY_ID);
            }
            self::sink(&mut sink, key, catalogue)
        });
        let mut count = |name: &str, usual: usize, range: RangeInclusive<u64>| {
            let range = *range.start() as i64..=*range.end() as i64;
            let number = fields.whole(name, range, "");
            number.map_or(usual, |number| number as usize)
        };
        let batch_docs = count("batch_docs", 500, 1..=MAX_BATCH_DOCS);
        let batch_bytes = count("batch_bytes", 5_000_000, 1_000..=MAX_BATCH_BYTES);
        let concurrency = count("concurrency", 8, 1..=MAX_CONCURRENCY);
        let on_bad_document = fields.choice("on_bad_document", &ON_BAD_DOCUMENT);
        Some(Self {
            source: source?,
            sink: sink?,
            batch_docs,
            batch_bytes,
            concurrency,
            on_bad_document: on_bad_document.unwrap_or_default(),
        })
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
fn refuse_free<'n, T>(
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

fn source(fields: &mut Reader<'_>, catalogue: &Catalogue) -> Option<SourceArgs> {
    if fields.has("name") {
        let given = named(fields, &catalogue.sources, "source")?;
        if given.kind == SourceKind::Mongodb {
            fields.only(&["name", "collection", "columns", "follow", "on_lost_changes"]);
            let allowed = Some(given.collections.as_slice());
            let rights = given.rights.clone();
            return collection(fields, given.database.clone(), rights, allowed);
        }
        fields.only(&["name", "table", "statement", "key", "columns"]);
        return named_source(fields, given);
    }
    if !catalogue.allow_queries {
        return refuse_free(fields, "source", catalogue.sources.keys());
    }
    let kinds = [
        ("postgres", SourceKind::Postgres),
        ("mongodb", SourceKind::Mongodb),
    ];
    // Only a build with MongoDB offers it.
    let kinds = if cfg!(feature = "mongodb") {
        &kinds[..]
    } else {
        &kinds[..1]
    };
    let kind = required_choice(fields, "type", kinds);
    refuse(fields, "url", NO_URL);
    if kind == Some(SourceKind::Mongodb) {
        fields.only(&[
            "name",
            "type",
            "url",
            "url_env",
            "collection",
            "columns",
            "follow",
            "on_lost_changes",
        ]);
        let database = variable(fields, "url_env", DATABASES).map(Hidden::Variable);
        if database.is_none() && !fields.has("url_env") {
            fields.missing(
                "url_env",
                "an environment variable that holds the URL of a deployment",
            );
        }
        return collection(fields, Some(database?), Rights::default(), None);
    }
    fields.only(&[
        "name", "type", "url", "url_env", "table", "query", "key", "columns",
    ]);
    let database = variable(fields, "url_env", DATABASES).map(Hidden::Variable);
    let rows = match (text(fields, "table"), text(fields, "query")) {
        (Some(_), Some(_)) => wrong(
            fields,
            "query",
            "must be left out beside \"table\": give one of them",
        ),
        (Some(name), None) => table(fields, "table", &name).map(Rows::Table),
        (None, Some(query)) => select(fields, &query),
        (None, None) if fields.has("table") || fields.has("query") => None,
        (None, None) => missing(
            fields,
            "table",
            "a table (\"schema.table\"), or give a \"query\"",
        ),
    };
    let key = key(fields, None);
    let columns = columns(fields, "columns");
    Some(SourceArgs {
        database,
        rights: Rights::default(),
        rows: rows?,
        key: key?,
        columns,
        follow: false,
        on_lost_changes: OnLostChanges::default(),
    })
}

/// Reads a collection of MongoDB; `allowed` are the settings' names of those that jobs may read, and
/// without them jobs may read any.
fn collection(
    fields: &mut Reader<'_>,
    database: Option<Hidden>,
    rights: Rights,
    allowed: Option<&[String]>,
) -> Option<SourceArgs> {
    let name = required(
        fields,
        "collection",
        "a collection, as \"database.collection\"",
    );
    let name = name.and_then(|name| match allowed {
        Some(patterns) if !allows(patterns, &name) => {
            not_allowed(fields, "collection", "collections", patterns.iter())
        }
        _ => match name.split_once('.') {
            Some((database, rest)) if !database.is_empty() && !rest.is_empty() => {
                let (database, name) = (database.to_owned(), rest.to_owned());
                Some(CollectionName { database, name })
            }
            _ => wrong(fields, "collection", "must be \"database.collection\""),
        },
    });
    let columns = columns(fields, "columns");
    let follow = fields.flag("follow").unwrap_or_default();
    let on_lost_changes = fields.choice("on_lost_changes", &ON_LOST_CHANGES);
    if on_lost_changes.is_some() && !follow {
        fields.wrong(
            "on_lost_changes",
            "must be left out without \"follow\": true",
        );
    }
    Some(SourceArgs {
        database,
        rights,
        rows: Rows::Collection(name?),
        key: vec!["_id".to_owned()],
        columns,
        follow,
        on_lost_changes: on_lost_changes.unwrap_or_default(),
    })
}

fn named_source(fields: &mut Reader<'_>, given: &NamedSource) -> Option<SourceArgs> {
    let rows = match (text(fields, "table"), text(fields, "statement")) {
        (Some(_), Some(_)) => wrong(
            fields,
            "statement",
            "must be left out beside \"table\": give one of them",
        ),
        (Some(name), None) if allows(&given.tables, &name) => {
            table(fields, "table", &name).map(Rows::Table)
        }
        (Some(_), None) => not_allowed(fields, "table", "tables", given.tables.iter()),
        (None, Some(statement)) => match given.statements.get(&statement) {
            Some(query) => Some(Rows::Query(query.clone())),
            None => not_allowed(fields, "statement", "statements", given.statements.keys()),
        },
        (None, None) if fields.has("table") || fields.has("statement") => None,
        (None, None) => missing(
            fields,
            "table",
            "a table of this source, or give a \"statement\"",
        ),
    };
    let key = key(fields, given.key.as_deref());
    let columns = columns(fields, "columns");
    Some(SourceArgs {
        database: given.database.clone(),
        rights: given.rights.clone(),
        rows: rows?,
        key: key?,
        columns,
        follow: false,
        on_lost_changes: OnLostChanges::default(),
    })
}

/// Accepts one statement that reads; the transaction is read-only besides.
fn select(fields: &mut Reader<'_>, query: &str) -> Option<Rows> {
    match one_query(query) {
        Some(query) => Some(Rows::Query(query)),
        None => wrong(
            fields,
            "query",
            "must be one query that starts with select or with",
        ),
    }
}

fn sink(fields: &mut Reader<'_>, key: Option<String>, catalogue: &Catalogue) -> Option<Sink> {
    let given = match fields.has("name") {
        true => Some(named(fields, &catalogue.sinks, "sink")?),
        false if catalogue.allow_queries => None,
        false => return refuse_free(fields, "sink", catalogue.sinks.keys()),
    };
    let is_elastic = match given {
        Some(NamedSink::Elastic { .. }) => true,
        Some(NamedSink::Postgres { .. }) => false,
        None => required_choice(fields, "type", &[("elastic", true), ("postgres", false)])?,
    };
    let id = text(fields, "id");
    let id = match (id, key) {
        (Some(id), _) => Some(id),
        (None, Some(key)) if !fields.has("id") => Some(key),
        (None, _) if fields.has("id") => None,
        _ => missing(fields, "id", "the column that is the document's id"),
    };
    if is_elastic {
        elastic(fields, id, given)
    } else {
        full_text(fields, id, given)
    }
}

fn elastic(fields: &mut Reader<'_>, id: Option<String>, given: Option<&NamedSink>) -> Option<Sink> {
    let base = match given {
        Some(NamedSink::Elastic {
            url,
            authorization,
            ca_file,
            bulk_path,
            ..
        }) => {
            fields.only(&[
                "name", "id", "index", "alias", "pipeline", "op_type", "routing",
            ]);
            let (authorization, ca_file) = (authorization.clone(), ca_file.clone());
            Some(Elastic {
                url: url.clone(),
                authorization,
                ca_file,
                bulk_path: bulk_path.clone(),
                ..Elastic::default()
            })
        }
        _ => {
            fields.only(&[
                "name",
                "type",
                "id",
                "url",
                "authorization_env",
                "index",
                "alias",
                "pipeline",
                "op_type",
                "routing",
            ]);
            let allowed = "the address of the search engine, e.g. \"http://127.0.0.1:9200\"";
            let url = required(fields, "url", allowed).and_then(|url| address(fields, url));
            let authorization = match variable(fields, "authorization_env", AUTHORIZATIONS) {
                Some(name) if name.ends_with(ORIGINS) => wrong(
                    fields,
                    "authorization_env",
                    "must not name the variable of the origins to which such a text may go",
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
    let index = required(fields, "index", "the name of the index")
        .and_then(|index| index_name(fields, "index", index));
    let alias = text(fields, "alias").and_then(|alias| index_name(fields, "alias", alias));
    if alias.is_some() && alias == index {
        fields.wrong("alias", "must not be the index itself");
    }
    let pipeline = text(fields, "pipeline").and_then(|pipeline| pipeline_name(fields, pipeline));
    let creates = fields.choice("op_type", &[("index", false), ("create", true)]);
    let routing = text(fields, "routing");
    if let Some(NamedSink::Elastic {
        indexes,
        pipelines,
        aliases,
        ..
    }) = given
    {
        if alias.as_ref().is_some_and(|alias| !allows(aliases, alias)) {
            return not_allowed(fields, "alias", "aliases", aliases.iter());
        }
        if index.as_ref().is_some_and(|index| !allows(indexes, index)) {
            return not_allowed(fields, "index", "indexes", indexes.iter());
        }
        if pipeline
            .as_ref()
            .is_some_and(|pipeline| !allows(pipelines, pipeline))
        {
            return not_allowed(fields, "pipeline", "pipelines", pipelines.iter());
        }
    }
    Some(Sink::Elastic(Elastic {
        index: index?,
        id: id?,
        alias,
        pipeline,
        creates: creates.unwrap_or_default(),
        routing,
        ..base?
    }))
}

fn full_text(
    fields: &mut Reader<'_>,
    id: Option<String>,
    given: Option<&NamedSink>,
) -> Option<Sink> {
    let (database, rights) = match given {
        Some(NamedSink::Postgres {
            database, rights, ..
        }) => {
            fields.only(&["name", "id", "table", "text", "config"]);
            (database.clone(), rights.clone())
        }
        _ => {
            fields.only(&[
                "name", "type", "id", "url", "url_env", "table", "text", "config",
            ]);
            refuse(fields, "url", NO_URL);
            (
                variable(fields, "url_env", DATABASES).map(Hidden::Variable),
                Rights::default(),
            )
        }
    };
    let table = match (text(fields, "table"), given) {
        (Some(name), Some(NamedSink::Postgres { tables, .. })) if !allows(tables, &name) => {
            not_allowed(fields, "table", "tables", tables.iter())
        }
        (Some(name), _) => table(fields, "table", &name),
        (None, _) if fields.has("table") => None,
        (None, _) => missing(
            fields,
            "table",
            "the table to write, e.g. \"search.documents\"",
        ),
    };
    let text_fields = columns(fields, "text");
    let config = text(fields, "config").unwrap_or_else(|| "english".to_owned());
    Some(Sink::Postgres {
        database,
        rights,
        table: table?,
        text: text_fields,
        config,
        id: id?,
    })
}

fn address(fields: &mut Reader<'_>, url: String) -> Option<String> {
    let url = url.trim_end_matches('/').to_owned();
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    let Some(rest) = rest else {
        return wrong(
            fields,
            "url",
            "must be a URL that begins with http:// or https://",
        );
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.is_empty() || rest.contains(['?', '#', ' ', '\n']) {
        let message = "must be the base address of the search engine, without a query";
        return wrong(fields, "url", message);
    }
    if host.contains('@') {
        let message = "must be without a user name and a password: use \"authorization_env\"";
        return wrong(fields, "url", message);
    }
    Some(url)
}

fn index_name(fields: &mut Reader<'_>, field: &str, index: String) -> Option<String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    if index.len() > 255 || index.starts_with(['-', '_', '.']) || !index.chars().all(allowed) {
        let allowed =
            "1 to 255 lower-case letters, digits or any of - _ . and start with a letter or digit";
        fields.refuse(field, allowed, &Value::String(index));
        return None;
    }
    Some(index)
}

/// Accepts a name that needs no escaping in a URL.
fn pipeline_name(fields: &mut Reader<'_>, pipeline: String) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if pipeline.len() > 255 || !pipeline.chars().all(allowed) {
        let allowed = "1 to 255 letters, digits or any of - _ .";
        fields.refuse("pipeline", allowed, &Value::String(pipeline));
        return None;
    }
    Some(pipeline)
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;
