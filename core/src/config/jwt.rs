//! The tokens of an identity provider: `[jwt]` of the settings file.

use serde::Deserialize;

use super::patterns::is_throttle;
use crate::input::wording::{any_of, must_be};
use crate::input::{Issue, pointer};

/// Keys of `[jwt]`.
pub const JWT_KEYS: [&str; 15] = [
    "issuer",
    "audience",
    "algorithms",
    "jwks_file",
    "jwks_url",
    "secret_env",
    "tenant_claim",
    "module_claim",
    "scope_claim",
    "kinds_claim",
    "throttles_claim",
    "kinds",
    "throttles",
    "all_tenants",
    "leeway_s",
];

/// Keys of `[jwt]` that must be set.
pub(super) const REQUIRED: [&str; 3] = ["issuer", "audience", "algorithms"];

/// The algorithms that may sign a token, with true for those whose keys are public.
pub const JWT_ALGORITHMS: [(&str, bool); 4] = [
    ("RS256", true),
    ("ES256", true),
    ("EdDSA", true),
    ("HS256", false),
];

/// The shortest secret for HS256, in bytes: as long as its digest.
pub(super) const SECRET_BYTES_MIN: usize = 32;

/// The hosts whose keys may come over plain HTTP.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// The settings of JSON Web Tokens.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtSettings {
    /// The issuer, exactly as in the claim `iss`.
    pub issuer: String,
    /// The audiences, of which the claim `aud` must hold one.
    pub audience: Vec<String>,
    /// The algorithms that may sign, from [`JWT_ALGORITHMS`].
    pub algorithms: Vec<String>,
    /// The file of the issuer's public keys, a JWK Set.
    pub jwks_file: Option<String>,
    /// The URL of the issuer's public keys.
    pub jwks_url: Option<String>,
    /// The environment variable that holds the secret for HS256.
    pub secret_env: Option<String>,
    /// The claim that names the tenant; `tenant` if absent.
    pub tenant_claim: Option<String>,
    /// The claim that names the module; `module.id` if absent.
    pub module_claim: Option<String>,
    /// The claim that lists the scopes; `scope` if absent.
    pub scope_claim: Option<String>,
    /// The claim that lists the kinds; `kinds` if absent.
    pub kinds_claim: Option<String>,
    /// The claim that lists the throttles; `throttles` if absent.
    pub throttles_claim: Option<String>,
    /// The kinds of tokens without that claim; the public ones if absent.
    pub kinds: Option<Vec<String>>,
    /// The throttles of tokens without that claim; all if absent.
    pub throttles: Option<Vec<String>>,
    /// True if the tenant `*`, which sees all tenants, is accepted.
    #[serde(default)]
    pub all_tenants: bool,
    /// The tolerance for `exp` and `nbf` in seconds; 60 if absent.
    pub leeway_s: Option<f64>,
}

impl JwtSettings {
    /// Returns true if a token may be signed with the secret.
    pub fn has_secret(&self) -> bool {
        self.algorithms
            .iter()
            .any(|word| is_public(word) == Some(false))
    }

    /// Adds everything that is wrong.
    pub(super) fn check(&self, issues: &mut Vec<Issue>) {
        let mut refuse = |key: &str, message: String| {
            issues.push(Issue::new(pointer("/jwt", key), message));
        };
        if self.issuer.is_empty() {
            refuse(
                "issuer",
                "must be the text of the claim iss, not empty".to_owned(),
            );
        }
        if self.audience.is_empty() || self.audience.iter().any(String::is_empty) {
            let message = "must be one audience or more, none of them empty";
            refuse("audience", message.to_owned());
        }
        if self.algorithms.is_empty() {
            refuse("algorithms", "must be one algorithm or more".to_owned());
        }
        for word in self
            .algorithms
            .iter()
            .filter(|word| is_public(word).is_none())
        {
            let words = JWT_ALGORITHMS.map(|(word, _)| word);
            refuse(
                "algorithms",
                must_be(&any_of(&words), &word.as_str().into()),
            );
        }
        let needs_keys = self
            .algorithms
            .iter()
            .any(|word| is_public(word) == Some(true));
        match (needs_keys, &self.jwks_file, &self.jwks_url) {
            (true, None, None) => refuse(
                "jwks_url",
                "must be set, or jwks_file, for RS256, ES256 and EdDSA".to_owned(),
            ),
            (_, Some(_), Some(_)) => {
                refuse("jwks_url", "must not be set beside jwks_file".to_owned());
            }
            (false, file, url) if file.is_some() || url.is_some() => {
                let key = if file.is_some() {
                    "jwks_file"
                } else {
                    "jwks_url"
                };
                refuse(
                    key,
                    "must not be set without RS256, ES256 or EdDSA".to_owned(),
                );
            }
            _ => {}
        }
        if let Some(url) = self.jwks_url.as_ref().filter(|url| !is_safe(url)) {
            let allowed = "a URL that begins with https://, or with http:// for localhost";
            refuse("jwks_url", must_be(allowed, &url.as_str().into()));
        }
        match (self.has_secret(), &self.secret_env) {
            (true, None) => refuse("secret_env", "must be set for HS256".to_owned()),
            (false, Some(_)) => refuse("secret_env", "must not be set without HS256".to_owned()),
            _ => {}
        }
        for (key, claim) in [
            ("tenant_claim", &self.tenant_claim),
            ("module_claim", &self.module_claim),
            ("scope_claim", &self.scope_claim),
            ("kinds_claim", &self.kinds_claim),
            ("throttles_claim", &self.throttles_claim),
        ] {
            if claim.as_ref().is_some_and(String::is_empty) {
                refuse(key, "must be the name of a claim, not empty".to_owned());
            }
        }
        for throttle in self.throttles.iter().flatten() {
            if !is_throttle(throttle) {
                let allowed = "names of throttles, or their beginnings with a * behind";
                refuse("throttles", must_be(allowed, &throttle.as_str().into()));
            }
        }
        if let Some(leeway_s) = self.leeway_s.filter(|s| !(0.0..=300.0).contains(s)) {
            refuse(
                "leeway_s",
                format!("must be a number from 0 to 300, not {leeway_s}"),
            );
        }
    }
}

fn is_public(word: &str) -> Option<bool> {
    let found = JWT_ALGORITHMS.iter().find(|(known, _)| *known == word);
    found.map(|(_, is_public)| *is_public)
}

/// Returns true for a URL whose keys cannot be replaced in transit.
fn is_safe(url: &str) -> bool {
    if url.starts_with("https://") {
        return url.len() > "https://".len();
    }
    let Some(rest) = url.strip_prefix("http://") else {
        return false;
    };
    let host = rest.split('/').next().unwrap_or_default();
    LOCAL.iter().any(|local| {
        host.strip_prefix(local)
            .is_some_and(|port| port.is_empty() || port.starts_with(':'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_over_tls_or_from_this_machine() {
        for url in [
            "https://id.example/keys",
            "http://127.0.0.1:9/k",
            "http://localhost/k",
            "http://[::1]:8/k",
        ] {
            assert!(is_safe(url), "{url}");
        }
        for url in [
            "http://id.example/keys",
            "http://localhost.evil.example/k",
            "https://",
            "ftp://x",
            "http://127.0.0.1@evil.example/",
        ] {
            assert!(!is_safe(url), "{url}");
        }
    }
}
