//! Webhooks of jobs: the URLs and the names of secrets that a job may name for its calls.

/// The longest URL of a webhook, in bytes.
pub const URL_BYTES_MAX: usize = 2048;

/// The rule for the URL of a webhook, completing "it …".
const URL: &str = "must be a URL in ASCII that begins with https:// or http://, has a host, and has no blanks and no name or password";

/// The longest name of a secret, in bytes.
pub const SECRET_BYTES_MAX: usize = 64;

/// The rule for the name of a secret, completing "it …".
pub const SECRET: &str = "must be the name of a secret, 1 to 64 letters, digits or underscores: the secret itself is in the variable FLYBALL_WEBHOOK_SECRET_<NAME> of the workers";

/// Returns the fault of the URL of a webhook, by the rules of `flyball.check_options`.
pub fn url_problem(url: &str) -> Option<String> {
    if url.len() > URL_BYTES_MAX {
        let bytes = url.len();
        return Some(format!(
            "is {bytes} bytes long; at most {URL_BYTES_MAX} are allowed"
        ));
    }
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let is_fine = ["http", "https"].contains(&scheme.to_ascii_lowercase().as_str())
        && !host.is_empty()
        && !host.contains(['@', '\\'])
        && url.bytes().all(|byte| byte.is_ascii_graphic());
    // The URL may hold a secret, so it is not shown.
    (!is_fine).then(|| URL.to_owned())
}

/// Returns the fault of the name of a secret.
pub fn secret_problem(name: &str) -> Option<String> {
    let is_fine = (1..=SECRET_BYTES_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.starts_with("whsec_");
    // The secret itself may be here by mistake, so it is not shown.
    (!is_fine).then(|| SECRET.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_scheme_and_a_host_and_no_credentials() {
        for url in [
            "https://example.com",
            "HTTP://example.com/hook?a=b@c#d",
            "https://[::1]:8443/",
            "https://example.com?x",
        ] {
            assert_eq!(url_problem(url), None, "{url}");
        }
        for url in [
            "",
            "example.com/hook",
            "ftp://example.com",
            "https://",
            "https:///hook",
            "https://u:p@example.com/",
            "https://example.com\\@evil.example/",
            "https://example.com/a b",
            "https://example.com/\n",
            "https://exämple.com/",
        ] {
            assert!(url_problem(url).is_some(), "{url}");
        }
        let long = format!("https://example.com/{}", "x".repeat(2048));
        assert!(url_problem(&long).unwrap().starts_with("is 2068 bytes"));
    }

    #[test]
    fn a_secret_is_named_and_not_given() {
        assert_eq!(secret_problem("acme_2"), None);
        for name in ["", "a-b", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
            let problem = secret_problem(name).unwrap();
            assert!(!problem.contains("MfKQ"), "{problem}");
        }
    }
}
