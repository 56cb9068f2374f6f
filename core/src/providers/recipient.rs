//! A recipient: one address of a channel, parsed once on input. Drivers send to this address only,
//! and suppressions are looked up by it.

use std::fmt;

use url::{Position, Url};

use super::mailbox::{Mailbox, ONE_MAILBOX};
use super::{Channel, words};

/// Blanks that are trimmed from a recipient and removed from within a number.
const BLANKS: [char; 6] = [' ', '\t', '\n', '\r', '\u{c}', '\u{b}'];

/// Separators that people write between the digits of a number.
const BETWEEN_DIGITS: [char; 4] = ['-', '(', ')', '.'];

/// The prefix of a number that receives WhatsApp messages.
const WHATSAPP: &str = "whatsapp:";

/// The maximum length of a device token, in bytes.
const TOKEN_BYTES: usize = 4096;
/// The maximum length of a chat's id or name, in bytes.
const CHAT_BYTES: usize = 128;

/// The maximum length of the id of a recipient with an inbox, in bytes.
const SUBSCRIBER_BYTES: usize = 128;

/// Ids that a path cannot hold; `flyball.check_recipient_id` has the same list.
pub const RESERVED_IDS: [&str; 3] = ["check", ".", ".."];

/// The form of the id of a recipient with an inbox, for messages.
const SUBSCRIBER_FORM: &str = "must be the id of a recipient: 1 to 128 bytes without blanks around, other than check, . or ..";

/// The minimum length of a token of hexadecimal digits that is taken for one of Apple's, which are
/// case-insensitive.
const HEX_TOKEN: usize = 64;

/// A recipient. Its debug text shows only the channel.
#[derive(Clone, PartialEq, Eq)]
pub struct Recipient {
    channel: Channel,
    name: Option<String>,
    address: String,
    identity: String,
    /// The input, trimmed of blanks.
    given: String,
}

impl Recipient {
    /// Parses a recipient. The error states the allowed form and never contains the input.
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
                // Mailboxes do not differ by case in practice, and the events of providers change
                // the case.
                let identity = mailbox.address().to_ascii_lowercase();
                (
                    mailbox.name().map(str::to_owned),
                    mailbox.address().to_owned(),
                    identity,
                )
            }
            Channel::Sms => {
                let (prefix, number) = number(given).ok_or(
                    "must be a number in E.164 form, such as +15550100 or whatsapp:+15550100",
                )?;
                (None, format!("{prefix}{number}"), number)
            }
            Channel::Push => {
                let fits =
                    given.len() <= TOKEN_BYTES && given.bytes().all(|byte| byte.is_ascii_graphic());
                let token = Some(given.to_owned())
                    .filter(|_| fits)
                    .ok_or("must be one device's token, or /topics/ and a topic's name")?;
                let is_hex =
                    token.len() >= HEX_TOKEN && token.bytes().all(|byte| byte.is_ascii_hexdigit());
                let identity = if is_hex {
                    token.to_ascii_lowercase()
                } else {
                    token.clone()
                };
                (None, token, identity)
            }
            Channel::Chat => plain(chat(given).ok_or(
                "must be one chat's id, such as -100123 or C0123456789, or a name, such as @news",
            )?),
            Channel::Webhook => {
                let url =
                    web_url(given).ok_or("must be a URL that begins with http:// or https://")?;
                (None, url.as_str().to_owned(), url_identity(&url))
            }
            Channel::InApp => plain(subscriber(text).ok_or(SUBSCRIBER_FORM)?),
        };
        Ok(Self {
            channel,
            name,
            address,
            identity,
            given: given.to_owned(),
        })
    }

    /// Parses a recipient as reported by a provider, possibly with a name of any form before an
    /// address.
    pub fn reported(channel: Channel, text: &str) -> Option<Self> {
        let address = text
            .trim_matches(BLANKS)
            .strip_suffix('>')
            .and_then(|text| Some(text.rsplit_once('<')?.1));
        Self::parse(channel, text)
            .ok()
            .or_else(|| Self::parse(channel, address.filter(|_| channel == Channel::Email)?).ok())
    }

    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// Returns the name before a mail address.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the address that messages go to, as it appears in the driver's request.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the normalised address by which recipients are compared.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns the mailbox of a mail's recipient; `None` on other channels.
    pub fn mailbox(&self) -> Option<Mailbox> {
        Mailbox::parse(&self.given).filter(|_| self.channel == Channel::Email)
    }
}

impl fmt::Debug for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recipient")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}

/// Splits a number into the prefix of its channel and the digits.
fn number(text: &str) -> Option<(&'static str, String)> {
    let number: String = text
        .chars()
        .filter(|c| !BLANKS.contains(c) && !BETWEEN_DIGITS.contains(c))
        .collect();
    let (prefix, number) = match number
        .get(..WHATSAPP.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(WHATSAPP))
    {
        true => (WHATSAPP, number[WHATSAPP.len()..].to_owned()),
        false => ("", number),
    };
    words::is_e164(&number).then_some((prefix, number))
}

/// Returns the id of a recipient with an inbox, if it can be part of a path.
fn subscriber(text: &str) -> Option<String> {
    let is_sound = text.len() <= SUBSCRIBER_BYTES
        && text.trim_matches(BLANKS) == text
        && !RESERVED_IDS.contains(&text);
    is_sound.then(|| text.to_owned())
}

/// Normalises a chat: a number to its decimal form, a name that begins with `@` or `#` to lower
/// case; other ids are unchanged.
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

/// Parses a URL and drops its fragment, which is never requested.
fn web_url(text: &str) -> Option<Url> {
    let mut url = Url::parse(text)
        .ok()
        .filter(|_| !text.contains(char::is_whitespace))?;
    url.set_fragment(None);
    (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(url)
}

/// Normalises a URL: no trailing dot after the host, and percent-encoding only where it is needed
/// (RFC 3986, 6.2.2).
fn url_identity(url: &Url) -> String {
    let host = url[..Position::AfterHost].trim_end_matches('.');
    let rest = &url[Position::AfterHost..];
    let mut out = host.to_owned();
    let mut at = 0;
    while let Some(c) = rest[at..].chars().next() {
        let escaped = rest
            .get(at + 1..at + 3)
            .filter(|digits| c == '%' && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let escaped = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                out.push(char::from(byte))
            }
            Some(byte) => out.push_str(&format!("%{byte:02X}")),
            None => out.push(c),
        }
        at += if escaped.is_some() { 3 } else { c.len_utf8() };
    }
    out
}
