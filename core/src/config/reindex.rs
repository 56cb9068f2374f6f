//! Sources and sinks for jobs of the kind `reindex`: `[reindex.sources.<name>]` and
//! `[reindex.sinks.<name>]` of the settings file.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::servers::require;
use crate::input::Issue;
use crate::reindex::Catalogue;
use crate::reindex::catalogue::{
    DatabaseRights, NamedSink, NamedSource, SecretLocation, SourceKind, USUAL_BULK_PATH,
    USUAL_STATEMENT_TIMEOUT, one_query,
};

/// Keys of `[reindex.sources.<name>]`.
pub const SOURCE_KEYS: [&str; 9] = [
    "type",
    "url_env",
    "url_file",
    "role",
    "statement_timeout_s",
    "tables",
    "collections",
    "statements",
    "key",
];

/// Keys of `[reindex.sinks.<name>]`.
pub const SINK_KEYS: [&str; 14] = [
    "type",
    "url",
    "indexes",
    "bulk_path",
    "pipelines",
    "aliases",
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
    /// The type of the source: `postgres` or `mongodb`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Collections that jobs may name.
    #[serde(default)]
    pub collections: Vec<String>,
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
    /// The path of a bulk request; `{index}` stands for the job's index.
    pub bulk_path: Option<String>,
    /// Ingest pipelines that jobs may name.
    #[serde(default)]
    pub pipelines: Vec<String>,
    /// Aliases that jobs may move.
    #[serde(default)]
    pub aliases: Vec<String>,
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
            kind: match self.kind.as_deref() {
                Some("mongodb") => SourceKind::Mongodb,
                _ => SourceKind::Postgres,
            },
            collections: self.collections.clone(),
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

    /// Checks the rules that the types cannot express.
    pub(super) fn check(&self, at: &str, issues: &mut Vec<Issue>) {
        match self.kind.as_deref() {
            None | Some("postgres") => self.check_tables(at, issues),
            Some("mongodb") => self.check_collections(at, issues),
            Some(_) => require(issues, at, false, "type", "must be postgres or mongodb"),
        }
        let is_time = is_time(self.statement_timeout_s);
        require(issues, at, is_time, "statement_timeout_s", NO_TIME);
    }

    fn check_collections(&self, at: &str, issues: &mut Vec<Issue>) {
        let mut require = |is_fit, key, message| require(issues, at, is_fit, key, message);
        require(
            cfg!(feature = "mongodb"),
            "type",
            "must be postgres: this program was built without the feature \"mongodb\"",
        );
        for (key, is_set) in [
            ("role", self.role.is_some()),
            ("tables", !self.tables.is_empty()),
            ("statements", !self.statements.is_empty()),
            ("key", self.key.is_some()),
        ] {
            require(!is_set, key, "must be left out unless type is postgres");
        }
        require(
            self.url_env.is_some() != self.url_file.is_some(),
            "url_env",
            "must be set, or url_file, and not both",
        );
        let are_collections = self.collections.iter().all(|name| is_collection(name));
        require(
            !self.collections.is_empty() && are_collections,
            "collections",
            "must be a list such as [\"shop.articles\", \"blog.*\"]",
        );
    }

    fn check_tables(&self, at: &str, issues: &mut Vec<Issue>) {
        let mut require = |is_fit, key, message| require(issues, at, is_fit, key, message);
        require(
            self.collections.is_empty(),
            "collections",
            "must be left out unless type is mongodb",
        );
        require(
            self.url_env.is_none() || self.url_file.is_none(),
            "url_file",
            BOTH_URLS,
        );
        if self.tables.is_empty() && self.statements.is_empty() {
            require(
                false,
                "tables",
                "is missing, as is statements: jobs must be able to read something",
            );
        }
        let are_tables = self.tables.iter().all(|table| is_table(table));
        require(are_tables, "tables", NO_TABLE);
        let are_queries = self
            .statements
            .values()
            .all(|text| one_query(text).is_some());
        require(
            are_queries,
            "statements",
            "must be texts that begin with select or with",
        );
        let key = self.key.as_ref().map(Columns::all);
        let is_key = key.is_none_or(|key| !key.is_empty() && !key.iter().any(String::is_empty));
        require(is_key, "key", "must be a column's name, or a list of them");
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
                bulk_path: self
                    .bulk_path
                    .clone()
                    .unwrap_or_else(|| USUAL_BULK_PATH.to_owned()),
                pipelines: self.pipelines.clone(),
                aliases: self.aliases.clone(),
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

    /// Checks the rules that the types cannot express.
    pub(super) fn check(&self, at: &str, issues: &mut Vec<Issue>) {
        match self.kind.as_str() {
            "elastic" => self.check_elastic(at, issues),
            "postgres" => self.check_postgres(at, issues),
            _ => require(issues, at, false, "type", "must be elastic or postgres"),
        }
    }

    fn check_elastic(&self, at: &str, issues: &mut Vec<Issue>) {
        let mut require = |is_fit, key, message| require(issues, at, is_fit, key, message);
        for (key, is_set) in [
            ("url_env", self.url_env.is_some()),
            ("url_file", self.url_file.is_some()),
            ("role", self.role.is_some()),
            ("statement_timeout_s", self.statement_timeout_s.is_some()),
            ("tables", !self.tables.is_empty()),
        ] {
            require(!is_set, key, "must be left out unless type is postgres");
        }
        let url = self.url.as_deref().unwrap_or_default();
        let rest = url
            .strip_prefix("http://")
            .or(url.strip_prefix("https://"))
            .unwrap_or_default();
        let authority = rest.split('/').next().unwrap_or_default();
        // Parsed as well, because each job would fail at a port such as 99999.
        let is_url = url::Url::parse(url).is_ok();
        require(
            is_url && !authority.is_empty() && !rest.contains(['?', '#', ' ']),
            "url",
            "must be a URL that begins with http:// or https://, without a query",
        );
        require(
            !authority.contains('@'),
            "url",
            "must be without credentials; use authorization_env or authorization_file",
        );
        require(
            !self.indexes.is_empty(),
            "indexes",
            "is missing: it must be a list of indexes that jobs may write, such as [\"articles-*\"]",
        );
        require(
            self.authorization_env.is_none() || self.authorization_file.is_none(),
            "authorization_file",
            "must be left out beside authorization_env",
        );
        require(
            self.ca_file.is_none() || url.starts_with("https://"),
            "ca_file",
            "must be left out unless url begins with https://",
        );
        let is_path = |path: &String| {
            path.starts_with('/') && path.contains("{index}") && !path.contains(['?', '#', ' '])
        };
        require(
            self.bulk_path.as_ref().is_none_or(is_path),
            "bulk_path",
            "must be a path such as \"/{index}/_bulk\" or \"/{index}/doc/_bulk\", without a query",
        );
    }

    fn check_postgres(&self, at: &str, issues: &mut Vec<Issue>) {
        let mut require = |is_fit, key, message| require(issues, at, is_fit, key, message);
        for (key, is_set) in [
            ("url", self.url.is_some()),
            ("indexes", !self.indexes.is_empty()),
            ("bulk_path", self.bulk_path.is_some()),
            ("pipelines", !self.pipelines.is_empty()),
            ("aliases", !self.aliases.is_empty()),
            ("authorization_env", self.authorization_env.is_some()),
            ("authorization_file", self.authorization_file.is_some()),
            ("ca_file", self.ca_file.is_some()),
        ] {
            require(!is_set, key, "must be left out unless type is elastic");
        }
        require(
            self.url_env.is_none() || self.url_file.is_none(),
            "url_file",
            BOTH_URLS,
        );
        let are_tables = !self.tables.is_empty() && self.tables.iter().all(|table| is_table(table));
        require(are_tables, "tables", NO_TABLE);
        let is_time = is_time(self.statement_timeout_s);
        require(is_time, "statement_timeout_s", NO_TIME);
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

const BOTH_URLS: &str =
    "must be left out beside url_env; without both it is the queue's own database";
const NO_TABLE: &str = "must be a list such as [\"public.articles\", \"blog.*\"]";
const NO_TIME: &str = "must be a number from 0.1 to 3600 seconds";

fn is_table(name: &str) -> bool {
    let parts: Vec<_> = name.split('.').collect();
    parts.len() <= 2 && parts.iter().all(|part| !part.is_empty())
}

fn is_collection(name: &str) -> bool {
    matches!(name.split_once('.'), Some((database, rest)) if !database.is_empty() && !rest.is_empty())
}

fn is_time(seconds: Option<f64>) -> bool {
    seconds.is_none_or(|seconds| (0.1..=3600.0).contains(&seconds))
}

fn hidden(variable: Option<&String>, file: Option<&String>) -> Option<SecretLocation> {
    variable
        .cloned()
        .map(SecretLocation::Variable)
        .or_else(|| file.cloned().map(SecretLocation::File))
}

fn rights(role: Option<&String>, timeout_s: Option<f64>) -> DatabaseRights {
    // The range has been checked.
    let timeout = timeout_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    DatabaseRights {
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
        assert_eq!(shop.database, Some(SecretLocation::Variable("SHOP".into())));
        assert_eq!(
            shop.rights,
            DatabaseRights {
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
            (
                "https://s:9200",
                &Some(SecretLocation::File("/run/k".into()))
            )
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
                "reindex.sources.a.tables: is missing, as is statements",
            ),
            (
                source("tables = [\"a\"]\nurl_env = \"A\"\nurl_file = \"b\""),
                "own.toml:4: reindex.sources.a.url_file: must be left out beside",
            ),
            (
                source("tables = [\"a.b.c\"]"),
                "own.toml:2: reindex.sources.a.tables: must be a list such as",
            ),
            (
                source("statements = { a = \"delete from b\" }"),
                "reindex.sources.a.statements: must be texts that begin with select",
            ),
            (
                source("tables = [\"a\"]\nstatement_timeout_s = 0"),
                "own.toml:3: reindex.sources.a.statement_timeout_s: must be a number from 0.1 to 3600",
            ),
            (
                source("tables = [\"a\"]\nurl = \"postgres://u:very-secret@h/d\""),
                "own.toml:3: reindex.sources.a.url: is not a known field",
            ),
            (
                sink("type = \"mysql\""),
                "own.toml:2: reindex.sinks.a.type: must be elastic or postgres",
            ),
            (
                sink("type = \"elastic\"\nindexes = [\"a\"]\nurl = \"https://u:very-secret@h\""),
                "reindex.sinks.a.url: must be without credentials",
            ),
            (
                sink("type = \"elastic\"\nurl = \"https://h\""),
                "reindex.sinks.a.indexes: is missing",
            ),
            (
                sink("type = \"elastic\"\nindexes = [\"a\"]\nurl = \"http://h:99999\""),
                "own.toml:4: reindex.sinks.a.url: must be a URL",
            ),
            (
                sink("type = \"elastic\"\nurl = \"http://h\"\nindexes = [\"a\"]\nca_file = \"c\""),
                "own.toml:5: reindex.sinks.a.ca_file: must be left out",
            ),
            (
                sink("type = \"postgres\"\ntables = [\"a\"]\nurl = \"http://h\""),
                "own.toml:4: reindex.sinks.a.url: must be left out unless",
            ),
            (
                sink("type = \"postgres\""),
                "reindex.sinks.a.tables: must be a list such as",
            ),
            (
                "[reindex]\nallow = true\n".to_owned(),
                "own.toml:2: reindex.allow: is not a known field",
            ),
        ] {
            let reported = load(&text)
                .err()
                .unwrap_or_else(|| panic!("accepted: {text}"));
            assert!(
                reported.contains(expected) && !reported.contains("very-secret"),
                "{reported}"
            );
        }
    }
}
