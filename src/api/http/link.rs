//! Links to further pages.

use axum::http::header::LINK;
use axum::http::{HeaderMap, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The bytes that are encoded in a URL: all but the unreserved ones of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Encodes a text as a part of a URL.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Returns the URL of the next page of a list: its filters, its limit, and the cursor, which is the
/// parameter and its value.
pub fn next_page(
    path: &str,
    filters: &[(&str, Option<String>)],
    limit: i64,
    (cursor, value): (&str, impl std::fmt::Display),
) -> String {
    let given = filters
        .iter()
        .filter_map(|(name, value)| Some(format!("{name}={}&", encoded(value.as_deref()?))));
    let given: String = given.collect();
    let value = encoded(&value.to_string());
    format!("{path}?{given}limit={limit}&{cursor}={value}")
}

/// Returns the Link header that leads to the next page, if there is one.
pub fn next_link(next: Option<&str>) -> HeaderMap {
    next.and_then(|next| HeaderValue::from_str(&format!("<{next}>; rel=\"next\"")).ok())
        .map(|link| (LINK, link))
        .into_iter()
        .collect()
}
