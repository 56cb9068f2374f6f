//! What the drivers of hosted providers share: somebody else's words cut to a line, addresses, forms, and settings read.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::mailbox::ONE_MAILBOX;
use super::outcome::refused;
use super::{Account, Mailbox, Refused};

/// Most characters of a reason.
const REASON_CHARS: usize = 200;

/// The shortest credential that is looked for in an answer, so that no common word is crossed out.
const SECRET_BYTES: usize = 6;

/// So many digits in a row are taken for a number of somebody.
const NUMBER_DIGITS: usize = 7;

/// The reason in a record: the status, the provider's code and its words, without what is nobody's business.
pub fn reason(account: &Account, status: u16, code: &str, text: &str) -> String {
    let code = if code.is_empty() { String::new() } else { format!(" ({code})") };
    let text = if text.trim().is_empty() { String::new() } else { format!(": {text}") };
    tidy(account, &format!("answered {status}{code}{text}"))
}

/// Somebody else's words on one line, without the account's credentials, addresses and numbers of people.
pub fn tidy(account: &Account, text: &str) -> String {
    let mut secrets: Vec<&str> =
        account.secrets.values().chain(account.headers.iter().map(|(_, value)| value)).map(|s| s.reveal()).collect();
    secrets.retain(|secret| secret.len() >= SECRET_BYTES);
    // The longer first, so that nothing is left of one that holds another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    let text = secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "***"));
    let line: Vec<String> =
        text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()).map(without_address).collect();
    without_numbers(&line.join(" ")).chars().take(REASON_CHARS).collect()
}

/// What an answer says that is not in its provider's form: itself if it is a short plain text, as of a proxy, and never a page.
pub fn foreign(body: &[u8], whose: &str) -> String {
    let text = String::from_utf8_lossy(body);
    match text.trim() {
        "" => String::new(),
        text if text.len() <= REASON_CHARS && !text.contains(['<', '{', '\0']) => text.to_owned(),
        _ => format!("the answer is not {whose}'s"),
    }
}

/// A word in which what stands around an `@` is crossed out.
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

/// The text in which long numbers are crossed out; those that begin with a plus may be written in groups.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut run = String::new();
    for c in text.chars().chain(std::iter::once('\n')) {
        let between = if run.starts_with('+') { "-. ()" } else { "-" };
        if c.is_ascii_digit() || (!run.is_empty() && between.contains(c)) || (run.is_empty() && c == '+') {
            run.push(c);
            continue;
        }
        let end = run.rfind(|c: char| c.is_ascii_digit()).map_or(0, |at| at + 1);
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

/// The value of an `Authorization` header.
pub fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// A body of the type `application/x-www-form-urlencoded`.
pub fn form(fields: &[(String, String)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

/// True for a number in E.164 form.
pub fn is_e164(text: &str) -> bool {
    let digits = text.strip_prefix('+').unwrap_or_default();
    (5..=15).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0')
}

/// What is no credential to us, but may be given as one.
pub fn either<'a>(account: &'a Account, field: &str) -> Option<&'a str> {
    account.option(field).or_else(|| account.secret(field)).filter(|text| !text.is_empty())
}

/// The account's `from`, which must be one mailbox if it is given.
pub fn from_option(account: &Account) -> Result<Option<Mailbox>, Refused> {
    let from = account.option("from").map(|from| Mailbox::parse(from).ok_or_else(|| refused("from", ONE_MAILBOX)));
    from.transpose()
}

#[cfg(test)]
#[path = "words_tests.rs"]
mod tests;
