//! Servers that policies name: `[prometheus.<name>]` and `[postgres.<name>]` of the settings file.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Keys of `[prometheus.<name>]`.
pub const PROMETHEUS_KEYS: [&str; 9] =
    ["url", "token_env", "token_file", "user", "password_env", "password_file", "headers", "headers_env", "ca_file"];

/// Keys of `[postgres.<name>]`.
pub const POSTGRES_KEYS: [&str; 2] = ["url_env", "url_file"];

/// One more Prometheus, as `[prometheus.<name>]` of the settings file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrometheusServer {
    /// Its address, without credentials.
    pub url: String,
    /// The environment variable that holds the token to ask with.
    pub token_env: Option<String>,
    /// The file that holds it.
    pub token_file: Option<String>,
    /// The user to ask as.
    pub user: Option<String>,
    /// The environment variable that holds the user's password.
    pub password_env: Option<String>,
    /// The file that holds it.
    pub password_file: Option<String>,
    /// More headers of each request.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// More headers, each with the environment variable that holds its value.
    #[serde(default)]
    pub headers_env: BTreeMap<String, String>,
    /// A file of certificates in PEM form that are trusted besides the system's.
    pub ca_file: Option<String>,
}

/// A database that is asked for signals, as `[postgres.<name>]` of the settings file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatabaseServer {
    /// The environment variable that holds its URL.
    pub url_env: Option<String>,
    /// The file that holds it.
    pub url_file: Option<String>,
}

/// A key that is wrong: which, what it is, and what is allowed.
pub(super) type Wrong = (&'static str, &'static str, &'static str);

impl PrometheusServer {
    /// What no single key can say.
    pub(super) fn check(&self) -> Option<Wrong> {
        let host = self.url.strip_prefix("http://").or(self.url.strip_prefix("https://"));
        let authority = host.and_then(|host| host.split(['/', '?', '#']).next()).unwrap_or_default();
        let both = |one: &Option<String>, other: &Option<String>| one.is_some() && other.is_some();
        let password = self.password_env.is_some() || self.password_file.is_some();
        let token = self.token_env.is_some() || self.token_file.is_some();
        if host.is_none() || authority.is_empty() {
            return Some(("url", "not such a URL", "http:// or https://"));
        }
        if authority.contains('@') {
            return Some(("url", "one with credentials", "a URL without them; use token_env, or user and password_env"));
        }
        if both(&self.token_env, &self.token_file) {
            return Some(("token_file", "set beside token_env", "one of the two"));
        }
        if both(&self.password_env, &self.password_file) {
            return Some(("password_file", "set beside password_env", "one of the two"));
        }
        if token && (self.user.is_some() || password) {
            return Some(("user", "set beside a token", "a token, or a user with a password"));
        }
        if self.user.is_some() != password {
            return Some(("user", "set without a password, or a password without it", "both or neither"));
        }
        if self.ca_file.is_some() && !self.url.starts_with("https://") {
            return Some(("ca_file", "set for a server without TLS", "a url that begins with https://"));
        }
        None
    }
}

impl DatabaseServer {
    /// What no single key can say.
    pub(super) fn check(&self) -> Option<Wrong> {
        (self.url_env.is_some() == self.url_file.is_some()).then_some((
            "url_env",
            "neither or both of url_env and url_file",
            "one of the two",
        ))
    }
}
