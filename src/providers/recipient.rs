//! A recipient: one address of a channel, read once at the door. Every driver sends to this address and to nothing else, and it is
//! what suppressions are looked up by.

use std::fmt;

use url::{Position, Url};

use super::mailbox::{Mailbox, ONE_MAILBOX};
use super::{Channel, words};

/// What is blank at the ends of a recipient, and anywhere in a number.
const BLANKS: [char; 6] = [' ', '\t', '\n', '\r', '\u{c}', '\u{b}'];

/// What people put between the digits of a number.
const BETWEEN_DIGITS: [char; 4] = ['-', '(', ')', '.'];

/// Stands before a number that is written to by WhatsApp.
const WHATSAPP: &str = "whatsapp:";

/// Longest token of a device, and longest name of a chat, in bytes.
const TOKEN_BYTES: usize = 4096;
const CHAT_BYTES: usize = 128;

/// A token of so many hexadecimal digits is one of Apple's, in which capitals mean nothing.
const HEX_TOKEN: usize = 64;

/// One recipient. Its debug text shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Recipient {
    channel: Channel,
    name: Option<String>,
    address: String,
    identity: String,
    /// As it was given, but for blanks around.
    given: String,
}

impl Recipient {
    /// Reads a recipient, or says what it must be; never shows what was given.
    pub fn parse(channel: Channel, text: &str) -> Result<Self, &'static str> {
        let given = text.trim_matches(BLANKS);
        if given.is_empty() {
            return Err("is empty; give the address, number, token, chat or URL");
        }
        if given.chars().any(char::is_control) {
            return Err("has control characters");
        }
        let plain = |address: String| (None, address.clone(), address);
        let (name, address, identity) = match channel {
            Channel::Email => {
                let mailbox = Mailbox::parse(given).ok_or(ONE_MAILBOX)?;
                // Nobody has two boxes that differ by capitals alone, and events name them in capitals of their own.
                let identity = mailbox.address().to_ascii_lowercase();
                (mailbox.name().map(str::to_owned), mailbox.address().to_owned(), identity)
            }
            Channel::Sms => {
                let (prefix, number) =
                    number(given).ok_or("must be a number in E.164 form, such as +15550100 or whatsapp:+15550100")?;
                (None, format!("{prefix}{number}"), number)
            }
            Channel::Push => {
                let fits = given.len() <= TOKEN_BYTES && given.bytes().all(|byte| byte.is_ascii_graphic());
                let token = Some(given.to_owned())
                    .filter(|_| fits)
                    .ok_or("must be one device's token, or /topics/ and a topic's name")?;
                let is_hex = token.len() >= HEX_TOKEN && token.bytes().all(|byte| byte.is_ascii_hexdigit());
                let identity = if is_hex { token.to_ascii_lowercase() } else { token.clone() };
                (None, token, identity)
            }
            Channel::Chat => {
                plain(chat(given).ok_or("must be one chat's id, such as -100123 or C0123456789, or a name, such as @news")?)
            }
            Channel::Webhook => {
                let url = web_url(given).ok_or("must be a URL that begins with http:// or https://")?;
                (None, url.as_str().to_owned(), url_identity(&url))
            }
        };
        Ok(Self { channel, name, address, identity, given: given.to_owned() })
    }

    /// A recipient in a provider's words, which may put a name of any form before an address.
    pub fn reported(channel: Channel, text: &str) -> Option<Self> {
        let address = text.trim_matches(BLANKS).strip_suffix('>').and_then(|text| Some(text.rsplit_once('<')?.1));
        Self::parse(channel, text).ok().or_else(|| Self::parse(channel, address.filter(|_| channel == Channel::Email)?).ok())
    }

    /// How it is reached.
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// The name before a mail address.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The one address that messages go to, as it stands in the request of its driver.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The address in the one spelling by which two recipients are told apart.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The mailbox, of a mail's recipient.
    pub fn mailbox(&self) -> Option<Mailbox> {
        Mailbox::parse(&self.given).filter(|_| self.channel == Channel::Email)
    }

    /// Every text under which it may have been suppressed: its identity first, then what versions before took for it.
    pub fn known_as(&self) -> Vec<String> {
        let mut all = vec![self.identity.clone()];
        match self.channel {
            Channel::Email => {
                all.push(self.given.to_ascii_lowercase());
                if let Some((local, domain)) = self.identity.rsplit_once('@') {
                    all.push(format!("{local}@{}", idna::domain_to_unicode(domain).0));
                }
            }
            Channel::Sms => all.push(format!("{WHATSAPP}{}", self.identity)),
            Channel::Push | Channel::Chat | Channel::Webhook => all.extend([self.given.clone(), self.address.clone()]),
        }
        let mut seen = std::collections::HashSet::new();
        all.retain(|text| seen.insert(text.clone()));
        all
    }
}

impl fmt::Debug for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recipient").field("channel", &self.channel).finish_non_exhaustive()
    }
}

/// The prefix of a number's channel, and the number.
fn number(text: &str) -> Option<(&'static str, String)> {
    let number: String = text.chars().filter(|c| !BLANKS.contains(c) && !BETWEEN_DIGITS.contains(c)).collect();
    let (prefix, number) = match number.get(..WHATSAPP.len()).is_some_and(|start| start.eq_ignore_ascii_case(WHATSAPP)) {
        true => (WHATSAPP, number[WHATSAPP.len()..].to_owned()),
        false => ("", number),
    };
    words::is_e164(&number).then_some((prefix, number))
}

/// A chat in the one spelling: numbers as numbers are written, names that begin with a sign in lower case, ids as they are.
fn chat(text: &str) -> Option<String> {
    let is_odd = |c: char| c.is_whitespace() || ",;<>\"".contains(c);
    if text.len() > CHAT_BYTES || text.contains(is_odd) {
        return None;
    }
    Some(match text.parse::<i64>() {
        Ok(id) => id.to_string(),
        Err(_) if text.starts_with(['@', '#']) => text.to_ascii_lowercase(),
        Err(_) => text.to_owned(),
    })
}

/// A URL as it is requested: what stands behind a `#` never is.
fn web_url(text: &str) -> Option<Url> {
    let mut url = Url::parse(text).ok().filter(|_| !text.contains(char::is_whitespace))?;
    url.set_fragment(None);
    (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(url)
}

/// A URL in the one spelling: without the dot of a full name, and with escapes where they are needed only (RFC 3986, 6.2.2).
fn url_identity(url: &Url) -> String {
    let host = url[..Position::AfterHost].trim_end_matches('.');
    let rest = &url[Position::AfterHost..];
    let mut out = host.to_owned();
    let mut at = 0;
    while let Some(c) = rest[at..].chars().next() {
        let escaped = rest.get(at + 1..at + 3).filter(|digits| c == '%' && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let escaped = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => out.push(char::from(byte)),
            Some(byte) => out.push_str(&format!("%{byte:02X}")),
            None => out.push(c),
        }
        at += if escaped.is_some() { 3 } else { c.len_utf8() };
    }
    out
}
