//! Authentication: tokens, and the sessions of browsers that have sent one.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use jiff::Timestamp;

use super::caller::{AuthMethod, Caller, digest_of};
use super::jwt::authenticate::JwtAuth;
use super::jwt::error::JwtError;
use super::sessions::{self, Sessions, SignedOut, digest_of_session};
use super::token_scope::{ALL_TENANTS, Permissions};
use super::token_secret::TokenSecret;
use crate::api::clock;
use crate::postgres::Db;

/// Interval at which the credential of an open request is checked again.
const CREDENTIAL_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The name of the unrestricted token, in messages and in the audit log.
pub const ADMIN: &str = "admin";

/// The name of the session cookie.
pub const COOKIE: &str = "flyball_session";

/// An API token with its tenant, its module, its scopes, and the sessions of browsers that have
/// sent it.
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

    /// Returns the owner of its unique keys; empty for operators.
    pub fn owner(&self) -> &str {
        &self.owner
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
            expires_at: None,
            session: None,
        }
    }
}

/// The check of the tokens and sessions of requests.
pub struct Authenticator {
    /// The accepted tokens; without any, only loopback is served.
    pub tokens: Arc<[AuthToken]>,
    /// The check of JSON Web Tokens, which are accepted beside those.
    jwt: Option<Arc<JwtAuth>>,
    /// The base URL by which clients outside reach us; empty if it is not set.
    pub(super) public_url: String,
    /// The sessions that were ended before their expiry.
    revoked_session: SignedOut,
    pool: Db,
}

impl Authenticator {
    pub fn new(
        tokens: Arc<[AuthToken]>,
        jwt: Option<Arc<JwtAuth>>,
        public_url: String,
        pool: Db,
    ) -> Self {
        Self {
            tokens,
            jwt,
            public_url,
            revoked_session: SignedOut::default(),
            pool,
        }
    }

    /// Returns true if requests need no token, because none is set.
    pub fn is_without_tokens(&self) -> bool {
        self.tokens.is_empty() && self.jwt.is_none()
    }

    /// Identifies the caller.
    ///
    /// # Errors
    ///
    /// Fails without a valid token or session; with the reason, if a JSON Web Token was sent.
    pub async fn caller(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<Caller, Option<JwtError>> {
        let tokens = &self.tokens;
        if self.is_without_tokens() {
            return Ok(Caller {
                proof: AuthMethod::Loopback,
                token: None,
                tenant: None,
                module: "".into(),
                owner: "".into(),
                leave: Arc::new(Permissions::admin()),
                key: "local".into(),
                expires_at: None,
                session: None,
            });
        }
        let offered = bearer(headers);
        if let Some(token) = offered.and_then(|offered| find(tokens, offered)) {
            return Ok(token.caller(AuthMethod::Token));
        }
        if let (Some(jwt), Some(offered)) = (&self.jwt, offered)
            && JwtAuth::has_shape(offered)
        {
            return jwt.caller(offered, now).await.map_err(Some);
        }
        for value in cookies(headers, COOKIE) {
            if let Some(token) = tokens
                .iter()
                .find(|token| token.sessions.holds(value, now.as_second()))
                && !self.revoked_session.holds(&self.pool, value, now).await
            {
                let caller = token.caller(AuthMethod::Session);
                return Ok(Caller {
                    expires_at: sessions::until(value),
                    session: Some(digest_of_session(value).into()),
                    ..caller
                });
            }
        }
        Err(None)
    }

    /// Waits until the credential of an open request is no longer good, because it expired or its
    /// session was ended.
    pub async fn lapse(self: Arc<Self>, headers: HeaderMap) {
        loop {
            // The request itself has just been checked.
            tokio::time::sleep(CREDENTIAL_CHECK_INTERVAL).await;
            if self.caller(&headers, clock::now()).await.is_err() {
                return;
            }
        }
    }

    /// Waits until a session, given by its digest, was ended before its expiry.
    pub async fn session_ends(self: Arc<Self>, session: Arc<str>) {
        loop {
            let ended = self
                .revoked_session
                .has(&self.pool, &session, clock::now())
                .await;
            if ended {
                return;
            }
            tokio::time::sleep(CREDENTIAL_CHECK_INTERVAL).await;
        }
    }

    /// Identifies the bearer of a token that was not sent in a header.
    ///
    /// # Errors
    ///
    /// Fails as [`Self::caller`] does.
    pub async fn bearer(&self, token: &str, now: Timestamp) -> Result<Caller, Option<JwtError>> {
        let mut headers = HeaderMap::new();
        let value = format!("Bearer {token}").parse().map_err(|_| None)?;
        headers.insert("authorization", value);
        self.caller(&headers, now).await
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
    fn each_token_has_a_key_of_its_own_that_does_not_reveal_it() {
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
