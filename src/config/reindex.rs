//! Sources and sinks for jobs of the kind `reindex`: `[reindex.sources.<name>]` and
//! `[reindex.sinks.<name>]` of the settings file.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::servers::Wrong;
use crate::reindex::Catalogue;
use crate::reindex::catalogue::{
    Hidden, NamedSink, NamedSource, Rights, USUAL_STATEMENT_TIMEOUT, one_query,
};

/// Keys of `[reindex.sources.<name>]`.
pub const SOURCE_KEYS: [&str; 7] = [
    "url_env",
    "url_file",
    "role",
    "statement_timeout_s",
    "tables",
    "statements",
    "key",
];

/// Keys of `[reindex.sinks.<name>]`.
pub const SINK_KEYS: [&str; 12] = [
    "type",
    "url",
    "indexes",
    "pipelines",
    "authorization_env",
    "authorization_file",
    "ca_file",
    "url_env",
    "url_file",
    "role",
    "statement_timeout_s",
    "tables",
];

/// All sources and sinks.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReindexSettings {
    /// Databases that jobs may read.
    #[serde(default)]
    pub sources: BTreeMap<String, SourceSettings>,
    /// Search engines and databases that jobs may write to.
    #[serde(default)]
    pub sinks: BTreeMap<String, SinkSettings>,
}

/// A database that jobs may read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceSettings {
    /// The environment variable that holds its URL.
    pub url_env: Option<String>,
    /// The file that holds its URL.
    pub url_file: Option<String>,
    /// The role that each transaction takes.
    pub role: Option<String>,
    /// Longest time of one statement, in seconds.
    pub statement_timeout_s: Option<f64>,
    /// Tables that jobs may name.
    #[serde(default)]
    pub tables: Vec<String>,
    /// Statements that jobs may name.
    #[serde(default)]
    pub statements: BTreeMap<String, String>,
    /// The key of all these tables and statements.
    pub key: Option<Columns>,
}

/// One column, or several.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Columns {
    /// The name of a single column.
    One(String),
    /// The names of several columns, in their order.
    Many(Vec<String>),
}

/// A destination that jobs may write to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkSettings {
    /// The type of the sink: `elastic` or `postgres`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The search engine's base address, without credentials.
    pub url: Option<String>,
    /// Indexes that jobs may name.
    #[serde(default)]
    pub indexes: Vec<String>,
    /// Ingest pipelines that jobs may name.
    #[serde(default)]
    pub pipelines: Vec<String>,
    /// The environment variable that holds the text of the `authorization` header.
    pub authorization_env: Option<String>,
    /// The file that holds the text of the `authorization` header.
    pub authorization_file: Option<String>,
    /// A file of certificates in PEM form that are trusted besides the system's.
    pub ca_file: Option<String>,
    /// The environment variable that holds the database's URL.
    pub url_env: Option<String>,
    /// The file that holds the database's URL.
    pub url_file: Option<String>,
    /// The role that each transaction takes.
    pub role: Option<String>,
    /// Longest time of one statement, in seconds.
    pub statement_timeout_s: Option<f64>,
    /// Tables that jobs may name.
    #[serde(default)]
    pub tables: Vec<String>,
}

impl ReindexSettings {
    /// Builds the catalogue of the sources and sinks that jobs may name.
    pub(super) fn catalogue(&self, allow_queries: bool) -> Catalogue {
        let sources = self
            .sources
            .iter()
            .map(|(name, source)| (name.clone(), source.named()))
            .collect();
        let sinks = self
            .sinks
            .iter()
            .map(|(name, sink)| (name.clone(), sink.named()))
            .collect();
        Catalogue {
            sources,
            sinks,
            allow_queries,
        }
    }
}

impl SourceSettings {
    fn named(&self) -> NamedSource {
        NamedSource {
            database: hidden(self.url_env.as_ref(), self.url_file.as_ref()),
            rights: rights(self.role.as_ref(), self.statement_timeout_s),
            tables: self.tables.clone(),
            statements: self
                .statements
                .iter()
                .filter_map(|(name, text)| Some((name.clone(), one_query(text)?)))
                .collect(),
            key: self.key.as_ref().map(Columns::all),
        }
    }

    /// Checks the rules that the types cannot express, and returns the first violation.
    pub(super) fn check(&self) -> Option<Wrong> {
        if self.url_env.is_some() && self.url_file.is_some() {
            return Some(BOTH_URLS);
        }
        if self.tables.is_empty() && self.statements.is_empty() {
            return Some((
                "tables",
                "missing, as is statements",
                "at least one of the two, so that jobs may read something",
            ));
        }
        if !self.tables.iter().all(|table| is_table(table)) {
            return Some(NO_TABLE);
        }
        if self
            .statements
            .values()
            .any(|text| one_query(text).is_none())
        {
            return Some((
                "statements",
                "not all queries",
                "texts that begin with select or with",
            ));
        }
        if self
            .key
            .as_ref()
            .is_some_and(|key| key.all().is_empty() || key.all().iter().any(String::is_empty))
        {
            return Some(("key", "no column", "a column's name, or a list of them"));
        }
        check_time(self.statement_timeout_s)
    }
}

impl SinkSettings {
    fn named(&self) -> NamedSink {
        if self.kind == "elastic" {
            return NamedSink::Elastic {
                url: self
                    .url
                    .as_deref()
                    .unwrap_or_default()
                    .trim_end_matches('/')
                    .to_owned(),
                indexes: self.indexes.clone(),
                pipelines: self.pipelines.clone(),
                authorization: hidden(
                    self.authorization_env.as_ref(),
                    self.authorization_file.as_ref(),
                ),
                ca_file: self.ca_file.clone(),
            };
        }
        NamedSink::Postgres {
            database: hidden(self.url_env.as_ref(), self.url_file.as_ref()),
            rights: rights(self.role.as_ref(), self.statement_timeout_s),
            tables: self.tables.clone(),
        }
    }

    /// Checks the rules that the types cannot express, and returns the first violation.
    pub(super) fn check(&self) -> Option<Wrong> {
        match self.kind.as_str() {
            "elastic" => self.check_elastic(),
            "postgres" => self.check_postgres(),
            _ => Some(("type", "unknown", "elastic or postgres")),
        }
    }

    fn check_elastic(&self) -> Option<Wrong> {
        let of_postgres = [
            ("url_env", self.url_env.is_some()),
            ("url_file", self.url_file.is_some()),
            ("role", self.role.is_some()),
            ("statement_timeout_s", self.statement_timeout_s.is_some()),
            ("tables", !self.tables.is_empty()),
        ];
        if let Some((key, _)) = of_postgres.into_iter().find(|(_, is_set)| *is_set) {
            return Some((
                key,
                "set for a sink of the type elastic",
                "for the type postgres only",
            ));
        }
        let url = self.url.as_deref().unwrap_or_default();
        let rest = url
            .strip_prefix("http://")
            .or(url.strip_prefix("https://"))
            .unwrap_or_default();
        let authority = rest.split('/').next().unwrap_or_default();
        if authority.is_empty() || rest.contains(['?', '#', ' ']) {
            return Some((
                "url",
                "missing, or not such a URL",
                "http:// or https://, without a query",
            ));
        }
        if authority.contains('@') {
            return Some((
                "url",
                "one with credentials",
                "a URL without them; use authorization_env or authorization_file",
            ));
        }
        if self.indexes.is_empty() {
            return Some((
                "indexes",
                "missing",
                "a list of indexes that jobs may write, such as [\"articles-*\"]",
            ));
        }
        if self.authorization_env.is_some() && self.authorization_file.is_some() {
            return Some((
                "authorization_file",
                "set beside authorization_env",
                "one of the two",
            ));
        }
        if self.ca_file.is_some() && !url.starts_with("https://") {
            return Some((
                "ca_file",
                "set for a sink without TLS",
                "a url that begins with https://",
            ));
        }
        None
    }

    fn check_postgres(&self) -> Option<Wrong> {
        let of_elastic = [
            ("url", self.url.is_some()),
            ("indexes", !self.indexes.is_empty()),
            ("pipelines", !self.pipelines.is_empty()),
            ("authorization_env", self.authorization_env.is_some()),
            ("authorization_file", self.authorization_file.is_some()),
            ("ca_file", self.ca_file.is_some()),
        ];
        if let Some((key, _)) = of_elastic.into_iter().find(|(_, is_set)| *is_set) {
            return Some((
                key,
                "set for a sink of the type postgres",
                "for the type elastic only",
            ));
        }
        if self.url_env.is_some() && self.url_file.is_some() {
            return Some(BOTH_URLS);
        }
        if self.tables.is_empty() || !self.tables.iter().all(|table| is_table(table)) {
            return Some(NO_TABLE);
        }
        check_time(self.statement_timeout_s)
    }
}

impl Columns {
    fn all(&self) -> Vec<String> {
        match self {
            Self::One(column) => vec![column.clone()],
            Self::Many(columns) => columns.clone(),
        }
    }
}

const BOTH_URLS: Wrong = (
    "url_file",
    "set beside url_env",
    "one of the two, or neither for the queue's own database",
);
const NO_TABLE: Wrong = (
    "tables",
    "no list of tables",
    "a list such as [\"public.articles\", \"blog.*\"]",
);

fn is_table(name: &str) -> bool {
    let parts: Vec<_> = name.split('.').collect();
    parts.len() <= 2 && parts.iter().all(|part| !part.is_empty())
}

fn check_time(seconds: Option<f64>) -> Option<Wrong> {
    let wrong = seconds.is_some_and(|seconds| !(0.1..=3600.0).contains(&seconds));
    wrong.then_some(("statement_timeout_s", "out of range", "0.1 to 3600 seconds"))
}

fn hidden(variable: Option<&String>, file: Option<&String>) -> Option<Hidden> {
    variable
        .cloned()
        .map(Hidden::Variable)
        .or_else(|| file.cloned().map(Hidden::File))
}

fn rights(role: Option<&String>, timeout_s: Option<f64>) -> Rights {
    // The range has been checked.
    let timeout = timeout_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Rights {
        role: role.cloned(),
        statement_timeout: timeout.unwrap_or(USUAL_STATEMENT_TIMEOUT),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    fn load(text: &str) -> Result<Settings, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own.toml");
        std::fs::write(&path, text).unwrap();
        Settings::load(Some(&path), &BTreeMap::new()).map_err(|error| error.to_string())
    }

    #[test]
    fn sources_and_sinks_are_named_with_all_that_jobs_may_choose() {
        let text = "[reindex.sources.shop]\nurl_env = \"SHOP\"\nrole = \"reader\"\nstatement_timeout_s = 2.5\ntables = [\"a\"]\nkey = \"id\"\n\
                    [reindex.sources.shop.statements]\nvisible = \"select 1 as id;\"\n\n\
                    [reindex.sinks.search]\ntype = \"elastic\"\nurl = \"https://s:9200/\"\nindexes = [\"a-*\"]\nauthorization_file = \"/run/k\"\n\n\
                    [reindex.sinks.fts]\ntype = \"postgres\"\ntables = [\"search.*\"]\n";
        let catalogue = load(text)
            .unwrap_or_else(|error| panic!("{error}"))
            .catalogue();

        let shop = &catalogue.sources["shop"];
        assert_eq!(shop.database, Some(Hidden::Variable("SHOP".into())));
        assert_eq!(
            shop.rights,
            Rights {
                role: Some("reader".into()),
                statement_timeout: Duration::from_millis(2500)
            }
        );
        assert_eq!(
            (shop.statements["visible"].as_str(), shop.key.as_deref()),
            ("select 1 as id", Some(&["id".to_owned()][..]))
        );
        let NamedSink::Elastic {
            url, authorization, ..
        } = &catalogue.sinks["search"]
        else {
            panic!()
        };
        assert_eq!(
            (url.as_str(), authorization),
            ("https://s:9200", &Some(Hidden::File("/run/k".into())))
        );
        assert!(matches!(
            &catalogue.sinks["fts"],
            NamedSink::Postgres { database: None, .. }
        ));
        assert!(!catalogue.allow_queries);
    }

    #[test]
    fn one_that_cannot_be_meant_is_refused_with_its_place_and_what_is_allowed() {
        let source = |rest: &str| format!("[reindex.sources.a]\n{rest}\n");
        let sink = |rest: &str| format!("[reindex.sinks.a]\n{rest}\n");
        for (text, expected) in [
            (
                source("url_env = \"A\""),
                "reindex.sources.a.tables is missing, as is statements",
            ),
            (
                source("tables = [\"a\"]\nurl_env = \"A\"\nurl_file = \"b\""),
                "own.toml:4: reindex.sources.a.url_file is set beside",
            ),
            (
                source("tables = [\"a.b.c\"]"),
                "own.toml:2: reindex.sources.a.tables is no list of tables",
            ),
            (
                source("statements = { a = \"delete from b\" }"),
                "reindex.sources.a.statements is not all queries",
            ),
            (
                source("tables = [\"a\"]\nstatement_timeout_s = 0"),
                "own.toml:3: reindex.sources.a.statement_timeout_s is out of range",
            ),
            (
                source("tables = [\"a\"]\nurl = \"postgres://u:very-secret@h/d\""),
                "unknown field `url`",
            ),
            (
                sink("type = \"mysql\""),
                "own.toml:2: reindex.sinks.a.type is unknown; allowed is elastic or postgres",
            ),
            (
                sink("type = \"elastic\"\nindexes = [\"a\"]\nurl = \"https://u:very-secret@h\""),
                "reindex.sinks.a.url is one with credentials",
            ),
            (
                sink("type = \"elastic\"\nurl = \"https://h\""),
                "reindex.sinks.a.indexes is missing",
            ),
            (
                sink("type = \"elastic\"\nurl = \"http://h\"\nindexes = [\"a\"]\nca_file = \"c\""),
                "own.toml:5: reindex.sinks.a.ca_file is",
            ),
            (
                sink("type = \"postgres\"\ntables = [\"a\"]\nurl = \"http://h\""),
                "own.toml:4: reindex.sinks.a.url is set for",
            ),
            (
                sink("type = \"postgres\""),
                "reindex.sinks.a.tables is no list of tables",
            ),
            (
                "[reindex]\nallow = true\n".to_owned(),
                "unknown field `allow`",
            ),
        ] {
            let told = load(&text)
                .err()
                .unwrap_or_else(|| panic!("accepted: {text}"));
            assert!(
                told.contains(expected) && !told.contains("very-secret"),
                "{told}"
            );
        }
    }
}
