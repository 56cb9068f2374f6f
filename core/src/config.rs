//! Settings: the commented default file, a file of the user's own, and the environment, in this
//! order.

mod api_limits;
mod environment;
mod jwt;
mod origin;
mod patterns;
#[cfg(feature = "notifications")]
pub mod pools;
mod reindex;
mod rules;
mod servers;
mod settings;
mod shape;

use std::collections::BTreeMap;
use std::path::Path;

use crate::input::issue::segments;
use crate::input::wording::must_be;
use crate::input::{Issue, Reader, TomlDocument, pointer};
use crate::postgres::{Access, PARAMETERS, Pooler, unknown_parameters};
#[cfg(feature = "notifications")]
use crate::providers::Pools;
use crate::reindex::Catalogue;
use crate::throttle::ApiLimit;
use crate::throttle::admission::TenantLimits;

pub use crate::input::{FileError, FileProblem};
pub use api_limits::API_LIMIT_KEYS;
pub use jwt::{JWT_ALGORITHMS, JWT_KEYS, JwtSettings};
pub use origin::SettingsOrigin;
#[cfg(feature = "notifications")]
pub use pools::{ACCOUNT_KEYS, POOL_KEYS};
pub use reindex::{ReindexSettings, SINK_KEYS, SOURCE_KEYS, SinkSettings, SourceSettings};
pub use servers::{DatabaseServer, POSTGRES_KEYS, PROMETHEUS_KEYS, PrometheusServer};
pub use settings::{
    ADMIN, API_TOKEN_KEYS, ApiToken, CHANNEL_KEYS, ChannelSettings, DEFAULT_SCOPES, DatabasePooler,
    ImplicitIdempotency, KEYS, KIND_KEYS, KindSettings, LogFormat, SCOPES, Settings,
};

/// The reference of all settings: every key with its default, its unit, its range and its
/// environment variable.
pub const DEFAULT_FILE: &str = include_str!("default.toml");

/// The file that is read from the working directory if none is named.
pub const USUAL_FILE: &str = "flyball.toml";

/// A token of the API, read from the place that the settings name.
pub struct TokenFound<'a> {
    /// The token's name in the settings, or [`ADMIN`].
    pub name: &'a str,
    /// The settings of the token; `None` for the one that may do everything.
    pub settings: Option<&'a ApiToken>,
    /// The text of the token.
    pub secret: String,
}

/// The required form of a token.
const TOKEN: &str = "at least 16 visible ASCII characters without spaces or line ends";

/// The message about a token whose secret has no place, or two of them.
const ONE_SECRET: &str = "must be set, or secret_file, and not both";

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
    /// Settings cannot be used as they are set.
    #[error(transparent)]
    Invalid(#[from] FileError),
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
        let mut origin = SettingsOrigin::default();
        let mut issues = Vec::new();
        let usual = Path::new(USUAL_FILE);
        // A link that leads nowhere is a file that is missing, not one that nobody wanted.
        let file = file.or_else(|| usual.symlink_metadata().is_ok().then_some(usual));
        if let Some(path) = file {
            let shown = path.display().to_string();
            let text = std::fs::read_to_string(path).map_err(|source| Error::Unreadable {
                // The link itself is there, so an error that only names it would seem untrue.
                file: match path.read_link() {
                    Ok(target) => format!("{shown}, a link to {}", target.display()),
                    Err(_) => shown.clone(),
                },
                source,
            })?;
            let document = TomlDocument::parse(&text)
                .map_err(|error| FileError(vec![FileProblem::not_toml(&shown, error)]))?;
            if let Some(mut fields) = Reader::of(&document.value, "", &[], &mut issues) {
                shape::check_file(&mut fields);
            }
            for at in document.unquoted() {
                // Pools and limits have readers of their own.
                let is_read = at.starts_with("/pools/") || at.starts_with("/api_limits/");
                if !is_read && !issues.iter().any(|issue| at.starts_with(&issue.pointer)) {
                    issues.push(Issue::new(at.as_str(), "must be a text in quotes"));
                }
            }
            // Not from the text again: a number beyond 64 bits, such as an account's id without
            // quotes, makes the whole text unreadable.
            match toml::Table::try_from(&document.value) {
                Ok(own) => table.extend(own),
                Err(error) => issues.push(Issue::new("", error.to_string())),
            }
            (origin.file, origin.document) = (shown, Some(document));
        }
        for (key, env) in KEYS {
            if let Some(text) = environment.get(*env).filter(|text| !text.is_empty()) {
                // The value of the file does not count, so its problems do not either.
                issues.retain(|issue| segments(&issue.pointer).next().as_deref() != Some(*key));
                origin
                    .variables
                    .insert((*key).to_owned(), format!("{env} (setting {key})"));
                let shape = shape::of_setting(key);
                match shape.parse(text) {
                    Some(value) => drop(table.insert((*key).to_owned(), value)),
                    None => issues.push(Issue::new(
                        pointer("", key),
                        must_be(&shape.description(), &text.as_str().into()),
                    )),
                }
            }
        }
        if !issues.is_empty() {
            let (pools, more) = beyond(table, &issues);
            issues.extend(more);
            return Err(origin.error(&pools, issues).into());
        }
        let mut settings: Self = table.try_into().map_err(|error: toml::de::Error| {
            FileError(vec![FileProblem {
                file: "settings".to_owned(),
                line: 0,
                key: String::new(),
                reason: error.message().to_owned(),
            }])
        })?;
        settings.origin = origin;
        settings.validate()?;
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
        self.valid((), rules::problems(self))
    }

    /// Returns the value, or the error of these problems.
    fn valid<T>(&self, value: T, issues: Vec<Issue>) -> Result<T, Error> {
        if issues.is_empty() {
            Ok(value)
        } else {
            Err(self.origin.error(&self.pools, issues).into())
        }
    }

    /// Reads the settings as [`Settings::load`] does, with this process's environment.
    pub fn from_env(file: Option<&Path>) -> Result<Self, Error> {
        let mut environment = BTreeMap::new();
        for (_, env) in KEYS {
            match std::env::var(env) {
                Ok(text) => drop(environment.insert((*env).to_owned(), text)),
                Err(std::env::VarError::NotPresent) => {}
                Err(std::env::VarError::NotUnicode(_)) => {
                    return Err(Error::at(env, "must be a text in UTF-8"));
                }
            }
        }
        Self::load(file, &environment)
    }

    /// Returns a message for each variable of this process's environment that is named like a
    /// setting and that nothing reads. The message does not contain its value.
    pub fn unknown_in_environment(&self) -> Vec<String> {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        self.unknown_variables(&names.collect())
    }

    /// Returns a message for each parameter of a database's URL that nothing reads. The message
    /// does not contain its value, which may be a secret.
    pub fn unknown_parameters(&self) -> Vec<String> {
        let urls = [
            ("database_url", &self.database_url),
            ("database_direct_url", &self.database_direct_url),
            ("database_read_url", &self.database_read_url),
        ];
        let told = |key: &str, name: String| {
            let variable = KEYS.iter().find(|(known, _)| *known == key);
            let variable = variable.map_or("", |(_, variable)| *variable);
            format!(
                "{variable} (setting {key}): the parameter {name} is not known and is ignored; \
                 allowed are {PARAMETERS}"
            )
        };
        urls.into_iter()
            .flat_map(|(key, url)| {
                let unknown = unknown_parameters(url).into_iter();
                unknown.map(move |name| told(key, name))
            })
            .collect()
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
        let mut issues = Vec::new();
        for (name, token) in &self.api_tokens {
            let mut refuse = |key: &str, message: String| {
                let at = pointer(&pointer("/api_tokens", name), key);
                issues.push(Issue::new(at, message));
            };
            let (key, secret) = match (&token.secret_env, &token.secret_file) {
                (Some(variable), None) => ("secret_env", std::env::var(variable).ok()),
                (None, Some(file)) => ("secret_file", std::fs::read_to_string(file).ok()),
                _ => {
                    refuse("secret_env", ONE_SECRET.to_owned());
                    continue;
                }
            };
            let Some(secret) = secret else {
                let allowed = if key == "secret_env" {
                    "must name an environment variable that is set"
                } else {
                    "must name a file that can be read"
                };
                refuse(key, allowed.to_owned());
                continue;
            };
            let secret = secret.trim();
            if secret.len() < 16 || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
                refuse(key, format!("must lead to {TOKEN}"));
            } else if tokens.iter().any(|other| other.secret == secret) {
                refuse(
                    key,
                    "must lead to a token of its own, not to the token of another".to_owned(),
                );
            } else {
                tokens.push(TokenFound {
                    name,
                    settings: Some(token),
                    secret: secret.to_owned(),
                });
            }
        }
        self.valid(tokens, issues)
    }

    /// Returns the limits of each tenant's messages.
    pub fn tenant_limits(&self) -> TenantLimits {
        TenantLimits {
            per_tenant: self.tenant_messages_per_minute,
            per_module: self.module_messages_per_minute,
            critical_per_minute: self.critical_messages_per_minute,
            channels_per_second: self.ws_messages_per_second,
            connections: self.ws_connections_per_tenant,
        }
    }

    /// Reads the secret of `[jwt]` from the variable that the settings name; `None` without HS256.
    pub fn jwt_secret(&self) -> Result<Option<String>, Error> {
        let variable = self.jwt.as_ref().and_then(|jwt| jwt.secret_env.as_ref());
        let Some(variable) = variable else {
            return Ok(None);
        };
        let refused = |message: String| {
            self.valid(
                None,
                vec![Issue::new("/jwt/secret_env".to_owned(), message)],
            )
        };
        match std::env::var(variable) {
            Ok(secret) if secret.len() >= jwt::SECRET_BYTES_MIN => Ok(Some(secret)),
            Ok(_) => refused(format!(
                "must lead to a secret of at least {} bytes",
                jwt::SECRET_BYTES_MIN
            )),
            Err(_) => refused("must name an environment variable that is set".to_owned()),
        }
    }

    /// Returns the limits of requests, of this API and of others.
    pub fn api_limits(&self) -> Vec<ApiLimit> {
        api_limits::read(&self.api_limits).unwrap_or_default()
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
        Err(Error::at(
            "FLYBALL_KNOBS_DIR (setting knobs_dir)",
            format!(
                "must be a folder of files <throttle>.toml, or empty for none, not {:?}, where no folder is",
                self.knobs_dir
            ),
        ))
    }

    #[cfg(feature = "notifications")]
    /// Returns the pools and that of the inbox, with their credentials, read from the places that the settings name.
    pub fn pools(&self) -> Result<Pools, Error> {
        let read = pools::read(&self.pools, Some(&pools::ProcessVault));
        let read = read.map(Pools::with_inbox);
        read.or_else(|issues| self.valid(Pools::default(), issues))
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
        let at = pools::pointer_of(&self.pools, pool, account);
        let issue = Issue::new(pointer(&at, &refused.field), refused.message.clone());
        self.origin.error(&self.pools, vec![issue]).into()
    }

    #[cfg(feature = "notifications")]
    /// Returns the pools without their credentials, for callers that only check arguments.
    pub fn pools_without_credentials(&self) -> Pools {
        let read = pools::read(&self.pools, None).unwrap_or_default();
        read.with_inbox()
    }

    /// Returns the options for reaching the replica for lists; `None` if the settings name none.
    pub fn replica(&self) -> Option<Access> {
        (!self.database_read_url.is_empty()).then(|| Access {
            url: self.database_read_url.clone(),
            direct_url: None,
            ..self.database()
        })
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
}

/// Returns the problems of everything that has none of `issues`, which keep the rest from being
/// read as it is, and the pools, for the places of their problems.
fn beyond(mut table: toml::Table, issues: &[Issue]) -> (BTreeMap<String, toml::Table>, Vec<Issue>) {
    let defaults: toml::Table =
        toml::from_str(DEFAULT_FILE).expect("the embedded default file is TOML");
    for issue in issues {
        let names: Vec<String> = segments(&issue.pointer).collect();
        let Some(key) = names.first() else {
            continue;
        };
        // Of tables of tables only the wrong ones are left out.
        let name = names.get(1).filter(|_| key != "jwt");
        let tables = table.get_mut(key).and_then(toml::Value::as_table_mut);
        match (name, tables) {
            (Some(name), Some(tables)) => drop(tables.remove(name)),
            _ => drop(table.remove(key)),
        }
        if let Some(default) = defaults.get(key)
            && !table.contains_key(key)
        {
            table.insert(key.clone(), default.clone());
        }
        // A pattern may name a pool that is left out.
        if key == "pools" {
            table.insert("serve_pools".to_owned(), defaults["serve_pools"].clone());
        }
    }
    let rest: Result<Settings, _> = table.try_into();
    rest.map_or_else(
        |_| (BTreeMap::new(), Vec::new()),
        |rest| {
            let more = rules::problems(&rest);
            (rest.pools, more)
        },
    )
}

impl Error {
    /// Creates the error of a setting at a place, such as an environment variable.
    #[doc(hidden)]
    pub fn at(place: &str, message: impl Into<String>) -> Self {
        Self::Invalid(FileError(vec![FileProblem {
            file: place.to_owned(),
            line: 0,
            key: String::new(),
            reason: message.into(),
        }]))
    }
}

#[cfg(test)]
#[path = "config/config_tests.rs"]
mod tests;
