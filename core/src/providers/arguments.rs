//! Checks of a message's arguments before it is sent, and accessors for its `extra`, for the
//! drivers of hosted providers.

use serde_json::Value;

use super::mailbox::ONE_MAILBOX;
use super::{Mailbox, Message};
use crate::input::wording::unknown;
use crate::input::{Issue, pointer};

/// Builds an issue with an argument.
pub fn issue(pointer: &str, message: impl Into<String>) -> Issue {
    Issue::new(pointer, message)
}

/// Checks the sender, the reply addresses, the subject and the size of a mail. The recipient was
/// validated when it was parsed.
pub fn check_mail(message: &Message, own_from: Option<&Mailbox>, most_bytes: usize) -> Vec<Issue> {
    let mut issues = Vec::new();
    match message.from.as_deref().map(Mailbox::parse) {
        None if own_from.is_none() => issues.push(issue(
            "/from",
            "is missing: it must be a mail address, as the account has no from",
        )),
        Some(None) => issues.push(issue("/from", ONE_MAILBOX)),
        _ => {}
    }
    for (at, text) in extra_texts(message, "reply_to").into_iter().enumerate() {
        if Mailbox::parse(text).is_none() {
            let place = if message.extra["reply_to"].is_array() {
                format!("/extra/reply_to/{at}")
            } else {
                "/extra/reply_to".to_owned()
            };
            issues.push(issue(&place, ONE_MAILBOX));
        }
    }
    if message
        .subject
        .as_deref()
        .is_some_and(|subject| subject.contains(['\r', '\n']))
    {
        issues.push(issue("/subject", "must be one line"));
    }
    let bytes = message.body.len() + message.html.as_ref().map_or(0, String::len);
    if bytes > most_bytes {
        issues.push(issue(
            "/body",
            format!("must be at most {most_bytes} bytes together with html, not {bytes}"),
        ));
    }
    issues
}

/// Returns the sender of a mail: its own `from`, else the account's.
pub fn sender(message: &Message, own_from: Option<&Mailbox>) -> Option<Mailbox> {
    message
        .from
        .as_deref()
        .and_then(Mailbox::parse)
        .or_else(|| own_from.cloned())
}

/// Headers built from the other fields, which a message may not set: some of them would add
/// recipients.
const MADE_HERE: &[&str] = &[
    "bcc",
    "cc",
    "content-transfer-encoding",
    "content-type",
    "date",
    "from",
    "message-id",
    "mime-version",
    "reply-to",
    "resent-bcc",
    "resent-cc",
    "resent-to",
    "return-path",
    "sender",
    "subject",
    "to",
];

/// Checks the headers that a mail's `extra` adds; `reserved` are names that the provider keeps for
/// itself, in lower case.
pub fn check_headers(message: &Message, reserved: &[&str]) -> Vec<Issue> {
    let given = message.extra.get("headers").and_then(Value::as_object);
    let wrong = given.into_iter().flatten().filter(|(name, value)| {
        let low = name.to_ascii_lowercase();
        let is_name = !low.is_empty()
            && low
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b':');
        let is_line = value
            .as_str()
            .is_some_and(|value| !value.chars().any(char::is_control));
        !is_name
            || !is_line
            || MADE_HERE.contains(&low.as_str())
            || reserved.contains(&low.as_str())
    });
    let text = "must be a header's name with a text of one line; To, Cc, From, Subject, Reply-To, Content-Type and the like cannot be set here";
    wrong
        .map(|(name, _)| issue(&pointer("/extra/headers", name), text))
        .collect()
}

/// The type of a value in `extra`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraKind {
    /// A string.
    Text,
    /// A string or a non-empty list of strings.
    Texts,
    /// A whole number above 0.
    Count,
    /// True or false.
    Flag,
    /// A JSON object.
    Object,
    /// A JSON object whose values are strings.
    Labels,
}

impl ExtraKind {
    fn fits(self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::Texts => {
                value.is_string()
                    || value.as_array().is_some_and(|texts| {
                        !texts.is_empty() && texts.iter().all(Value::is_string)
                    })
            }
            Self::Count => value.as_u64().is_some_and(|count| count > 0),
            Self::Flag => value.is_boolean(),
            Self::Object => value.is_object(),
            Self::Labels => value
                .as_object()
                .is_some_and(|labels| labels.values().all(Value::is_string)),
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::Texts => "a text or a list of texts",
            Self::Count => "a whole number above 0",
            Self::Flag => "true or false",
            Self::Object => "an object",
            Self::Labels => "an object whose values are texts",
        }
    }
}

/// Checks a message's `extra` against the `known` keys and their types.
pub fn check_extra(message: &Message, known: &[(&str, ExtraKind)]) -> Vec<Issue> {
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let wrong = message.extra.iter().filter_map(|(key, value)| {
        let text = match known.iter().find(|(name, _)| name == key) {
            None => unknown(key, "field", &names),
            Some((_, kind)) if !kind.fits(value) => format!("must be {}", kind.description()),
            Some(_) => return None,
        };
        Some(issue(&pointer("/extra", key), text))
    });
    wrong.collect()
}

/// Returns a string from a message's `extra`.
pub fn extra_text<'a>(message: &'a Message, key: &str) -> Option<&'a str> {
    message.extra.get(key)?.as_str()
}

/// Returns the strings under a key of a message's `extra`: one, a list, or none.
pub fn extra_texts<'a>(message: &'a Message, key: &str) -> Vec<&'a str> {
    match message.extra.get(key) {
        Some(Value::Array(texts)) => texts.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(text)) => vec![text],
        _ => Vec::new(),
    }
}
