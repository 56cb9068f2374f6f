//! Authentication: tokens, and the sessions of browsers that have shown one.

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
use super::scopes::Leave;
use super::sessions::Sessions;
use super::state::App;
use super::{assets, clock, gate};
use crate::jobs::Via;

/// The name of the token that may do everything, in messages and in the audit log.
pub const ADMIN: &str = "admin";

/// How long a browser stays logged in, in seconds.
pub const SESSION_S: i64 = 12 * 3600;
/// The cookie's name.
pub const COOKIE: &str = "flyball_session";

/// A text that is never printed.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Keeps `text` secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// True if `offered` is the secret; nothing is an empty one. Takes the same time wherever they differ, and whatever their lengths.
    pub fn is(&self, offered: &str) -> bool {
        let hash = |text: &str| digest::digest(&digest::SHA256, text.as_bytes());
        constant_time::verify_slices_are_equal(hash(&self.0).as_ref(), hash(offered).as_ref())
            .is_ok()
            && !self.0.is_empty()
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A token, with whose it is, what it may do, and the sessions of browsers that have shown it.
pub struct Token {
    name: Arc<str>,
    tenant: Arc<str>,
    owner: Arc<str>,
    leave: Arc<Leave>,
    key: Arc<str>,
    secret: Secret,
    sessions: Sessions,
}

impl Token {
    /// A token that may do everything, for a tenant's rates.
    pub fn new(tenant: &str, secret: Secret) -> Self {
        Self {
            tenant: tenant.into(),
            ..Self::of(ADMIN, None, Leave::admin(), secret)
        }
    }

    /// A token by its name in the settings. Its unique keys are its tenant's; its own, where it has none; and those of operators,
    /// where it may do everything.
    pub fn of(name: &str, tenant: Option<&str>, leave: Leave, secret: Secret) -> Self {
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

    fn caller(&self, proof: Proof) -> Caller {
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

/// A name for something that must not be told itself.
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

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// How it has shown that.
    pub proof: Proof,
    /// The name of its token in the settings; `None` where no token is set.
    pub token: Option<Arc<str>>,
    /// Whose token it is, as the throttles of the API tell clients apart.
    pub tenant: Arc<str>,
    /// Whose unique keys it takes; empty for those of operators.
    pub owner: Arc<str>,
    /// What it may do.
    pub leave: Arc<Leave>,
    /// A digest of the token; `local` where none is set.
    pub key: Arc<str>,
}

/// How a request has shown who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// By the token in its header: a program.
    Token,
    /// By the cookie of a browser that has logged in.
    Session,
    /// No token is set, and only loopback is served.
    Loopback,
}

impl Caller {
    /// The name that the audit log gets where the request names nobody.
    pub fn who(&self) -> &'static str {
        match self.proof {
            Proof::Token => "token",
            Proof::Session => "dashboard",
            Proof::Loopback => "http",
        }
    }

    /// The name of its token, for messages.
    pub fn token_name(&self) -> &str {
        self.token.as_deref().unwrap_or("none")
    }

    /// What the audit log keeps beside the name that the request gave itself.
    pub fn via(&self) -> Via {
        let tenant = self.token.as_ref().map(|_| self.tenant.to_string());
        Via {
            token: self.token.as_deref().map(str::to_owned),
            tenant,
        }
    }
}

/// Finds out who asks; `None` for somebody without a valid token or session.
pub async fn caller(app: &App, headers: &HeaderMap, now: Timestamp) -> Option<Caller> {
    let tokens = &app.deps.tokens;
    if tokens.is_empty() {
        return Some(Caller {
            proof: Proof::Loopback,
            token: None,
            tenant: DEFAULT_TENANT.into(),
            owner: "".into(),
            leave: Arc::new(Leave::admin()),
            key: "local".into(),
        });
    }
    if let Some(token) = bearer(headers).and_then(|offered| find(tokens, offered)) {
        return Some(token.caller(Proof::Token));
    }
    for value in cookies(headers, COOKIE) {
        if let Some(token) = tokens
            .iter()
            .find(|token| token.sessions.holds(value, now.as_second()))
            && !app.signed_out.holds(app, value, now).await
        {
            return Some(token.caller(Proof::Session));
        }
    }
    None
}

/// The token that was offered. Looks at all of them, so that the time it takes tells nothing.
fn find<'a>(tokens: &'a [Token], offered: &str) -> Option<&'a Token> {
    tokens.iter().fold(None, |found, token| {
        if token.secret.is(offered) {
            Some(token)
        } else {
            found
        }
    })
}

/// The token of an `Authorization: Bearer` header.
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

/// `GET /login`: the page that asks for the token.
pub async fn show() -> Response {
    assets::login(StatusCode::OK, "")
}

/// `POST /login`: a browser shows the token once and gets a session.
pub async fn login(
    State(app): State<App>,
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
        // Guessing costs time; tokens are long, so this is a courtesy to the log more than a defence.
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        tracing::warn!("a login with a wrong token was refused");
        return assets::login(
            StatusCode::UNAUTHORIZED,
            "That is not the token of this server.",
        );
    };
    let value = token.sessions.issue(clock::now().as_second() + SESSION_S);
    let secure = secure(&app, &headers);
    let cookie =
        format!("{COOKIE}={value}; Path=/; Max-Age={SESSION_S}; HttpOnly; SameSite=Strict{secure}");
    (StatusCode::SEE_OTHER, home, [(SET_COOKIE, cookie)]).into_response()
}

/// `POST /logout`: the session ends, here and in every other process, and the browser forgets it.
pub async fn logout(State(app): State<App>, headers: HeaderMap) -> Response {
    let now = clock::now();
    for value in cookies(&headers, COOKIE) {
        if app
            .deps
            .tokens
            .iter()
            .any(|token| token.sessions.holds(value, now.as_second()))
        {
            app.signed_out.end(&app, value, now).await;
        }
    }
    // Where there is no token there is nothing to sign in with.
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

/// Keeps a cookie off plain connections, where the browser came by TLS or the settings say that people do.
fn secure(app: &App, headers: &HeaderMap) -> &'static str {
    if is_https(headers) || app.deps.public_url.starts_with("https://") {
        "; Secure"
    } else {
        ""
    }
}

/// True if a proxy in front of us says that the browser spoke TLS to it.
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
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(…)");
        assert!(!Secret::new("").is(""));
    }

    #[test]
    fn only_the_whole_secret_is_the_secret() {
        let secret = Secret::new("hunter2");
        assert!(secret.is("hunter2"));
        for other in ["", "hunter", "hunter22", "Hunter2"] {
            assert!(!secret.is(other));
        }
    }

    #[test]
    fn each_token_has_a_key_of_its_own_that_does_not_tell_it() {
        let tokens = ["0123456789abcdef", "0123456789abcdeg"]
            .map(|secret| Token::new("acme", Secret::new(secret)));
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
