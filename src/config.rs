//! Settings: the commented default file, a file of the user's own, and the environment, in this
//! order.

#[cfg(feature = "notifications")]
pub mod pools;
mod reindex;
mod servers;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::postgres::{Access, Pooler};
#[cfg(feature = "notifications")]
use crate::providers::Pools;
use crate::reindex::Catalogue;
use crate::throttle::Name;

#[cfg(feature = "notifications")]
pub use pools::{ACCOUNT_KEYS, POOL_KEYS};
pub use reindex::{ReindexSettings, SINK_KEYS, SOURCE_KEYS, SinkSettings, SourceSettings};
pub use servers::{DatabaseServer, POSTGRES_KEYS, PROMETHEUS_KEYS, PrometheusServer};

/// The reference of all settings: every key with its default, its unit, its range and its
/// environment variable.
pub const DEFAULT_FILE: &str = include_str!("default.toml");

/// The file that is read from the working directory if none is named.
pub const USUAL_FILE: &str = "flyball.toml";

/// Key and environment variable of every setting.
pub const KEYS: &[(&str, &str)] = &[
    ("database_url", "DATABASE_URL"),
    ("database_connections", "FLYBALL_DATABASE_CONNECTIONS"),
    ("database_pooler", "DATABASE_POOLER"),
    ("database_direct_url", "DATABASE_DIRECT_URL"),
    ("redis_url", "REDIS_URL"),
    ("redis_prefix", "FLYBALL_REDIS_PREFIX"),
    ("token_lease_ms", "FLYBALL_TOKEN_LEASE_MS"),
    ("prometheus_url", "PROMETHEUS_URL"),
    ("listen", "FLYBALL_LISTEN"),
    ("public_url", "FLYBALL_PUBLIC_URL"),
    ("http_connections", "FLYBALL_HTTP_CONNECTIONS"),
    ("api_token", "FLYBALL_API_TOKEN"),
    ("knobs_dir", "FLYBALL_KNOBS_DIR"),
    ("concurrency", "FLYBALL_CONCURRENCY"),
    ("worker_ttl_s", "FLYBALL_WORKER_TTL_S"),
    ("grace_s", "FLYBALL_GRACE_S"),
    ("retention_days", "FLYBALL_RETENTION_DAYS"),
    ("dead_retention_days", "FLYBALL_DEAD_RETENTION_DAYS"),
    ("dead_message_days", "FLYBALL_DEAD_MESSAGE_DAYS"),
    ("allow_private_urls", "FLYBALL_ALLOW_PRIVATE_URLS"),
    ("allow_urls", "FLYBALL_ALLOW_URLS"),
    ("allow_reindex_queries", "FLYBALL_ALLOW_REINDEX_QUERIES"),
    ("log", "FLYBALL_LOG"),
    ("log_format", "FLYBALL_LOG_FORMAT"),
];

/// The allowed beginnings of the URL of Redis.
const REDIS_SCHEMES: &[&str] = &[
    "redis://",
    "rediss://",
    "redis+unix://",
    "unix://",
    "redis+cluster://",
    "rediss+cluster://",
];

/// The settings of one process. `default.toml` describes each of them.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    missing_docs,
    reason = "the default file is the reference; saying it twice would let the two drift apart"
)]
pub struct Settings {
    pub database_url: String,
    pub database_connections: u32,
    pub database_pooler: DatabasePooler,
    pub database_direct_url: String,
    pub redis_url: String,
    pub redis_prefix: String,
    pub token_lease_ms: u32,
    pub prometheus_url: String,
    pub listen: String,
    pub public_url: String,
    pub http_connections: usize,
    pub api_token: String,
    pub knobs_dir: String,
    pub concurrency: usize,
    pub worker_ttl_s: f64,
    pub grace_s: f64,
    pub retention_days: u32,
    pub dead_retention_days: u32,
    pub dead_message_days: u32,
    pub allow_private_urls: bool,
    pub allow_urls: Vec<String>,
    pub allow_reindex_queries: bool,
    pub log: String,
    pub log_format: LogFormat,
    #[serde(default)]
    pub kinds: BTreeMap<String, KindSettings>,
    #[serde(default)]
    pub api_tokens: BTreeMap<String, ApiToken>,
    #[serde(default)]
    pub prometheus: BTreeMap<String, PrometheusServer>,
    #[serde(default)]
    pub postgres: BTreeMap<String, DatabaseServer>,
    #[serde(default)]
    pub reindex: ReindexSettings,
    #[serde(default)]
    pub pools: BTreeMap<String, toml::Table>,
    /// File and line of each key of the pools, for messages.
    #[serde(skip)]
    pub pool_lines: BTreeMap<String, String>,
}

/// Enumerated settings: key, allowed values, and the text that an error message uses for them.
const WORDS: [(&str, &[&str], &str); 2] = [
    ("log_format", &["text", "json"], "text or json"),
    (
        "database_pooler",
        &["none", "transaction"],
        "none or transaction",
    ),
];

/// The connection pooler between the process and Postgres.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DatabasePooler {
    /// No pooler, or one in session mode.
    None,
    /// A pooler in transaction mode.
    Transaction,
}

/// The settings of one kind, as `[kinds.<name>]` of the settings file; an absent key leaves the
/// handler's own value in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindSettings {
    /// Longest time of an attempt, in seconds.
    pub timeout_s: Option<f64>,
    /// Attempts after which a job is dead, even if the job allows more.
    pub max_attempts: Option<i32>,
    /// Longest wait after a first failure, in seconds.
    pub retry_base_s: Option<f64>,
    /// The factor by which the wait grows with each further failure.
    pub retry_factor: Option<f64>,
    /// Longest wait of all, in seconds.
    pub retry_max_s: Option<f64>,
    /// True if every SQL role and every token that may enqueue may enqueue this kind.
    pub public: Option<bool>,
}

/// One more token of the API, as `[api_tokens.<name>]` of the settings file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiToken {
    /// The tenant that owns it; tokens of one tenant share the tenant's limits.
    pub tenant: Option<String>,
    /// The environment variable that holds the token.
    pub secret_env: Option<String>,
    /// The file that holds the token.
    pub secret_file: Option<String>,
    /// The scopes of the token, from [`SCOPES`]; [`DEFAULT_SCOPES`] if absent.
    pub scopes: Option<Vec<String>>,
    /// The kinds that it may enqueue; the public kinds if absent.
    pub kinds: Option<Vec<String>>,
    /// The throttles that it may give work to and take tokens from; `mail:*` stands for all that
    /// begin so. All throttles if absent.
    pub throttles: Option<Vec<String>>,
}

/// Keys of `[api_tokens.<name>]`.
pub const API_TOKEN_KEYS: [&str; 6] = [
    "tenant",
    "secret_env",
    "secret_file",
    "scopes",
    "kinds",
    "throttles",
];

/// The scopes of tokens.
pub const SCOPES: [&str; 7] = [
    "jobs:enqueue",
    "jobs:read",
    "throttles:acquire",
    "metrics:read",
    "ops:read",
    "ops:write",
    "admin",
];

/// The scopes of a token without `scopes`.
pub const DEFAULT_SCOPES: [&str; 1] = ["jobs:enqueue"];

/// The name of the token of `api_token` in messages and in the audit log; no other token has this
/// name.
pub const ADMIN: &str = "admin";

/// A token of the API, read from the place that the settings name.
pub struct TokenFound<'a> {
    /// The token's name in the settings, or [`ADMIN`].
    pub name: &'a str,
    /// The settings of the token; `None` for the one that may do everything.
    pub settings: Option<&'a ApiToken>,
    /// The text of the token.
    pub secret: String,
}

/// The longest name of a token, in bytes.
const TOKEN_NAME_BYTES_MAX: usize = 64;

/// The longest name of a tenant, in characters.
const TENANT_CHARS_MAX: usize = 64;

/// The required form of a token.
const TOKEN: &str = "at least 16 visible ASCII characters without spaces or line ends";

/// Keys of `[kinds.<name>]` with their least and greatest values, and the range as error messages
/// show it.
pub const KIND_KEYS: &[(&str, f64, f64, &str)] = &[
    ("timeout_s", 0.001, 604_800.0, "0.001 to 604800"),
    ("max_attempts", 1.0, 1000.0, "1 to 1000"),
    ("retry_base_s", 0.001, 604_800.0, "0.001 to 604800"),
    ("retry_factor", 1.0, 100.0, "1 to 100"),
    ("retry_max_s", 0.001, 604_800.0, "0.001 to 604800"),
];

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {file}: {source}")]
    Unreadable {
        /// The path of the file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not TOML, or holds an unknown key or a value of the wrong type.
    #[error("{file}:{line}: {message}")]
    File {
        /// The path of the file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The fault, and the allowed values.
        message: String,
    },
    #[cfg(feature = "notifications")]
    /// A pool, or an account of one, cannot be used as it is set.
    #[error(transparent)]
    Pool(#[from] pools::PoolProblem),
    /// A value is of the wrong type or out of range.
    #[error("{place} is {value}; allowed is {allowed}")]
    Value {
        /// The origin of the value: an environment variable, or file and line, with the key.
        place: String,
        /// The value as text.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
}

impl Settings {
    /// Reads the settings: defaults, then `file` (or `flyball.toml` if it exists), then the
    /// environment. A variable that is set but empty counts as not set.
    pub fn load(
        file: Option<&Path>,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        let mut table: toml::Table =
            toml::from_str(DEFAULT_FILE).expect("the embedded default file is TOML");
        let mut places = BTreeMap::new();
        #[cfg(feature = "notifications")]
        let mut pool_lines = BTreeMap::new();
        let usual = Path::new(USUAL_FILE);
        let file = file.or_else(|| usual.exists().then_some(usual));
        if let Some(path) = file {
            let shown = path.display().to_string();
            let text = std::fs::read_to_string(path).map_err(|source| Error::Unreadable {
                file: shown.clone(),
                source,
            })?;
            let own = own_table(&shown, &text)?;
            for key in own.keys() {
                places.insert(
                    key.clone(),
                    format!("{shown}:{}: {key}", line_of_key(&text, key)),
                );
            }
            for (place, line) in table_lines(&text) {
                places.insert(place.clone(), format!("{shown}:{line}: {place}"));
            }
            #[cfg(feature = "notifications")]
            {
                pool_lines = pools::lines(&shown, &text);
            }
            table.extend(own);
        }
        for (key, env) in KEYS {
            if let Some(text) = environment.get(*env).filter(|text| !text.is_empty()) {
                let place = format!("{env} (setting {key})");
                let value = typed(key, text, &table[*key]).ok_or_else(|| Error::Value {
                    place: place.clone(),
                    value: format!("{text:?}"),
                    allowed: match table[*key] {
                        toml::Value::Boolean(_) => "true or false",
                        toml::Value::Integer(_) if key.ends_with("_s") => "a number",
                        toml::Value::Array(_) => "texts with commas between them",
                        toml::Value::String(_) => {
                            words_of(key).map_or("a text", |(_, allowed)| allowed)
                        }
                        _ => "a whole number of 0 or more",
                    },
                })?;
                table.insert((*key).to_owned(), value);
                places.insert((*key).to_owned(), place);
            }
        }
        let settings: Self = table
            .try_into()
            .map_err(|error: toml::de::Error| Error::File {
                file: "settings".to_owned(),
                line: 1,
                message: error.message().to_owned(),
            })?;
        #[cfg(feature = "notifications")]
        let settings = Self {
            pool_lines,
            ..settings
        };
        settings.check(&places)?;
        Ok(settings)
    }

    /// Returns the defaults alone.
    pub fn defaults() -> Self {
        let table: toml::Table =
            toml::from_str(DEFAULT_FILE).expect("the embedded default file is TOML");
        table
            .try_into()
            .expect("the embedded default file holds every setting")
    }

    /// Validates settings that a program has changed.
    pub fn validate(&self) -> Result<(), Error> {
        self.check(&BTreeMap::new())
    }

    /// Reads the settings as [`Settings::load`] does, with this process's environment.
    pub fn from_env(file: Option<&Path>) -> Result<Self, Error> {
        let mut environment = BTreeMap::new();
        for (_, env) in KEYS {
            match std::env::var(env) {
                Ok(text) => drop(environment.insert((*env).to_owned(), text)),
                Err(std::env::VarError::NotPresent) => {}
                Err(std::env::VarError::NotUnicode(_)) => {
                    let value = "not UTF-8".to_owned();
                    return Err(Error::Value {
                        place: (*env).to_owned(),
                        value,
                        allowed: "a text in UTF-8",
                    });
                }
            }
        }
        Self::load(file, &environment)
    }

    /// Reads every token of the API from the place that the settings name.
    pub fn tokens(&self) -> Result<Vec<TokenFound<'_>>, Error> {
        let mut tokens: Vec<TokenFound<'_>> = Vec::new();
        if !self.api_token.is_empty() {
            tokens.push(TokenFound {
                name: ADMIN,
                settings: None,
                secret: self.api_token.clone(),
            });
        }
        for (name, token) in &self.api_tokens {
            let refuse = |key: &str, value: &str, allowed| {
                Err(Error::Value {
                    place: format!("api_tokens.{name}.{key}"),
                    value: value.to_owned(),
                    allowed,
                })
            };
            let (key, from, secret) = match (&token.secret_env, &token.secret_file) {
                (Some(variable), None) => {
                    ("secret_env", variable.clone(), std::env::var(variable).ok())
                }
                (None, Some(file)) => (
                    "secret_file",
                    file.clone(),
                    std::fs::read_to_string(file).ok(),
                ),
                _ => {
                    return refuse(
                        "secret_env",
                        "neither or both of secret_env and secret_file",
                        "one of the two",
                    );
                }
            };
            let Some(secret) = secret else {
                let what = if key == "secret_env" {
                    "which is not set"
                } else {
                    "which cannot be read"
                };
                return refuse(
                    key,
                    &format!("{from:?}, {what}"),
                    "an environment variable that is set, or a file that can be read",
                );
            };
            let secret = secret.trim();
            if secret.len() < 16 || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
                return refuse(key, "unusable", TOKEN);
            }
            if tokens.iter().any(|other| other.secret == secret) {
                return refuse(key, "the token of another", "a token of its own");
            }
            tokens.push(TokenFound {
                name,
                settings: Some(token),
                secret: secret.to_owned(),
            });
        }
        Ok(tokens)
    }

    /// Returns the sources and sinks that jobs of the kind `reindex` may name.
    pub fn catalogue(&self) -> Catalogue {
        self.reindex.catalogue(self.allow_reindex_queries)
    }

    /// Returns the folder of knobs files. Fails if a named folder does not exist; the usual one may
    /// be missing.
    pub fn knobs_folder(&self) -> Result<&Path, Error> {
        let folder = Path::new(&self.knobs_dir);
        if self.knobs_dir.is_empty() || self.knobs_dir == "knobs" || folder.is_dir() {
            return Ok(folder);
        }
        Err(Error::Value {
            place: "FLYBALL_KNOBS_DIR (setting knobs_dir)".to_owned(),
            value: format!("{:?}, and no folder is there", self.knobs_dir),
            allowed: "a folder of files <throttle>.toml, or nothing for none",
        })
    }

    #[cfg(feature = "notifications")]
    /// Returns the pools with their credentials, read from the places that the settings name.
    pub fn pools(&self) -> Result<Pools, Error> {
        Ok(pools::read(&self.pools, Some(&pools::Real))
            .map_err(|problem| problem.located(&self.pool_lines))?)
    }

    #[cfg(feature = "notifications")]
    /// Builds the error for an account's setting that its driver cannot use, with its place in the
    /// file.
    pub fn unusable(
        &self,
        pool: &str,
        account: &str,
        refused: &crate::providers::InvalidAccount,
    ) -> Error {
        let place = format!("pools.{pool}.{account}.{}", refused.field);
        let problem = pools::PoolProblem {
            file: String::new(),
            place,
            message: refused.message.clone(),
        };
        Error::Pool(problem.located(&self.pool_lines))
    }

    #[cfg(feature = "notifications")]
    /// Returns the pools without their credentials, for callers that only check arguments.
    pub fn pools_without_credentials(&self) -> Pools {
        pools::read(&self.pools, None).unwrap_or_default()
    }

    /// Returns the options for reaching the database.
    pub fn database(&self) -> Access {
        Access {
            url: self.database_url.clone(),
            pooler: match self.database_pooler {
                DatabasePooler::None => Pooler::None,
                DatabasePooler::Transaction => Pooler::Transaction,
            },
            direct_url: (!self.database_direct_url.is_empty())
                .then(|| self.database_direct_url.clone()),
        }
    }

    fn check(&self, places: &BTreeMap<String, String>) -> Result<(), Error> {
        let refuse = |key: &str, value: String, allowed: &'static str| {
            let place = places.get(key).cloned().unwrap_or_else(|| key.to_owned());
            Err(Error::Value {
                place,
                value,
                allowed,
            })
        };
        if !(2..=500).contains(&self.database_connections) {
            return refuse(
                "database_connections",
                self.database_connections.to_string(),
                "2 to 500",
            );
        }
        if !(1..=10_000).contains(&self.concurrency) {
            return refuse("concurrency", self.concurrency.to_string(), "1 to 10000");
        }
        if !(16..=100_000).contains(&self.http_connections) {
            return refuse(
                "http_connections",
                self.http_connections.to_string(),
                "16 to 100000",
            );
        }
        if self.token_lease_ms > 250 {
            return refuse(
                "token_lease_ms",
                self.token_lease_ms.to_string(),
                "0 to 250 milliseconds",
            );
        }
        if !(3.0..=3600.0).contains(&self.worker_ttl_s) {
            return refuse(
                "worker_ttl_s",
                self.worker_ttl_s.to_string(),
                "3 to 3600 seconds",
            );
        }
        if !(0.0..=3600.0).contains(&self.grace_s) {
            return refuse("grace_s", self.grace_s.to_string(), "0 to 3600 seconds");
        }
        if !(1..=3650).contains(&self.retention_days) {
            return refuse(
                "retention_days",
                self.retention_days.to_string(),
                "1 to 3650 days",
            );
        }
        if self.dead_retention_days > 3650 {
            return refuse(
                "dead_retention_days",
                self.dead_retention_days.to_string(),
                "0 to 3650 days",
            );
        }
        if self.dead_message_days > 3650 {
            return refuse(
                "dead_message_days",
                self.dead_message_days.to_string(),
                "0 to 3650 days",
            );
        }
        if !self.api_token.is_empty() && self.api_token.len() < 16 {
            return refuse(
                "api_token",
                "too short".to_owned(),
                "at least 16 characters, or empty for none",
            );
        }
        // A header cannot carry anything else, so no client could ever log in.
        if !self.api_token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return refuse(
                "api_token",
                "unusable".to_owned(),
                "visible ASCII characters without spaces or line ends",
            );
        }
        if self.listen.is_empty() {
            return refuse(
                "listen",
                "empty".to_owned(),
                "host:port, for instance 127.0.0.1:8080",
            );
        }
        let is_http = ["http://", "https://"]
            .iter()
            .any(|scheme| self.public_url.starts_with(scheme));
        if !self.public_url.is_empty() && (!is_http || self.public_url.contains(['?', '#', ' '])) {
            let allowed = "http:// or https://, without a query, or empty for none";
            return refuse("public_url", "not such a URL".to_owned(), allowed);
        }
        let is_postgres =
            |url: &str| url.starts_with("postgres://") || url.starts_with("postgresql://");
        if !is_postgres(&self.database_url) {
            return refuse(
                "database_url",
                "not such a URL".to_owned(),
                "postgres://user@host/database",
            );
        }
        if !self.database_direct_url.is_empty() && !is_postgres(&self.database_direct_url) {
            return refuse(
                "database_direct_url",
                "not such a URL".to_owned(),
                "postgres://user@host/database, or empty for none",
            );
        }
        if !REDIS_SCHEMES
            .iter()
            .any(|scheme| self.redis_url.starts_with(scheme))
        {
            let allowed =
                "redis://, rediss://, redis+unix://, redis+cluster:// or rediss+cluster://";
            return refuse("redis_url", "not such a URL".to_owned(), allowed);
        }
        if !self.prometheus_url.starts_with("http://")
            && !self.prometheus_url.starts_with("https://")
        {
            return refuse(
                "prometheus_url",
                "not such a URL".to_owned(),
                "http:// or https://",
            );
        }
        for (name, token) in &self.api_tokens {
            let is_tenant =
                |tenant: &str| tenant.len() <= TENANT_CHARS_MAX && Name::new(tenant).is_ok();
            if let Some(tenant) = token.tenant.as_ref().filter(|tenant| !is_tenant(tenant)) {
                let allowed = "1 to 64 letters, digits or any of . _ - / : { }";
                return refuse(
                    &format!("api_tokens.{name}.tenant"),
                    format!("{tenant:?}"),
                    allowed,
                );
            }
            if name == ADMIN
                || name.is_empty()
                || name.len() > TOKEN_NAME_BYTES_MAX
                || name.contains(char::is_control)
            {
                let allowed = "a name of 1 to 64 bytes other than admin, which is the token of FLYBALL_API_TOKEN";
                return refuse(&format!("api_tokens.{name}"), format!("{name:?}"), allowed);
            }
            if let Some(scope) = token
                .scopes
                .iter()
                .flatten()
                .find(|scope| !SCOPES.contains(&scope.as_str()))
            {
                let allowed = "jobs:enqueue, jobs:read, throttles:acquire, metrics:read, ops:read, ops:write or admin";
                return refuse(
                    &format!("api_tokens.{name}.scopes"),
                    format!("{scope:?}"),
                    allowed,
                );
            }
            let is_throttle = |pattern: &str| {
                pattern == "*" || Name::new(pattern.strip_suffix('*').unwrap_or(pattern)).is_ok()
            };
            if let Some(throttle) = token
                .throttles
                .iter()
                .flatten()
                .find(|throttle| !is_throttle(throttle))
            {
                let allowed = "names of throttles, or their beginnings with a * behind";
                return refuse(
                    &format!("api_tokens.{name}.throttles"),
                    format!("{throttle:?}"),
                    allowed,
                );
            }
        }
        let of_prometheus = self
            .prometheus
            .iter()
            .map(|(name, server)| ("prometheus", name, server.check()));
        let of_postgres = self
            .postgres
            .iter()
            .map(|(name, server)| ("postgres", name, server.check()));
        let of_sources = self
            .reindex
            .sources
            .iter()
            .map(|(name, source)| ("reindex.sources", name, source.check()));
        let of_sinks = self
            .reindex
            .sinks
            .iter()
            .map(|(name, sink)| ("reindex.sinks", name, sink.check()));
        for (table, name, wrong) in of_prometheus
            .chain(of_postgres)
            .chain(of_sources)
            .chain(of_sinks)
        {
            if let Some((key, value, allowed)) = wrong {
                return refuse(&format!("{table}.{name}.{key}"), value.to_owned(), allowed);
            }
        }
        #[cfg(feature = "notifications")]
        pools::read(&self.pools, None).map_err(|problem| problem.located(&self.pool_lines))?;
        for (kind, set) in &self.kinds {
            let numbers = [
                set.timeout_s,
                set.max_attempts.map(f64::from),
                set.retry_base_s,
                set.retry_factor,
                set.retry_max_s,
            ];
            for ((key, least, most, allowed), number) in KIND_KEYS.iter().zip(numbers) {
                if let Some(number) = number.filter(|number| !(*least..=*most).contains(number)) {
                    return refuse(&format!("kinds.{kind}.{key}"), number.to_string(), allowed);
                }
            }
        }
        Ok(())
    }
}

/// Reads the user's own file; every key must be a setting and every value of its type.
fn own_table(file: &str, text: &str) -> Result<toml::Table, Error> {
    let table: toml::Table = toml::from_str(text).map_err(|error| located(file, text, &error))?;
    let known: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
    let defaults: toml::Table =
        toml::from_str(DEFAULT_FILE).expect("the embedded default file is TOML");
    for (key, value) in &table {
        let line = line_of_key(text, key);
        if TABLES.contains(&key.as_str()) {
            own_tables(file, text)?;
            continue;
        }
        let Some(default) = defaults.get(key) else {
            let message = format!(
                "{key} is not a setting; settings are {}, and the tables {}",
                known.join(", "),
                TABLES
                    .map(|table| match table {
                        "reindex" => "[reindex.sources.<name>], [reindex.sinks.<name>]".to_owned(),
                        _ => format!("[{table}.<name>]"),
                    })
                    .join(", ")
            );
            return Err(Error::File {
                file: file.to_owned(),
                line,
                message,
            });
        };
        let number = |value: &toml::Value| value.is_integer() || value.is_float();
        if !(value.same_type(default) || number(value) && key.ends_with("_s")) {
            let message = format!("{key} must be {}, not {}", kind_of(default), kind_of(value));
            return Err(Error::File {
                file: file.to_owned(),
                line,
                message,
            });
        }
        let problem = match value {
            toml::Value::Array(entries) if !entries.iter().all(toml::Value::is_str) => {
                Some("a list of more than texts".to_owned())
            }
            toml::Value::Integer(n) if u32::try_from(*n).is_err() => {
                Some(format!("{n}; allowed is a whole number of 0 or more"))
            }
            toml::Value::String(text) => words_of(key)
                .filter(|(words, _)| !words.contains(&text.as_str()))
                .map(|(_, allowed)| format!("{text:?}; allowed is {allowed}")),
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(Error::File {
                file: file.to_owned(),
                line,
                message: format!("{key} is {problem}"),
            });
        }
    }
    Ok(table)
}

/// Returns the allowed values of a key, and their text for an error; `None` for a key with any
/// text.
fn words_of(key: &str) -> Option<(&'static [&'static str], &'static str)> {
    WORDS
        .iter()
        .find(|(other, ..)| *other == key)
        .map(|(_, words, allowed)| (*words, *allowed))
}

/// Settings that are tables of tables.
const TABLES: [&str; 6] = [
    "kinds",
    "api_tokens",
    "prometheus",
    "postgres",
    "reindex",
    "pools",
];

/// Parses those tables for the sake of their errors, which know their lines.
fn own_tables(file: &str, text: &str) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct Tables {
        #[serde(default, rename = "kinds")]
        _kinds: BTreeMap<String, KindSettings>,
        #[serde(default, rename = "api_tokens")]
        _api_tokens: BTreeMap<String, ApiToken>,
        #[serde(default, rename = "prometheus")]
        _prometheus: BTreeMap<String, PrometheusServer>,
        #[serde(default, rename = "postgres")]
        _postgres: BTreeMap<String, DatabaseServer>,
        #[serde(default, rename = "reindex")]
        _reindex: ReindexSettings,
        #[serde(default, rename = "pools")]
        _pools: BTreeMap<String, toml::Table>,
    }
    toml::from_str::<Tables>(text)
        .map(drop)
        .map_err(|error| located(file, text, &error))
}

/// Returns the lines of the keys of such tables, if they are under headings of their own.
fn table_lines(text: &str) -> Vec<(String, usize)> {
    let mut heading = "";
    let mut lines = Vec::new();
    for (at, line) in text.lines().map(str::trim).enumerate() {
        if line.starts_with('[') {
            heading = line.split(['[', ']']).nth(1).unwrap_or_default().trim();
        } else if TABLES.iter().any(|table| {
            heading
                .strip_prefix(table)
                .is_some_and(|rest| rest.starts_with('.'))
        }) && let Some((key, _)) = line.split_once('=')
        {
            lines.push((
                format!("{}.{}", heading.replace('"', ""), key.trim()),
                at + 1,
            ));
        }
    }
    lines
}

fn kind_of(value: &toml::Value) -> &'static str {
    match value {
        toml::Value::String(_) => "a text",
        toml::Value::Integer(_) => "a whole number",
        toml::Value::Float(_) => "a number",
        toml::Value::Boolean(_) => "true or false",
        _ => "a list, a table or a time",
    }
}

fn line_of_key(text: &str, key: &str) -> usize {
    let is_key = |line: &str| {
        line.trim_start()
            .strip_prefix(key)
            .is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    text.lines().position(is_key).map_or(1, |at| at + 1)
}

fn located(file: &str, text: &str, error: &toml::de::Error) -> Error {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text[..at].matches('\n').count() + 1;
    Error::File {
        file: file.to_owned(),
        line,
        message: error.message().to_owned(),
    }
}

/// Parses an environment variable's text as the type of the default.
fn typed(key: &str, text: &str, default: &toml::Value) -> Option<toml::Value> {
    match default {
        toml::Value::Boolean(_) => match text {
            "1" | "true" | "yes" | "on" => Some(true.into()),
            "0" | "false" | "no" | "off" | "" => Some(false.into()),
            _ => None,
        },
        toml::Value::Integer(_) if key.ends_with("_s") => text
            .parse::<f64>()
            .ok()
            .filter(|n| n.is_finite())
            .map(Into::into),
        toml::Value::Integer(_) => text.parse::<u32>().ok().map(|n| i64::from(n).into()),
        toml::Value::Array(_) => {
            let entries = text
                .split(',')
                .map(str::trim)
                .filter(|entry| !entry.is_empty());
            Some(entries.map(toml::Value::from).collect::<Vec<_>>().into())
        }
        _ => words_of(key)
            .is_none_or(|(words, _)| words.contains(&text))
            .then(|| text.into()),
    }
}

#[cfg(test)]
#[path = "config/config_tests.rs"]
mod tests;
