//! The mapping from an answer to an outcome, with reasons that reveal no secrets, and helpers that
//! read an account's settings.

use std::time::Duration;

use super::invalid_account::refused;
use super::{
    Account, Class, Code, ExchangeError, InvalidAccount, ProviderResponse, Scope, Sent, code, words,
};

/// The maximum length of a reason, in characters.
const REASON_CHARS: usize = 200;

/// The facts of an answer besides its class.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseDetails {
    /// The provider's own id of the message.
    pub provider_id: Option<String>,
    /// The key of a throttle, if it is not the account.
    pub key: Option<String>,
    /// The delay that the provider asks for.
    pub delay: Option<Duration>,
    /// The reason for a failure.
    pub reason: String,
}

/// Builds the outcome of a class.
pub(super) fn sent(class: Class, facts: ResponseDetails) -> Sent {
    let ResponseDetails {
        provider_id,
        key,
        delay,
        reason,
    } = facts;
    match class {
        Class::Delivered => Sent::Delivered { provider_id },
        Class::Accepted => Sent::Accepted { provider_id },
        Class::Throttled(scope) => {
            let key = key.filter(|_| matches!(scope, Scope::Sender | Scope::Recipient));
            Sent::Throttled {
                scope,
                key,
                delay,
                reason,
            }
        }
        Class::Transient => Sent::Transient { reason },
        Class::Recipient => Sent::PermanentRecipient {
            suppress: false,
            reason,
        },
        Class::Suppress => Sent::PermanentRecipient {
            suppress: true,
            reason,
        },
        Class::Request => Sent::PermanentRequest { reason },
        Class::Account => Sent::AccountFailure { reason },
        Class::Ambiguous => Sent::Ambiguous { reason },
    }
}

/// Looks up the class of an answer. Tables end with a row that matches everything; without one, an
/// unknown answer is transient.
pub(super) fn class(table: &[Code], status: &str, word: &str) -> Class {
    code::find(table, status, word).map_or(Class::Transient, |row| row.class)
}

/// Maps a missing answer to an outcome; the reason omits `hidden`.
pub(super) fn unanswered(error: ExchangeError, hidden: &[&str]) -> ProviderResponse {
    let reason = line(&error.to_string(), hidden);
    let sent = match error {
        ExchangeError::Unsent(_) => Sent::Transient { reason },
        ExchangeError::Short(_) => Sent::Unable { reason },
        ExchangeError::Ambiguous(_) => Sent::Ambiguous { reason },
        ExchangeError::Refused(_) => Sent::PermanentRequest { reason },
    };
    ProviderResponse::new(sent, "")
}

/// Shortens a provider's words to one line, without the `hidden` texts and without anything that
/// looks like a mail address or a phone number.
pub(super) fn line(text: &str, hidden: &[&str]) -> String {
    let mut text = text.to_owned();
    for hidden in hidden.iter().filter(|hidden| hidden.len() > 2) {
        text = without(&text, hidden);
    }
    let shown: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .map(|word| if is_address(word) { "***" } else { word })
        .collect();
    words::without_numbers(&shown.join(" "))
        .chars()
        .take(REASON_CHARS)
        .collect()
}

/// Replaces each occurrence of the hidden text with stars, ignoring ASCII case.
fn without(text: &str, hidden: &str) -> String {
    let (low, hidden) = (text.to_ascii_lowercase(), hidden.to_ascii_lowercase());
    let (mut out, mut from) = (String::with_capacity(text.len()), 0);
    // Lowering ASCII letters keeps the length, so the offsets are the same in both texts.
    for (at, found) in low.match_indices(&hidden) {
        out.push_str(&text[from..at]);
        out.push_str("***");
        from = at + found.len();
    }
    out.push_str(&text[from..]);
    out
}

fn is_address(word: &str) -> bool {
    word.split_once('@').is_some_and(|(user, domain)| {
        user.chars().any(char::is_alphanumeric) && domain.chars().any(char::is_alphanumeric)
    })
}

/// Returns a credential that must be present.
pub(super) fn secret<'a>(account: &'a Account, name: &str) -> Result<&'a str, InvalidAccount> {
    account.secret(name).filter(|text| !text.is_empty()).ok_or_else(|| {
        refused(name, format!("is missing: give {name}_env, a variable that holds it, or {name}_file, a file that does"))
    })
}

/// Returns a setting that must be present.
pub(super) fn option<'a>(account: &'a Account, name: &str) -> Result<&'a str, InvalidAccount> {
    account
        .option(name)
        .filter(|text| !text.trim().is_empty())
        .ok_or_else(|| refused(name, "is missing"))
}

/// Parses a number among the settings; returns `absent` if it is missing.
pub(super) fn number(
    account: &Account,
    name: &str,
    absent: u32,
    within: std::ops::RangeInclusive<u32>,
) -> Result<u32, InvalidAccount> {
    let Some(text) = account.option(name) else {
        return Ok(absent);
    };
    text.trim()
        .parse()
        .ok()
        .filter(|number| within.contains(number))
        .ok_or_else(|| {
            refused(
                name,
                format!(
                    "must be a whole number from {} to {}",
                    within.start(),
                    within.end()
                ),
            )
        })
}

/// Returns the base URL of requests: the account's own, or `absent`. It has no trailing slash.
pub(super) fn base_url(account: &Account, absent: &str) -> Result<String, InvalidAccount> {
    let Some(given) = account.base_url.as_deref() else {
        return Ok(absent.to_owned());
    };
    let url = url::Url::parse(given)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    match url.filter(|url| url.query().is_none() && url.fragment().is_none()) {
        Some(url) => Ok(url.as_str().trim_end_matches('/').to_owned()),
        None => Err(refused(
            "base_url",
            "must be a URL that begins with http:// or https://, without a query",
        )),
    }
}

/// Merges the driver's headers with the account's; the account's replace the driver's of the same
/// name.
pub(super) fn headers(account: &Account, own: Vec<(&str, String)>) -> Vec<(String, String)> {
    let more = account
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), value.reveal().to_owned()));
    let is_free = |name: &str| {
        !account
            .headers
            .iter()
            .any(|(other, _)| other.eq_ignore_ascii_case(name))
    };
    let own = own
        .into_iter()
        .filter(|(name, _)| is_free(name))
        .map(|(name, value)| (name.to_owned(), value));
    own.chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::AccountSecret;

    #[test]
    fn a_reason_is_a_short_line_without_addresses_numbers_and_secrets() {
        let answer = "550-5.1.1 <Ann@Example.com> is\r\n unknown to bot12:AbC";
        assert_eq!(
            line(answer, &["ann@example.com", "12:abc"]),
            "550-5.1.1 <***> is unknown to bot***"
        );
        assert_eq!(line("mail bob@example.org now", &[]), "mail *** now");
        assert_eq!(line("a @ b", &["b"]), "a @ b");
        assert_eq!(
            line("400 4915112345678 of +49 (151) 1234-5678 after 4.7.28", &[]),
            "400 *** of *** after 4.7.28"
        );
        assert_eq!(line(&"ä".repeat(500), &[]).chars().count(), REASON_CHARS);
    }

    #[test]
    fn an_accounts_headers_come_first() {
        let account = Account {
            headers: vec![("X-Team".to_owned(), AccountSecret::new("growth"))],
            ..Account::default()
        };
        let all = headers(
            &account,
            vec![("x-team", "ours".to_owned()), ("a", "b".to_owned())],
        );
        assert_eq!(
            all,
            [
                ("a".to_owned(), "b".to_owned()),
                ("X-Team".to_owned(), "growth".to_owned())
            ]
        );
    }

    #[test]
    fn settings_are_reported_by_name() {
        let mut account = Account {
            base_url: Some("ftp://x".to_owned()),
            ..Account::default()
        };
        account.options.insert("port".to_owned(), "0".to_owned());
        assert_eq!(
            number(&account, "port", 25, 1..=65_535)
                .unwrap_err()
                .to_string(),
            "port must be a whole number from 1 to 65535"
        );
        assert_eq!(number(&account, "other", 25, 1..=65_535), Ok(25));
        assert_eq!(
            base_url(&account, "https://a").unwrap_err().field,
            "base_url"
        );
        assert_eq!(secret(&account, "token").unwrap_err().field, "token");
        account.base_url = Some("http://x:1/".to_owned());
        assert_eq!(base_url(&account, "https://a").unwrap(), "http://x:1");
    }
}
