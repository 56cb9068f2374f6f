//! Repeated requests: the idempotency key, the digests by which a repeat is recognised, and the
//! client's wish for an answer that says only "accepted".

use aws_lc_rs::digest::{SHA256, digest};
use axum::http::HeaderMap;
use serde_json::Value;

use crate::admission::Digests;
use crate::api::http::fields::FieldLocation;
use crate::api::http::problem::{Code, Problem};

/// The header with the key.
pub const KEY: &str = "idempotency-key";

/// The longest key, in characters.
const KEY_CHARS_MAX: usize = 255;

/// Returns the digests of a request of a tenant's module to a route.
pub fn digests(
    headers: &HeaderMap,
    (tenant, module): (&str, &str),
    route: &str,
    body: &Value,
    is_implicit: bool,
) -> Result<Digests, Problem> {
    let body = digest_of(&[&body.to_string()]);
    let Some(key) = key(headers)? else {
        let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
        return Ok(Digests {
            request: is_implicit.then(|| digest_of(&[tenant, module, route, "body", &hex])),
            body,
            has_key: false,
        });
    };
    Ok(Digests {
        request: Some(digest_of(&[tenant, module, route, "key", key])),
        body,
        has_key: true,
    })
}

/// Returns the idempotency key, which may be written in quotation marks.
fn key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut given = headers.get_all(KEY).iter();
    let Some(value) = given.next() else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default().trim();
    let inner = text
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    let key = inner.unwrap_or(text);
    let is_key = (1..=KEY_CHARS_MAX).contains(&key.len())
        && !key.contains('"')
        && key.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if !is_key || given.next().is_some() {
        let message =
            "must be one key of 1 to 255 visible ASCII characters, with or without quotation marks";
        return Err(Problem::at(
            Code::InvalidHeader,
            FieldLocation::Header,
            "Idempotency-Key",
            message,
        ));
    }
    Ok(Some(key))
}

/// Returns true if the client prefers `202 Accepted` to `429` for a message that waits.
pub fn prefers_async(headers: &HeaderMap) -> bool {
    let words = headers
        .get_all("prefer")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split([',', ';']));
    words
        .map(str::trim)
        .any(|word| word.eq_ignore_ascii_case("respond-async"))
}

/// Returns the digest of texts, none of which can be mistaken for a part of another.
fn digest_of(texts: &[&str]) -> Vec<u8> {
    let mut all = Vec::new();
    for text in texts {
        all.extend_from_slice(&(text.len() as u64).to_be_bytes());
        all.extend_from_slice(text.as_bytes());
    }
    digest(&SHA256, &all).as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(key: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(KEY, key.parse().unwrap());
        headers
    }

    fn of(headers: &HeaderMap, who: (&str, &str), body: &Value) -> Digests {
        digests(headers, who, "/n", body, true).unwrap()
    }

    #[test]
    fn a_key_is_the_same_with_and_without_quotation_marks_and_belongs_to_its_sender() {
        let body = json!({"to": "a"});
        let plain = of(&with("k-1"), ("acme", "web"), &body);
        assert!(plain.has_key);
        assert_eq!(plain, of(&with("\"k-1\""), ("acme", "web"), &body));
        for other in [
            of(&with("k-2"), ("acme", "web"), &body),
            of(&with("k-1"), ("acme", "we"), &body),
            of(&with("k-1"), ("acm", "eweb"), &body),
            of(&HeaderMap::new(), ("acme", "web"), &body),
        ] {
            assert_ne!(plain.request, other.request);
            assert_eq!(plain.body, other.body);
        }
        let else_ = of(&with("k-1"), ("acme", "web"), &json!({"to": "b"}));
        assert_eq!(plain.request, else_.request);
        assert_ne!(plain.body, else_.body);
    }

    #[test]
    fn without_a_key_the_body_is_the_key_unless_that_is_off() {
        let body = json!({"to": "a", "body": "x"});
        let same = json!({"body": "x", "to": "a"});
        let none = HeaderMap::new();
        assert_eq!(of(&none, ("a", "b"), &body), of(&none, ("a", "b"), &same));
        let off = digests(&none, ("a", "b"), "/n", &body, false).unwrap();
        assert_eq!((off.request, off.has_key), (None, false));
    }

    #[test]
    fn a_bad_key_is_refused() {
        for key in ["", "\"\"", "a\"b", "\u{7f}"] {
            let mut headers = HeaderMap::new();
            headers.insert(
                KEY,
                axum::http::HeaderValue::from_bytes(key.as_bytes())
                    .unwrap_or_else(|_| "\"".parse().unwrap()),
            );
            assert!(
                digests(&headers, ("a", "b"), "/n", &json!({}), true).is_err(),
                "{key:?}"
            );
        }
        let mut twice = with("a");
        twice.append(KEY, "b".parse().unwrap());
        assert!(key(&twice).is_err());
    }

    #[test]
    fn the_preference_is_found_among_others() {
        let prefer = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("prefer", text.parse().unwrap());
            prefers_async(&headers)
        };
        assert!(prefer("respond-async") && prefer("wait=10, Respond-Async"));
        assert!(!prefer("return=minimal") && !prefers_async(&HeaderMap::new()));
    }
}
