//! The guard: checks host, origin and token of every request before any route sees it.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::auth::Authenticator;
use super::caller::AuthMethod;
use super::gate::{Gate, address as address_of};
use super::jwt::error::JwtError;
use super::limits::opens_gateway;
use super::problem::{Code, Problem};
use super::query;
use super::scopes;
use crate::api::clock;
use crate::api::dashboard;

/// The path below which providers send their events.
const PROVIDER_EVENTS: &str = "/api/v1/provider-events/";

/// Passes a request on with its [`super::caller::Caller`], or refuses it.
pub async fn guard(
    State(auth): State<Arc<Authenticator>>,
    State(gate): State<Arc<Gate>>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if path == "/healthz" || path == "/readyz" {
        return next.run(request).await;
    }
    // Providers have no token and call from any address; the route checks their signature.
    if path.starts_with(PROVIDER_EVENTS) {
        return next.run(request).await;
    }
    let headers = request.headers();
    if auth.is_without_tokens()
        && let Err(problem) = host_is_loopback(headers, request.uri().authority())
    {
        return problem.into_response();
    }
    let caller = auth.caller(headers, clock::now()).await;
    let changes = !matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    // A program that sends the token itself cannot be a page of another site that uses a browser's
    // session.
    if changes
        && caller.as_ref().map_or(true, |caller| {
            !matches!(caller.proof, AuthMethod::Token | AuthMethod::Jwt)
        })
        && let Err(problem) = origin_is_ours(headers)
    {
        return problem.into_response();
    }
    let caller = match caller {
        Ok(caller) => Some(caller),
        // A route that takes tickets would say that the token is not valid.
        Err(reason)
            if is_open(path) && !(opens_gateway(path) && reason == Some(JwtError::NoKeys)) =>
        {
            None
        }
        Err(reason) => {
            let address = address_of(request.extensions());
            let has_shown = headers.contains_key("authorization");
            return refuse(&gate, address, wants_page(&request), has_shown, reason).await;
        }
    };
    if let Some(problem) = request.uri().query().and_then(query::unreadable) {
        let mut response = problem.into_response();
        if let Some(caller) = caller {
            response.extensions_mut().insert(caller);
        }
        return response;
    }
    if let Some(caller) = caller {
        let template = request
            .extensions()
            .get::<MatchedPath>()
            .map_or("", MatchedPath::as_str);
        if let Err(problem) = scopes::check(&caller, request.method(), template, path) {
            let mut response = problem.into_response();
            response.extensions_mut().insert(caller);
            return response;
        }
        if let (AuthMethod::Jwt, Some(tenant)) = (caller.proof, &caller.tenant) {
            gate.welcome(tenant).await;
        }
        request.extensions_mut().insert(caller.clone());
        // Outer layers report the limits of the caller.
        let mut response = next.run(request).await;
        response.extensions_mut().insert(caller);
        return response;
    }
    next.run(request).await
}

/// Refuses a client that sent no valid token.
async fn refuse(
    gate: &Gate,
    address: Option<IpAddr>,
    wants_page: bool,
    has_shown: bool,
    reason: Option<JwtError>,
) -> Response {
    // That is not the client's fault.
    if reason == Some(JwtError::NoKeys) {
        let detail = "the token cannot be checked, because the keys of its issuer cannot be read; send it again";
        return Problem::new(Code::Overloaded, detail)
            .retry_after(5)
            .into_response();
    }
    if let Some(problem) = gate.deny(address).await {
        return problem.into_response();
    }
    if wants_page {
        return dashboard::login(axum::http::StatusCode::UNAUTHORIZED, "");
    }
    let detail = match reason {
        Some(reason) => format!("the token in the Authorization header is not accepted: {reason}"),
        None if has_shown => {
            "the token in the Authorization header is not valid for this server".to_owned()
        }
        None => "send a token as: Authorization: Bearer <token>; the settings of the server have \
                 them, as FLYBALL_API_TOKEN and [api_tokens]"
            .to_owned(),
    };
    Problem::new(Code::Unauthorized, detail).into_response()
}

/// Returns true for the paths that a browser needs to show the login page, and for those that take
/// tickets: their routes refuse a client without one.
fn is_open(path: &str) -> bool {
    path == "/login" || dashboard::is_part_of_login(path) || opens_gateway(path)
}

fn wants_page(request: &Request) -> bool {
    let accepts = request
        .headers()
        .get("accept")
        .and_then(|accept| accept.to_str().ok())
        .unwrap_or_default();
    matches!(*request.method(), Method::GET | Method::HEAD) && accepts.contains("text/html")
}

/// Checks that the host of a request without a token is a name of loopback: a page whose name was
/// pointed at 127.0.0.1 (DNS rebinding) still sends its own name here.
fn host_is_loopback(headers: &HeaderMap, authority: Option<&Authority>) -> Result<(), Problem> {
    let host = headers
        .get("host")
        .and_then(|host| host.to_str().ok())
        .or(authority.map(Authority::as_str));
    let is_loopback = host
        .and_then(|host| host.parse::<Authority>().ok())
        .is_some_and(|host| is_loopback(host.host()));
    if is_loopback {
        return Ok(());
    }
    let answer = host.map_or_else(
        || "no Host header".to_owned(),
        |host| format!("the Host {:?}", super::fields::clipped(host)),
    );
    let detail = format!(
        "the request has {answer}; without FLYBALL_API_TOKEN only localhost, 127.0.0.1 and [::1] are served"
    );
    Err(Problem::new(Code::HostNotAllowed, detail))
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host.ends_with(".localhost")
        || bare
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Checks the origin that browsers send: a request that changes something must come from our own
/// pages.
pub fn origin_is_ours(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name: &str| {
        headers
            .get(name)
            .map(|value| value.to_str().unwrap_or("unreadable"))
    };
    let ours = match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => site == "same-origin" || site == "none",
        (None, Some(origin)) => {
            let origin = origin.split_once("://").map(|(_, authority)| authority);
            origin.is_some() && (origin == text("host") || origin == text("x-forwarded-host"))
        }
        (None, None) => true,
    };
    if ours {
        return Ok(());
    }
    Err(Problem::new(
        Code::OriginNotAllowed,
        "the request comes from a page of another site; use the dashboard, or a program with the \
         token",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in [
            "localhost",
            "localhost:8080",
            "app.localhost",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
            "LOCALHOST.",
        ] {
            assert!(
                host_is_loopback(&headers(&[("host", host)]), None).is_ok(),
                "{host}"
            );
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "10.0.0.1",
            "127.0.0.1.evil.example",
            "[::2]",
            "0.0.0.0",
            "a b",
        ] {
            assert!(
                host_is_loopback(&headers(&[("host", host)]), None).is_err(),
                "{host}"
            );
        }
        assert!(host_is_loopback(&HeaderMap::new(), None).is_err());
    }

    #[test]
    fn changes_from_other_sites_are_refused_and_programs_pass() {
        let host = ("host", "127.0.0.1:8080");
        assert!(origin_is_ours(&headers(&[host])).is_ok());
        assert!(origin_is_ours(&headers(&[host, ("origin", "http://127.0.0.1:8080")])).is_ok());
        assert!(
            origin_is_ours(&headers(&[
                host,
                ("sec-fetch-site", "same-origin"),
                ("origin", "https://proxy.example")
            ]))
            .is_ok()
        );
        assert!(origin_is_ours(&headers(&[host, ("origin", "http://127.0.0.1:9090")])).is_err());
        assert!(origin_is_ours(&headers(&[host, ("origin", "null")])).is_err());
        assert!(
            origin_is_ours(&headers(&[
                host,
                ("sec-fetch-site", "cross-site"),
                ("origin", "http://127.0.0.1:8080")
            ]))
            .is_err()
        );
        assert!(origin_is_ours(&headers(&[host, ("sec-fetch-site", "same-site")])).is_err());
    }
}
