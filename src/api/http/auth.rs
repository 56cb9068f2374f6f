//! Authentication: tokens, and the sessions of browsers that have sent one.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::{constant_time, digest};
use axum::http::HeaderMap;
use jiff::Timestamp;

use super::caller::{AuthMethod, Caller, digest_of};
use super::sessions::{Sessions, SignedOut};
use super::token_scope::Permissions;
use crate::postgres::Db;

/// The name of the unrestricted token, in messages and in the audit log.
pub const ADMIN: &str = "admin";

/// The name of the session cookie.
pub const COOKIE: &str = "flyball_session";

/// A text that is never printed.
#[derive(Clone)]
pub struct TokenSecret(String);

impl TokenSecret {
    /// Wraps `text` as a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns true if `offered` equals the secret; an empty secret matches nothing. Compares
    /// digests in constant time, so that the time reveals neither the length nor the first
    /// difference.
    pub fn is(&self, offered: &str) -> bool {
        let hash = |text: &str| digest::digest(&digest::SHA256, text.as_bytes());
        constant_time::verify_slices_are_equal(hash(&self.0).as_ref(), hash(offered).as_ref())
            .is_ok()
            && !self.0.is_empty()
    }

    /// Returns the secret text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The tenant of a token that is bound to none: it sees and changes what all tenants have.
pub const ALL_TENANTS: &str = "*";

/// An API token with its tenant, its module, its scopes, and the sessions of browsers that have sent it.
pub struct AuthToken {
    name: Arc<str>,
    tenant: Option<Arc<str>>,
    module: Arc<str>,
    owner: Arc<str>,
    leave: Arc<Permissions>,
    key: Arc<str>,
    secret: TokenSecret,
    pub(super) sessions: Sessions,
}

impl AuthToken {
    /// Creates the unrestricted token of the operators.
    pub fn new(secret: TokenSecret) -> Self {
        Self::of(ADMIN, None, Permissions::admin(), secret)
    }

    /// Creates a token with a name from the settings, bound to a tenant unless it is `None` or
    /// [`ALL_TENANTS`]. Its unique keys belong to its tenant, if it has one; to the operators, if
    /// the token is unrestricted; otherwise to the token itself.
    pub fn of(name: &str, tenant: Option<&str>, leave: Permissions, secret: TokenSecret) -> Self {
        let tenant = tenant.filter(|tenant| *tenant != ALL_TENANTS);
        let leave = match tenant {
            Some(_) => leave.within_tenant(),
            None => leave,
        };
        let owner = match tenant {
            Some(tenant) => format!("tenant:{tenant}"),
            None if leave.is_admin() => String::new(),
            None => format!("token:{name}"),
        };
        Self {
            name: name.into(),
            tenant: tenant.map(Into::into),
            module: name.into(),
            owner: owner.into(),
            leave: Arc::new(leave),
            key: digest_of(secret.expose().as_bytes()).into(),
            sessions: Sessions::new(secret.expose()),
            secret,
        }
    }

    /// Returns the token with a module other than its name.
    #[must_use]
    pub fn with_module(self, module: &str) -> Self {
        Self {
            module: module.into(),
            ..self
        }
    }

    fn caller(&self, proof: AuthMethod) -> Caller {
        Caller {
            proof,
            token: Some(self.name.clone()),
            tenant: self.tenant.clone(),
            module: self.module.clone(),
            owner: self.owner.clone(),
            leave: self.leave.clone(),
            key: self.key.clone(),
        }
    }
}

/// The check of the tokens and sessions of requests.
pub struct Authenticator {
    /// The tokens, of which requests must carry one; without any only loopback is served.
    pub tokens: Arc<[AuthToken]>,
    /// The base URL by which clients outside reach us; empty if it is not set.
    pub(super) public_url: String,
    /// The sessions that were ended before their expiry.
    revoked_session: SignedOut,
    pool: Db,
}

impl Authenticator {
    pub fn new(tokens: Arc<[AuthToken]>, public_url: String, pool: Db) -> Self {
        Self {
            tokens,
            public_url,
            revoked_session: SignedOut::default(),
            pool,
        }
    }

    /// Identifies the caller; `None` without a valid token or session.
    pub async fn caller(&self, headers: &HeaderMap, now: Timestamp) -> Option<Caller> {
        let tokens = &self.tokens;
        if tokens.is_empty() {
            return Some(Caller {
                proof: AuthMethod::Loopback,
                token: None,
                tenant: None,
                module: "".into(),
                owner: "".into(),
                leave: Arc::new(Permissions::admin()),
                key: "local".into(),
            });
        }
        if let Some(token) = bearer(headers).and_then(|offered| find(tokens, offered)) {
            return Some(token.caller(AuthMethod::Token));
        }
        for value in cookies(headers, COOKIE) {
            if let Some(token) = tokens
                .iter()
                .find(|token| token.sessions.holds(value, now.as_second()))
                && !self.revoked_session.holds(&self.pool, value, now).await
            {
                return Some(token.caller(AuthMethod::Session));
            }
        }
        None
    }

    /// Ends a session of this server before its expiry.
    pub(super) async fn end_session(&self, value: &str, now: Timestamp) {
        let holds = |token: &AuthToken| token.sessions.holds(value, now.as_second());
        if self.tokens.iter().any(holds) {
            self.revoked_session.end(&self.pool, value, now).await;
        }
    }
}

/// Finds the token that was offered. Compares all of them, so that the time reveals nothing.
pub(super) fn find<'a>(tokens: &'a [AuthToken], offered: &str) -> Option<&'a AuthToken> {
    tokens.iter().fold(None, |found, token| {
        if token.secret.is(offered) {
            Some(token)
        } else {
            found
        }
    })
}

/// Returns the token of an `Authorization: Bearer` header.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get("authorization")?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

pub(super) fn cookies<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a str> {
    headers
        .get_all("cookie")
        .into_iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(move |pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_printed_and_nothing_is_an_empty_one() {
        assert_eq!(format!("{:?}", TokenSecret::new("hunter2")), "Secret(…)");
        assert!(!TokenSecret::new("").is(""));
    }

    #[test]
    fn only_the_whole_secret_is_the_secret() {
        let secret = TokenSecret::new("hunter2");
        assert!(secret.is("hunter2"));
        for other in ["", "hunter", "hunter22", "Hunter2"] {
            assert!(!secret.is(other));
        }
    }

    #[test]
    fn each_token_has_a_key_of_its_own_that_does_not_tell_it() {
        let tokens = ["0123456789abcdef", "0123456789abcdeg"]
            .map(|secret| AuthToken::new(TokenSecret::new(secret)));
        assert_ne!(tokens[0].key, tokens[1].key);
        assert_eq!(tokens[0].key.len(), 16);
        assert_eq!(
            find(&tokens, "0123456789abcdeg").unwrap().key,
            tokens[1].key
        );
        assert!(find(&tokens, "0123456789abcde").is_none() && find(&tokens, "").is_none());
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.insert(
            "cookie",
            "a=1; flyball_session=x.y; flyball_session2=z"
                .parse()
                .unwrap(),
        );
        assert_eq!(cookies(&headers, COOKIE).collect::<Vec<_>>(), ["x.y"]);
    }
}
