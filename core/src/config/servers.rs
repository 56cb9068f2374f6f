//! Servers that policies name: `[prometheus.<name>]` and `[postgres.<name>]` of the settings file.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::input::{Issue, pointer};

/// Keys of `[prometheus.<name>]`.
pub const PROMETHEUS_KEYS: [&str; 9] = [
    "url",
    "token_env",
    "token_file",
    "user",
    "password_env",
    "password_file",
    "headers",
    "headers_env",
    "ca_file",
];

/// Keys of `[postgres.<name>]`.
pub const POSTGRES_KEYS: [&str; 2] = ["url_env", "url_file"];

/// One more Prometheus, as `[prometheus.<name>]` of the settings file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrometheusServer {
    /// The address of the server, without credentials.
    pub url: String,
    /// The environment variable that holds the token for requests.
    pub token_env: Option<String>,
    /// The file that holds the token for requests.
    pub token_file: Option<String>,
    /// The user name for requests.
    pub user: Option<String>,
    /// The environment variable that holds the user's password.
    pub password_env: Option<String>,
    /// The file that holds the user's password.
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

/// A database that is queried for signals, as `[postgres.<name>]` of the settings file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatabaseServer {
    /// The environment variable that holds its URL.
    pub url_env: Option<String>,
    /// The file that holds its URL.
    pub url_file: Option<String>,
}

/// Adds the problem of a key of a table, if there is one.
pub(super) fn require(issues: &mut Vec<Issue>, at: &str, is_fit: bool, key: &str, message: &str) {
    if !is_fit {
        issues.push(Issue::new(pointer(at, key), message));
    }
}

impl PrometheusServer {
    /// Checks the rules that the types cannot express.
    pub(super) fn check(&self, at: &str, issues: &mut Vec<Issue>) {
        let mut require = |is_fit, key, message| require(issues, at, is_fit, key, message);
        let host = self
            .url
            .strip_prefix("http://")
            .or(self.url.strip_prefix("https://"));
        let authority = host
            .and_then(|host| host.split(['/', '?', '#']).next())
            .unwrap_or_default();
        let both = |one: &Option<String>, other: &Option<String>| one.is_some() && other.is_some();
        let password = self.password_env.is_some() || self.password_file.is_some();
        let token = self.token_env.is_some() || self.token_file.is_some();
        require(
            !authority.is_empty(),
            "url",
            "must be a URL that begins with http:// or https://",
        );
        require(
            !authority.contains('@'),
            "url",
            "must be without credentials; use token_env, or user and password_env",
        );
        require(
            !both(&self.token_env, &self.token_file),
            "token_file",
            "must be left out beside token_env",
        );
        require(
            !both(&self.password_env, &self.password_file),
            "password_file",
            "must be left out beside password_env",
        );
        if token {
            require(
                self.user.is_none() && !password,
                "user",
                "must be left out beside a token, and so must a password",
            );
        } else {
            require(
                self.user.is_some() == password,
                "user",
                "must be set together with a password, or neither",
            );
        }
        require(
            self.ca_file.is_none() || self.url.starts_with("https://"),
            "ca_file",
            "must be left out unless url begins with https://",
        );
    }
}

impl DatabaseServer {
    /// Checks the rules that the types cannot express.
    pub(super) fn check(&self, at: &str, issues: &mut Vec<Issue>) {
        require(
            issues,
            at,
            self.url_env.is_some() != self.url_file.is_some(),
            "url_env",
            "must be set, or url_file, and not both",
        );
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
    fn servers_are_named_with_where_their_secrets_are() {
        let text = "[prometheus.east]\nurl = \"https://east:9090/x\"\nuser = \"ann\"\npassword_file = \"/run/p\"\nheaders = { \"X-A\" = \"b\" }\n\n\
                    [prometheus.\"the west\"]\nurl = \"http://west\"\n\n[postgres.shop]\nurl_env = \"SHOP_URL\"\n";
        let settings = load(text).unwrap_or_else(|error| panic!("{error}"));
        let east = &settings.prometheus["east"];
        assert_eq!(
            (
                east.user.as_deref(),
                east.password_file.as_deref(),
                east.headers["X-A"].as_str()
            ),
            (Some("ann"), Some("/run/p"), "b")
        );
        assert_eq!(settings.prometheus["the west"].url, "http://west");
        assert_eq!(
            settings.postgres["shop"].url_env.as_deref(),
            Some("SHOP_URL")
        );
    }

    #[test]
    fn a_server_that_cannot_be_meant_is_refused_with_its_place_and_what_is_allowed() {
        let east = |rest: &str| format!("[prometheus.east]\n{rest}\n");
        for (text, expected) in [
            (
                east("url = \"east:9090\""),
                "own.toml:2: prometheus.east.url: must be a URL that begins with http:// or https://",
            ),
            (
                east("url = \"http://ann:very-secret@east\""),
                "prometheus.east.url: must be without credentials",
            ),
            (
                east("url = \"http://e\"\ntoken_env = \"A\"\ntoken_file = \"b\""),
                "own.toml:4: prometheus.east.token_file: must be left out beside token_env",
            ),
            (
                east("url = \"http://e\"\ntoken_env = \"A\"\nuser = \"ann\"\npassword_env = \"B\""),
                "own.toml:4: prometheus.east.user: must be left out beside a token",
            ),
            (
                east("url = \"http://e\"\nuser = \"ann\""),
                "own.toml:3: prometheus.east.user: must be set together with a password",
            ),
            (
                east("url = \"http://e\"\npassword_env = \"A\"\npassword_file = \"b\""),
                "prometheus.east.password_file: must be left out beside password_env",
            ),
            (
                east("url = \"http://e\"\nca_file = \"ca.pem\""),
                "own.toml:3: prometheus.east.ca_file: must be left out unless url begins with https://",
            ),
            (
                east("url = \"http://e\"\ntoken = \"very-secret\""),
                "own.toml:3: prometheus.east.token: is not a known field",
            ),
            (
                east("token_env = \"A\""),
                "own.toml:1: prometheus.east.url: is missing",
            ),
            (
                "[postgres.shop]\n".to_owned(),
                "postgres.shop.url_env: must be set, or url_file, and not both",
            ),
            (
                "[postgres.shop]\nurl = \"postgres://ann:very-secret@x\"\n".to_owned(),
                "own.toml:2: postgres.shop.url: is not a known field",
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
