//! The catalogue: the sources and sinks that the operator has named, with the tables, statements
//! and indexes that each allows.
//!
//! A job names a source and a sink and chooses among the parts that they allow: only
//! the operator sets addresses, credentials and statements.

use std::collections::BTreeMap;
use std::time::Duration;

/// The usual limit on the time of one statement.
pub const USUAL_STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// The sources and sinks that jobs may name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    /// The sources, by name.
    pub sources: BTreeMap<String, NamedSource>,
    /// The sinks, by name.
    pub sinks: BTreeMap<String, NamedSink>,
    /// True if jobs may also bring queries, tables and addresses of their own, and run them with
    /// the rights of this process.
    pub allow_queries: bool,
}

/// The type of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceKind {
    /// A database of Postgres.
    #[default]
    Postgres,
    /// A deployment of MongoDB.
    Mongodb,
}

/// The path of a bulk request; `{index}` stands for the job's index.
pub const USUAL_BULK_PATH: &str = "/{index}/_bulk";

/// A database that jobs may read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedSource {
    pub kind: SourceKind,
    /// Collections that jobs may name, as `database.collection`; a name that ends with `*` stands
    /// for all that begin like it.
    pub collections: Vec<String>,
    /// The location of its URL; `None` for the queue's own database.
    pub database: Option<SecretLocation>,
    /// The role to read as, and the limit on each statement's time.
    pub rights: DatabaseRights,
    /// Tables that jobs may name; a name that ends with `*` stands for all that begin like it.
    pub tables: Vec<String>,
    /// Statements that jobs may name.
    pub statements: BTreeMap<String, String>,
    /// The key of all these tables and statements; `None` if each job sets its own.
    pub key: Option<Vec<String>>,
}

/// A destination that jobs may write to.
#[derive(Clone, Debug, PartialEq)]
pub enum NamedSink {
    /// A search engine that speaks `_bulk`.
    Elastic {
        /// Base address, without a trailing slash.
        url: String,
        /// Indexes that jobs may name; a name that ends with `*` stands for all that begin like it.
        indexes: Vec<String>,
        /// The path of a bulk request; `{index}` stands for the job's index.
        bulk_path: String,
        /// Ingest pipelines that jobs may name, by the same rule.
        pipelines: Vec<String>,
        /// Aliases that jobs may move to their index, by the same rule.
        aliases: Vec<String>,
        /// The location of the text of the `authorization` header.
        authorization: Option<SecretLocation>,
        /// A file of certificates that are trusted besides the system's.
        ca_file: Option<String>,
    },
    /// A database with full-text tables.
    Postgres {
        /// The location of its URL; `None` for the queue's own database.
        database: Option<SecretLocation>,
        /// The role to write as, and the limit on each statement's time.
        rights: DatabaseRights,
        /// Tables that jobs may name; a name that ends with `*` stands for all that begin like it.
        tables: Vec<String>,
    },
}

/// The role for a database, and the limit on each statement's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseRights {
    /// The role that each transaction takes; `None` for the role of the URL.
    pub role: Option<String>,
    /// Longest time of one statement, after which the server ends it.
    pub statement_timeout: Duration,
}

impl Default for DatabaseRights {
    fn default() -> Self {
        Self {
            role: None,
            statement_timeout: USUAL_STATEMENT_TIMEOUT,
        }
    }
}

/// The location of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretLocation {
    /// An environment variable that holds it.
    Variable(String),
    /// A file that holds it.
    File(String),
    /// An environment variable that a job has named; its text is sent only to the origins that a
    /// second variable lists.
    Bound(String),
}

/// Returns a query without its last semicolon, if its first word is one of a query.
pub fn one_query(text: &str) -> Option<String> {
    let query = text.trim().trim_end_matches(';').trim_end();
    let first = query
        .split(|c: char| !c.is_ascii_alphabetic())
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    matches!(first.as_str(), "select" | "with" | "table" | "values").then(|| query.to_owned())
}
