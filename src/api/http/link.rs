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

/// Returns the Link header that leads to the next page, if there is one.
pub fn next_link(next: Option<&str>) -> HeaderMap {
    next.and_then(|next| HeaderValue::from_str(&format!("<{next}>; rel=\"next\"")).ok())
        .map(|link| (LINK, link))
        .into_iter()
        .collect()
}
