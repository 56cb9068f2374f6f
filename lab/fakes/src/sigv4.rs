//! AWS Signature Version 4, verified as AWS does.

use super::crypt::{hex, hmac_sha256, sha256_hex};
use super::wire::IncomingRequest;

/// The parts of an `authorization` header in this form.
pub struct SigV4Header {
    /// The id of the access key that signed.
    pub key_id: String,
    scope: String,
    signed_headers: String,
    signature: String,
}

/// Parses the header; `None` if a part is missing or the scope is not one for SES.
pub fn read(header: &str) -> Option<SigV4Header> {
    let rest = header.strip_prefix("AWS4-HMAC-SHA256 ")?;
    let part = |name: &str| {
        rest.split(',')
            .find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='))
    };
    let (key_id, scope) = part("Credential")?.split_once('/')?;
    let [_, _, "ses", "aws4_request"] = scope.split('/').collect::<Vec<_>>()[..] else {
        return None;
    };
    let owned = |name| part(name).map(str::to_owned);
    let (signed_headers, signature) = (owned("SignedHeaders")?, owned("Signature")?);
    Some(SigV4Header {
        key_id: key_id.to_owned(),
        scope: scope.to_owned(),
        signed_headers,
        signature,
    })
}

impl SigV4Header {
    /// Returns true if this secret signed this request.
    pub fn is_by(&self, secret: &str, came: &IncomingRequest) -> bool {
        let names: Vec<&str> = self.signed_headers.split(';').collect();
        if !names.contains(&"host") {
            return false;
        }
        let folded = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let headers: String = names
            .iter()
            .map(|name| format!("{name}:{}\n", folded(came.header(name))))
            .collect();
        let mut query: Vec<&str> = came
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter(|part| !part.is_empty())
            .collect();
        query.sort_unstable();
        let parts = [
            came.method.as_str(),
            came.uri.path(),
            &query.join("&"),
            &headers,
            &self.signed_headers,
        ];
        let request = format!("{}\n{}", parts.join("\n"), sha256_hex(&came.body));
        let text = format!(
            "AWS4-HMAC-SHA256\n{}\n{}\n{}",
            came.header("x-amz-date"),
            self.scope,
            sha256_hex(request.as_bytes())
        );
        let first = format!("AWS4{secret}").into_bytes();
        let key = self
            .scope
            .split('/')
            .fold(first, |key, part| hmac_sha256(&key, part.as_bytes()));
        hex(&hmac_sha256(&key, text.as_bytes())) == self.signature
    }
}
