//! The dashboard's files, embedded in the binary.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use axum::extract::{Path, Request};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rust_embed::RustEmbed;

use crate::api::http::fields::clipped;
use crate::api::http::problem::{Code, Problem};

/// The content security policy: scripts, styles and data load from this origin only, and no page
/// may frame ours.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
/// The file extensions that are served; tests and notes in the same folder are not.
const SERVED: [&str; 8] = [
    ".js",
    ".css",
    ".svg",
    ".png",
    ".ico",
    ".woff2",
    ".webmanifest",
    ".html",
];
/// The login page for a build without the dashboard's own.
const PLAIN_LOGIN: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Flyball</title><h1>Flyball</h1>\
    <form method=\"post\" action=\"/login\"><label>Token <input type=\"password\" name=\"token\" autocomplete=\"current-password\" required autofocus></label> \
    <!--error--> <button>Log in</button></form></html>";

#[derive(RustEmbed)]
#[folder = "src/api/dashboard"]
#[allow_missing = true]
struct Files;

/// Serves `GET /`: the dashboard.
pub async fn index(headers: HeaderMap) -> Response {
    file("index.html", &headers)
}

/// Serves `GET /assets/{path}`: a file of the dashboard.
pub async fn asset(Path(path): Path<String>, headers: HeaderMap) -> Response {
    if path.ends_with(".html") {
        return missing(&path);
    }
    file(&path, &headers)
}

/// Returns the page that asks for the token; `error` is a fixed text of ours, put in place of
/// `<!--error-->`.
pub fn login(status: StatusCode, error: &'static str) -> Response {
    let page = Files::get("login.html").map_or(PLAIN_LOGIN.as_bytes().into(), |file| file.data);
    let page = String::from_utf8_lossy(&page).replace("<!--error-->", error);
    let mut response = (
        status,
        [
            (CONTENT_TYPE, "text/html; charset=utf-8"),
            (CACHE_CONTROL, "no-store"),
        ],
        page,
    )
        .into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(
            "www-authenticate",
            HeaderValue::from_static("Bearer realm=\"flyball\""),
        );
    }
    response
}

/// Returns true for the files that the login page names: a browser needs them before it has sent
/// the token.
pub fn is_part_of_login(path: &str) -> bool {
    static LOGIN_ASSETS: OnceLock<BTreeSet<String>> = OnceLock::new();
    let named = LOGIN_ASSETS.get_or_init(|| {
        let page = Files::get("login.html")
            .map(|file| String::from_utf8_lossy(&file.data).into_owned())
            .unwrap_or_default();
        page.split(['"', '\''])
            .filter(|text| text.starts_with("/assets/"))
            .map(str::to_owned)
            .collect()
    });
    named.contains(path)
}

/// Adds the security headers to every answer.
pub async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(
        "cross-origin-opener-policy",
        HeaderValue::from_static("same-origin"),
    );
    headers.insert(
        "cross-origin-resource-policy",
        HeaderValue::from_static("same-origin"),
    );
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

fn file(path: &str, headers: &HeaderMap) -> Response {
    let is_served = SERVED.iter().any(|end| path.ends_with(end)) && !path.contains(".test.");
    let Some(file) = Files::get(path).filter(|_| is_served) else {
        return missing(path);
    };
    let hash = file.metadata.sha256_hash();
    let tag: String = hash
        .iter()
        .take(12)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let tag = format!("\"{tag}\"");
    // Names do not change with their content, so a browser asks each time and gets 304 if nothing
    // changed. A proxy or the compression may have made the tag weak.
    let has_it = headers
        .get(IF_NONE_MATCH)
        .and_then(|tags| tags.to_str().ok())
        .is_some_and(|tags| tags.contains(&tag));
    let cached = [(ETAG, tag), (CACHE_CONTROL, "no-cache".to_owned())];
    if has_it {
        return (StatusCode::NOT_MODIFIED, cached).into_response();
    }
    let kind = mime_guess::from_path(path).first_or_octet_stream();
    let is_text = kind.type_() == "text" || kind.subtype() == "javascript";
    let kind = if is_text {
        format!("{}; charset=utf-8", kind.essence_str())
    } else {
        kind.essence_str().to_owned()
    };
    (cached, [(CONTENT_TYPE, kind)], file.data).into_response()
}

fn missing(path: &str) -> Response {
    Problem::new(
        Code::RouteNotFound,
        format!("the dashboard has no file {:?}", clipped(path)),
    )
    .into_response()
}
