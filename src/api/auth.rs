//! Who may ask: the token, and the sessions of browsers that have shown it.

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
use super::state::App;
use super::{assets, clock, gate};

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
        constant_time::verify_slices_are_equal(hash(&self.0).as_ref(), hash(offered).as_ref()).is_ok() && !self.0.is_empty()
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

/// Sessions without a store: a cookie is an expiry and a signature over it, with a key made from the token. A new token
/// ends all of them.
pub struct Sessions {
    key: hmac::Key,
}

impl Sessions {
    /// Derives the key from the token.
    pub fn new(token: &Secret) -> Self {
        let purpose = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, token.expose().as_bytes()), b"flyball browser session 1");
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, purpose.as_ref()) }
    }

    /// A cookie's value that is good until `until_s`, unix seconds.
    pub fn issue(&self, until_s: i64) -> String {
        let signature = hmac::sign(&self.key, until_s.to_string().as_bytes());
        let hex: String = signature.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{until_s}.{hex}")
    }

    /// True if the value was issued by us and is still good at `now_s`.
    pub fn holds(&self, value: &str, now_s: i64) -> bool {
        let Some(until_s) = value.split('.').next().and_then(|text| text.parse::<i64>().ok()) else {
            return false;
        };
        // Issuing again and comparing whole texts spares the parsing of hex.
        let expected = self.issue(until_s);
        constant_time::verify_slices_are_equal(expected.as_bytes(), value.as_bytes()).is_ok() && until_s > now_s
    }
}

/// A token, with whose it is and the sessions of browsers that have shown it.
pub struct Token {
    tenant: Arc<str>,
    key: Arc<str>,
    secret: Secret,
    sessions: Sessions,
}

impl Token {
    /// A token of a tenant.
    pub fn new(tenant: &str, secret: Secret) -> Self {
        let sessions = Sessions::new(&secret);
        Self { tenant: tenant.into(), key: digest_of(secret.expose().as_bytes()).into(), secret, sessions }
    }

    fn client(&self, caller: Caller) -> Client {
        Client { caller, tenant: self.tenant.clone(), key: self.key.clone() }
    }
}

/// A name for something that must not be told itself.
pub fn digest_of(bytes: &[u8]) -> String {
    let purpose = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"flyball api key 1"), bytes);
    purpose.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Who asks, as the throttles of the API tell clients apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// How it has shown that.
    pub caller: Caller,
    /// Whose token it is.
    pub tenant: Arc<str>,
    /// A digest of the token; `local` where none is set.
    pub key: Arc<str>,
}

/// How a request has shown who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// By the token in its header: a program.
    Token,
    /// By the cookie of a browser that has logged in.
    Session,
    /// No token is set, and only loopback is served.
    Loopback,
}

impl Caller {
    /// The name that the audit log gets where the request names nobody.
    pub fn who(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Session => "dashboard",
            Self::Loopback => "http",
        }
    }
}

/// Finds out who asks; `None` for somebody without a valid token or session.
pub fn client(app: &App, headers: &HeaderMap, now: Timestamp) -> Option<Client> {
    let tokens = &app.deps.tokens;
    if tokens.is_empty() {
        return Some(Client { caller: Caller::Loopback, tenant: DEFAULT_TENANT.into(), key: "local".into() });
    }
    let shown = bearer(headers).and_then(|offered| find(tokens, offered));
    shown.map(|token| token.client(Caller::Token)).or_else(|| {
        let holds = |token: &&Token| cookies(headers, COOKIE).any(|value| token.sessions.holds(value, now.as_second()));
        tokens.iter().find(holds).map(|token| token.client(Caller::Session))
    })
}

/// The token that was offered. Looks at all of them, so that the time it takes tells nothing.
fn find<'a>(tokens: &'a [Token], offered: &str) -> Option<&'a Token> {
    tokens.iter().fold(None, |found, token| if token.secret.is(offered) { Some(token) } else { found })
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
        if let Some(problem) = gate::deny(&app, address.map(|Extension(ConnectInfo(address))| address.ip())).await {
            return problem.into_response();
        }
        // Guessing costs time; tokens are long, so this is a courtesy to the log more than a defence.
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        tracing::warn!("a login with a wrong token was refused");
        return assets::login(StatusCode::UNAUTHORIZED, "That is not the token of this server.");
    };
    let value = token.sessions.issue(clock::now().as_second() + SESSION_S);
    let secure = if is_https(&headers) { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={value}; Path=/; Max-Age={SESSION_S}; HttpOnly; SameSite=Strict{secure}");
    (StatusCode::SEE_OTHER, home, [(SET_COOKIE, cookie)]).into_response()
}

/// `POST /logout`: the browser forgets its session.
pub async fn logout() -> Response {
    let cookie = format!("{COOKIE}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict");
    (StatusCode::SEE_OTHER, [(LOCATION, "/login")], [(SET_COOKIE, cookie)]).into_response()
}

/// True if a proxy in front of us says that the browser spoke TLS to it.
fn is_https(headers: &HeaderMap) -> bool {
    let has = |name: &str, text: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|value| value.to_ascii_lowercase().contains(text))
    };
    has("x-forwarded-proto", "https") || has("forwarded", "proto=https") || has("origin", "https://")
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
        let tokens = ["0123456789abcdef", "0123456789abcdeg"].map(|secret| Token::new("acme", Secret::new(secret)));
        assert_ne!(tokens[0].key, tokens[1].key);
        assert_eq!(tokens[0].key.len(), 16);
        assert_eq!(find(&tokens, "0123456789abcdeg").unwrap().key, tokens[1].key);
        assert!(find(&tokens, "0123456789abcde").is_none() && find(&tokens, "").is_none());
    }

    #[test]
    fn a_session_ends_at_its_time_and_with_its_token_and_cannot_be_prolonged() {
        let sessions = Sessions::new(&Secret::new("a"));
        let cookie = sessions.issue(1000);

        assert!(sessions.holds(&cookie, 999));
        assert!(!sessions.holds(&cookie, 1000));
        assert!(!Sessions::new(&Secret::new("b")).holds(&cookie, 999));
        assert!(!sessions.holds(&cookie.replace("1000.", "2000."), 999));
        for broken in ["", ".", "x.y", "1000", "1000.", "-1.", "99999999999999999999.aa"] {
            assert!(!sessions.holds(broken, 0), "{broken}");
        }
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.insert("cookie", "a=1; flyball_session=x.y; flyball_session2=z".parse().unwrap());
        assert_eq!(cookies(&headers, COOKIE).collect::<Vec<_>>(), ["x.y"]);
    }
}
