//! The encoding of answers.

use axum::extract::Request;
use axum::http::header::ACCEPT_ENCODING;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

/// Sends plain answers also to clients that refuse them. The compression would put a 406 in place
/// of the status of such an answer, also where the request has changed something.
pub async fn allow_plain(mut request: Request, next: Next) -> Response {
    if let Some(rest) = without_refusals(request.headers()) {
        request.headers_mut().insert(ACCEPT_ENCODING, rest);
    }
    next.run(request).await
}

/// Returns the accepted encodings without the refusals of plain answers; `None` if there are none.
fn without_refusals(headers: &HeaderMap) -> Option<HeaderValue> {
    let values = headers.get_all(ACCEPT_ENCODING).iter();
    let parts = values.filter_map(|value| value.to_str().ok());
    let (refusals, rest): (Vec<&str>, Vec<&str>) = parts
        .flat_map(|value| value.split(','))
        .partition(|part| refuses_plain(part));
    if refusals.is_empty() {
        return None;
    }
    HeaderValue::from_str(&rest.join(",")).ok()
}

/// Returns true for `identity;q=0` and `*;q=0`.
fn refuses_plain(part: &str) -> bool {
    let (name, parameter) = part.split_once(';').unwrap_or((part, ""));
    let weight = parameter.trim().strip_prefix(['q', 'Q']);
    let weight = weight.and_then(|weight| weight.strip_prefix('='));
    let is_refused = weight.is_some_and(|weight| weight.trim().parse::<f64>() == Ok(0.0));
    is_refused && ["identity", "*"].contains(&name.trim().to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refusals_of_plain_answers_are_ignored() {
        for (given, rest) in [
            ("identity;q=0", Some("")),
            ("gzip, *;q=0", Some("gzip")),
            ("br;q=0.5,gzip|Identity; Q=0.00", Some("br;q=0.5,gzip")),
            ("gzip;q=0, identity;q=0.001", None),
            ("gzip, identity, *", None),
        ] {
            let mut headers = HeaderMap::new();
            for value in given.split('|') {
                headers.append(ACCEPT_ENCODING, HeaderValue::from_str(value).unwrap());
            }

            let kept = without_refusals(&headers);

            let kept = kept.as_ref().and_then(|kept| kept.to_str().ok());
            assert_eq!(kept, rest, "{given}");
        }
        assert_eq!(without_refusals(&HeaderMap::new()), None);
    }
}
