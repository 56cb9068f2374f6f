//! Where jobs may read and write: the sources and sinks that the operator has named, and what each allows.
//!
//! A job names a source and a sink, and what of each it wants. Who may enqueue chooses among what was given, and no more: an
//! address, a credential and a statement are the operator's word.

use std::collections::BTreeMap;
use std::time::Duration;

/// How long one statement may take where nothing else is said.
pub const USUAL_STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// All that jobs may name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    /// What may be read, by name.
    pub sources: BTreeMap<String, NamedSource>,
    /// What may be written, by name.
    pub sinks: BTreeMap<String, NamedSink>,
    /// Jobs may also bring queries, tables and addresses of their own, and run them with the rights of this process.
    pub allow_queries: bool,
}

/// A database that jobs may read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedSource {
    /// Where its URL is; the queue's own database without it.
    pub database: Option<Hidden>,
    /// As whom it is read, and for how long.
    pub rights: Rights,
    /// Tables that jobs may name; one that ends with `*` stands for all that begin like it.
    pub tables: Vec<String>,
    /// Statements that jobs may name.
    pub statements: BTreeMap<String, String>,
    /// The key of all of these; without it each job says its own.
    pub key: Option<Vec<String>>,
}

/// A place that jobs may write to.
#[derive(Clone, Debug, PartialEq)]
pub enum NamedSink {
    /// A search engine that speaks `_bulk`.
    Elastic {
        /// Base address, without a trailing slash.
        url: String,
        /// Indexes that jobs may name; one that ends with `*` stands for all that begin like it.
        indexes: Vec<String>,
        /// Ingest pipelines that jobs may name, by the same rule.
        pipelines: Vec<String>,
        /// Where the text of the `authorization` header is.
        authorization: Option<Hidden>,
        /// A file of certificates that are trusted besides the system's.
        ca_file: Option<String>,
    },
    /// A database with full-text tables.
    Postgres {
        /// Where its URL is; the queue's own database without it.
        database: Option<Hidden>,
        /// As whom it is written, and for how long.
        rights: Rights,
        /// Tables that jobs may name; one that ends with `*` stands for all that begin like it.
        tables: Vec<String>,
    },
}

/// As whom a database is used, and for how long at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The role that each transaction takes; the one of the URL without it.
    pub role: Option<String>,
    /// Longest time of one statement; the server ends it then.
    pub statement_timeout: Duration,
}

impl Default for Rights {
    fn default() -> Self {
        Self { role: None, statement_timeout: USUAL_STATEMENT_TIMEOUT }
    }
}

/// A secret by where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// An environment variable that holds it.
    Variable(String),
    /// A file that does.
    File(String),
    /// An environment variable that a job has named: it goes only where a second variable says.
    Bound(String),
}

/// Whether one of these patterns stands for `name`: the same text, or its beginning where the pattern ends with `*`.
pub fn allows(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    })
}

/// A query without its last semicolon, if it begins as one that reads.
pub fn one_query(text: &str) -> Option<String> {
    let query = text.trim().trim_end_matches(';').trim_end();
    let first = query.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default().to_ascii_lowercase();
    matches!(first.as_str(), "select" | "with" | "table" | "values").then(|| query.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_stands_for_itself_or_for_what_begins_like_it() {
        let patterns = ["public.articles".to_owned(), "news-*".to_owned()];

        for name in ["public.articles", "news-", "news-7"] {
            assert!(allows(&patterns, name), "{name}");
        }
        for name in ["articles", "public.articles2", "news", "public.articles*", ""] {
            assert!(!allows(&patterns, name), "{name}");
        }
        assert!(!allows(&[], "anything"));
    }
}
