//! Masking of credentials in the arguments of `http` jobs that are shown to people.

use serde_json::Value;
use url::Url;

use super::secret;

/// The kind whose arguments are masked.
const KIND: &str = "http";

/// The text that replaces a credential.
const MASK: &str = "***";

/// Parts of the names of headers that carry credentials.
const SECRET_PARTS: [&str; 11] = [
    "auth",
    "cookie",
    "credential",
    "jwt",
    "key",
    "passw",
    "secret",
    "session",
    "sig",
    "token",
    "csrf",
];

/// Headers that match those parts and carry no credentials.
const PUBLIC: [&str; 2] = ["idempotency-key", "x-idempotency-key"];

/// Masks headers that look like credentials, and the name and password in a URL; other kinds stay
/// unchanged.
pub fn mask_args(kind: &str, args: &mut Value) {
    if kind != KIND {
        return;
    }
    if let Some(headers) = args.get_mut("headers").and_then(Value::as_object_mut) {
        // A value that was marked as secret is masked already.
        let credentials = headers
            .iter_mut()
            .filter(|(name, value)| is_secret(name) && **value != secret::MASK);
        for (_, value) in credentials {
            *value = MASK.into();
        }
    }
    if let Some(url) = args.get_mut("url")
        && let Some(mut parsed) = url.as_str().and_then(|text| Url::parse(text).ok())
        && (!parsed.username().is_empty() || parsed.password().is_some())
    {
        let is_masked = parsed.set_username(MASK).is_ok() && parsed.set_password(None).is_ok();
        *url = if is_masked {
            String::from(parsed).into()
        } else {
            MASK.into()
        };
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !PUBLIC.contains(&name.as_str()) && SECRET_PARTS.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn credentials_of_a_request_are_not_shown() {
        let mut args = json!({"url": "https://u:p@example.com/x?y=1", "headers": {
            "Authorization": "Bearer s", "X-Api-Key": "s", "Cookie": "s", "X-Hub-Signature": "s", "Content-Type": "text/plain",
            "Idempotency-Key": "order-7", "Accept": "*/*", "X-Token": "[secret]",
        }, "body": {"order": 7}});
        let before = args.clone();
        mask_args("other", &mut args);
        assert_eq!(args, before);
        mask_args("http", &mut args);
        assert_eq!(
            args,
            json!({"url": "https://***@example.com/x?y=1", "headers": {
                "Authorization": "***", "X-Api-Key": "***", "Cookie": "***", "X-Hub-Signature": "***", "Content-Type": "text/plain",
                "Idempotency-Key": "order-7", "Accept": "*/*", "X-Token": "[secret]",
            }, "body": {"order": 7}})
        );
        for mut odd in [
            json!([]),
            json!({"url": 7, "headers": "x"}),
            json!({"url": "https://example.com"}),
        ] {
            let before = odd.clone();
            mask_args("http", &mut odd);
            assert_eq!(odd, before);
        }
    }
}
