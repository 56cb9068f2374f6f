//! Helpers for drivers of hosted providers: reasons cut to one line and stripped of private data,
//! forms, and settings.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::invalid_account::refused;
use super::mailbox::ONE_MAILBOX;
use super::{Account, InvalidAccount, Mailbox};

/// The maximum length of a reason, in characters.
const REASON_CHARS: usize = 200;

/// The minimum length of a credential that is searched for in an answer, in bytes, so that common
/// words are not masked.
const SECRET_BYTES: usize = 6;

/// The minimum number of consecutive digits that are masked as a phone number.
const NUMBER_DIGITS: usize = 7;

/// Builds the reason for a record: the status, the provider's code and its words, without private
/// data.
pub fn reason(account: &Account, status: u16, code: &str, text: &str) -> String {
    let code = if code.is_empty() {
        String::new()
    } else {
        format!(" ({code})")
    };
    let text = if text.trim().is_empty() {
        String::new()
    } else {
        format!(": {text}")
    };
    tidy(account, &format!("answered {status}{code}{text}"))
}

/// Shortens a provider's words to one line, without the account's credentials, addresses and phone
/// numbers.
pub fn tidy(account: &Account, text: &str) -> String {
    let mut secrets: Vec<&str> = account
        .secrets
        .values()
        .chain(account.headers.iter().map(|(_, value)| value))
        .map(|s| s.reveal())
        .collect();
    secrets.retain(|secret| secret.len() >= SECRET_BYTES);
    // Longer secrets come first, so that one which contains another is masked as a whole.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    let text = secrets
        .iter()
        .fold(text.to_owned(), |text, secret| text.replace(secret, "***"));
    let line: Vec<String> = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .map(without_address)
        .collect();
    without_numbers(&line.join(" "))
        .chars()
        .take(REASON_CHARS)
        .collect()
}

/// Describes an answer that is not in the provider's format: returns the body itself if it is a
/// short plain text, such as a proxy's, and never a page.
pub fn foreign(body: &[u8], whose: &str) -> String {
    let text = String::from_utf8_lossy(body);
    match text.trim() {
        "" => String::new(),
        text if text.len() <= REASON_CHARS && !text.contains(['<', '{', '\0']) => text.to_owned(),
        _ => format!("the answer is not {whose}'s"),
    }
}

/// Masks the parts of a word that contain an `@`.
fn without_address(word: &str) -> String {
    let is_edge = |c: char| "<>,;:\"'`()[]{}=".contains(c);
    word.split_inclusive(is_edge)
        .map(|part| {
            let bare = part.trim_end_matches(is_edge);
            match bare.contains('@') || bare.contains("%40") {
                true => format!("***{}", &part[bare.len()..]),
                false => part.to_owned(),
            }
        })
        .collect()
}

/// Masks long numbers. The digits of a number that begins with a plus may be grouped.
pub(super) fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut run = String::new();
    for c in text.chars().chain(std::iter::once('\n')) {
        let between = if run.starts_with('+') { "-. ()" } else { "-" };
        if c.is_ascii_digit()
            || (!run.is_empty() && between.contains(c))
            || (run.is_empty() && c == '+')
        {
            run.push(c);
            continue;
        }
        let end = run
            .rfind(|c: char| c.is_ascii_digit())
            .map_or(0, |at| at + 1);
        match run.chars().filter(char::is_ascii_digit).count() >= NUMBER_DIGITS {
            true => out.push_str(&format!("***{}", &run[end..])),
            false => out.push_str(&run),
        }
        run.clear();
        if c == '+' {
            run.push(c);
        } else if c != '\n' {
            out.push(c);
        }
    }
    out
}

/// Returns the value of a basic `Authorization` header.
pub fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// Encodes a body of the type `application/x-www-form-urlencoded`.
pub fn form(fields: &[(String, String)]) -> String {
    url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(fields)
        .finish()
}

/// Returns true for a number in E.164 form.
pub fn is_e164(text: &str) -> bool {
    let digits = text.strip_prefix('+').unwrap_or_default();
    (5..=15).contains(&digits.len())
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && !digits.starts_with('0')
}

/// Reads a field that is not secret but may be given as a credential.
pub fn either<'a>(account: &'a Account, field: &str) -> Option<&'a str> {
    account
        .option(field)
        .or_else(|| account.secret(field))
        .filter(|text| !text.is_empty())
}

/// Parses the account's `from`, which must be a single mailbox if it is given.
pub fn from_option(account: &Account) -> Result<Option<Mailbox>, InvalidAccount> {
    let from = account
        .option("from")
        .map(|from| Mailbox::parse(from).ok_or_else(|| refused("from", ONE_MAILBOX)));
    from.transpose()
}

#[cfg(test)]
#[path = "words_tests.rs"]
mod tests;
