//! The login of browsers: the page, and the beginning and end of a session.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{ConnectInfo, Form, FromRequest as _, Request, State};
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::auth::{Authenticator, COOKIE, cookies, find};
use super::body;
use super::gate::Gate;
use crate::api::{clock, dashboard};

/// The lifetime of a browser's session, in seconds.
pub const SESSION_S: i64 = 12 * 3600;

/// The largest form of the login page, in bytes.
const FORM_BYTES_MAX: usize = 64 * 1024;

/// The form of the login page.
#[derive(Deserialize)]
pub struct Login {
    token: String,
}

/// Serves `GET /login`: the page that asks for the token.
pub async fn show() -> Response {
    dashboard::login(StatusCode::OK, "")
}

/// Serves `POST /login`: a browser sends the token once and gets a session.
pub async fn login(
    State(auth): State<Arc<Authenticator>>,
    State(gate): State<Arc<Gate>>,
    address: Option<Extension<ConnectInfo<SocketAddr>>>,
    headers: HeaderMap,
    request: Request,
) -> Response {
    let home = [(LOCATION, "/".to_owned())];
    if auth.is_without_tokens() {
        return (StatusCode::SEE_OTHER, home).into_response();
    }
    // The extractor of forms waits for ever, and keeps two megabytes of every stranger meanwhile.
    let bytes = match body::raw(request, FORM_BYTES_MAX).await {
        Ok(bytes) => bytes,
        Err(problem) => return problem.into_response(),
    };
    let mut arrived = Request::new(Body::from(bytes));
    *arrived.method_mut() = Method::POST;
    *arrived.headers_mut() = headers.clone();
    let form = match Form::<Login>::from_request(arrived, &()).await {
        Ok(Form(form)) => form,
        Err(rejection) => return rejection.into_response(),
    };
    let Some(token) = find(&auth.tokens, form.token.trim()) else {
        if let Some(problem) = gate
            .deny(address.map(|Extension(ConnectInfo(address))| address.ip()))
            .await
        {
            return problem.into_response();
        }
        // The delay slows down guessing. Tokens are long, so it protects the log more than the
        // token.
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        tracing::warn!("a login with a wrong token was refused");
        return dashboard::login(StatusCode::UNAUTHORIZED, "The token is not valid.");
    };
    let value = token.sessions.issue(clock::now().as_second() + SESSION_S);
    let secure = secure(&auth, &headers);
    let cookie =
        format!("{COOKIE}={value}; Path=/; Max-Age={SESSION_S}; HttpOnly; SameSite=Strict{secure}");
    (StatusCode::SEE_OTHER, home, [(SET_COOKIE, cookie)]).into_response()
}

/// Serves `POST /logout`: ends the session, here and in every other process, and deletes the
/// browser's cookie.
pub async fn logout(State(auth): State<Arc<Authenticator>>, headers: HeaderMap) -> Response {
    let now = clock::now();
    for value in cookies(&headers, COOKIE) {
        auth.end_session(value, now).await;
    }
    // Without tokens there is no login.
    let next = if auth.is_without_tokens() {
        "/"
    } else {
        "/login"
    };
    let cookie = format!(
        "{COOKIE}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict{}",
        secure(&auth, &headers)
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
fn secure(auth: &Authenticator, headers: &HeaderMap) -> &'static str {
    if is_https(headers) || auth.public_url.starts_with("https://") {
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
