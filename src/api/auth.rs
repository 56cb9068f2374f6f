//! Authentication: tokens, and the sessions of browsers that have sent one.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use aws_lc_rs::{constant_time, digest, hmac};
use axum::Extension;
use axum::extract::{ConnectInfo, Form, State};
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Deserialize;

use super::limits::DEFAULT_TENANT;
use super::scopes::Permissions;
use super::sessions::Sessions;
use super::state::ApiState;
use super::{assets, clock, gate};
use crate::jobs::Via;

/// The name of the unrestricted token, in messages and in the audit log.
pub const ADMIN: &str = "admin";

/// The lifetime of a browser's session, in seconds.
pub const SESSION_S: i64 = 12 * 3600;
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

/// An API token with its tenant, its scopes, and the sessions of browsers that have sent it.
pub struct AuthToken {
    name: Arc<str>,
    tenant: Arc<str>,
    owner: Arc<str>,
    leave: Arc<Permissions>,
    key: Arc<str>,
    secret: TokenSecret,
    sessions: Sessions,
}

impl AuthToken {
    /// Creates an unrestricted token with the rates of a tenant.
    pub fn new(tenant: &str, secret: TokenSecret) -> Self {
        Self {
            tenant: tenant.into(),
            ..Self::of(ADMIN, None, Permissions::admin(), secret)
        }
    }

    /// Creates a token with a name from the settings. Its unique keys belong to its tenant, if it
    /// has one; to the operators, if the token is unrestricted; otherwise to the token itself.
    pub fn of(name: &str, tenant: Option<&str>, leave: Permissions, secret: TokenSecret) -> Self {
        let owner = match tenant {
            Some(tenant) => format!("tenant:{tenant}"),
            None if leave.is_admin() => String::new(),
            None => format!("token:{name}"),
        };
        Self {
            name: name.into(),
            tenant: tenant.unwrap_or(DEFAULT_TENANT).into(),
            owner: owner.into(),
            leave: Arc::new(leave),
            key: digest_of(secret.expose().as_bytes()).into(),
            sessions: Sessions::new(&secret),
            secret,
        }
    }

    fn caller(&self, proof: AuthMethod) -> Caller {
        Caller {
            proof,
            token: Some(self.name.clone()),
            tenant: self.tenant.clone(),
            owner: self.owner.clone(),
            leave: self.leave.clone(),
            key: self.key.clone(),
        }
    }
}

/// Returns a digest that names a value which must not be shown itself.
pub fn digest_of(bytes: &[u8]) -> String {
    let purpose = hmac::sign(
        &hmac::Key::new(hmac::HMAC_SHA256, b"flyball api key 1"),
        bytes,
    );
    purpose
        .as_ref()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The proof of the caller's identity.
    pub proof: AuthMethod,
    /// The name of the token in the settings; `None` where no token is set.
    pub token: Option<Arc<str>>,
    /// The tenant of the token, by which the throttles of the API tell clients apart.
    pub tenant: Arc<str>,
    /// The owner of the unique keys that the caller takes; empty for operators.
    pub owner: Arc<str>,
    /// The scopes of the caller.
    pub leave: Arc<Permissions>,
    /// A digest of the token; `local` where no token is set.
    pub key: Arc<str>,
}

/// The proof of a caller's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMethod {
    /// The token in the header: a program.
    Token,
    /// The session cookie of a browser that has logged in.
    Session,
    /// No proof: no token is set, and only loopback is served.
    Loopback,
}

impl Caller {
    /// Returns the name for the audit log where the request does not name its author.
    pub fn who(&self) -> &'static str {
        match self.proof {
            AuthMethod::Token => "token",
            AuthMethod::Session => "dashboard",
            AuthMethod::Loopback => "http",
        }
    }

    /// Returns the name of the token, for messages.
    pub fn token_name(&self) -> &str {
        self.token.as_deref().unwrap_or("none")
    }

    /// Returns the token and the tenant that the audit log stores beside the author's name from the
    /// request.
    pub fn via(&self) -> Via {
        let tenant = self.token.as_ref().map(|_| self.tenant.to_string());
        Via {
            token: self.token.as_deref().map(str::to_owned),
            tenant,
        }
    }
}

/// Identifies the caller; `None` without a valid token or session.
pub async fn caller(app: &ApiState, headers: &HeaderMap, now: Timestamp) -> Option<Caller> {
    let tokens = &app.deps.tokens;
    if tokens.is_empty() {
        return Some(Caller {
            proof: AuthMethod::Loopback,
            token: None,
            tenant: DEFAULT_TENANT.into(),
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
            && !app.revoked_session.holds(app, value, now).await
        {
            return Some(token.caller(AuthMethod::Session));
        }
    }
    None
}

/// Finds the token that was offered. Compares all of them, so that the time reveals nothing.
fn find<'a>(tokens: &'a [AuthToken], offered: &str) -> Option<&'a AuthToken> {
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

fn cookies<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a str> {
    headers
        .get_all("cookie")
        .into_iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(move |pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// The form of the login page.
#[derive(Deserialize)]
pub struct Login {
    token: String,
}

/// Serves `GET /login`: the page that asks for the token.
pub async fn show() -> Response {
    assets::login(StatusCode::OK, "")
}

/// Serves `POST /login`: a browser sends the token once and gets a session.
pub async fn login(
    State(app): State<ApiState>,
    address: Option<Extension<ConnectInfo<SocketAddr>>>,
    headers: HeaderMap,
    form: Form<Login>,
) -> Response {
    let home = [(LOCATION, "/".to_owned())];
    if app.deps.tokens.is_empty() {
        return (StatusCode::SEE_OTHER, home).into_response();
    }
    let Some(token) = find(&app.deps.tokens, form.token.trim()) else {
        if let Some(problem) = gate::deny(
            &app,
            address.map(|Extension(ConnectInfo(address))| address.ip()),
        )
        .await
        {
            return problem.into_response();
        }
        // The delay slows down guessing. Tokens are long, so it protects the log more than the
        // token.
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        tracing::warn!("a login with a wrong token was refused");
        return assets::login(StatusCode::UNAUTHORIZED, "The token is not valid.");
    };
    let value = token.sessions.issue(clock::now().as_second() + SESSION_S);
    let secure = secure(&app, &headers);
    let cookie =
        format!("{COOKIE}={value}; Path=/; Max-Age={SESSION_S}; HttpOnly; SameSite=Strict{secure}");
    (StatusCode::SEE_OTHER, home, [(SET_COOKIE, cookie)]).into_response()
}

/// Serves `POST /logout`: ends the session, here and in every other process, and deletes the
/// browser's cookie.
pub async fn logout(State(app): State<ApiState>, headers: HeaderMap) -> Response {
    let now = clock::now();
    for value in cookies(&headers, COOKIE) {
        if app
            .deps
            .tokens
            .iter()
            .any(|token| token.sessions.holds(value, now.as_second()))
        {
            app.revoked_session.end(&app, value, now).await;
        }
    }
    // Without tokens there is no login.
    let next = if app.deps.tokens.is_empty() {
        "/"
    } else {
        "/login"
    };
    let cookie = format!(
        "{COOKIE}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict{}",
        secure(&app, &headers)
    );
    (
        StatusCode::SEE_OTHER,
        [(LOCATION, next)],
        [(SET_COOKIE, cookie)],
    )
        .into_response()
}

/// Returns the cookie attribute that keeps a cookie off plain connections, if the browser came by
/// TLS or the settings name an `https` URL.
fn secure(app: &ApiState, headers: &HeaderMap) -> &'static str {
    if is_https(headers) || app.deps.public_url.starts_with("https://") {
        "; Secure"
    } else {
        ""
    }
}

/// Returns true if the headers of a proxy or of the browser show that the browser uses TLS.
fn is_https(headers: &HeaderMap) -> bool {
    let has = |name: &str, text: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.to_ascii_lowercase().contains(text))
    };
    has("x-forwarded-proto", "https")
        || has("forwarded", "proto=https")
        || has("origin", "https://")
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
            .map(|secret| AuthToken::new("acme", TokenSecret::new(secret)));
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
