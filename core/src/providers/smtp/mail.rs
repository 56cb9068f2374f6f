//! The conversion of a message to a mail.

use std::time::{Duration, UNIX_EPOCH};

use lettre::Address;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message as Mail, MultiPart, SinglePart};
use serde_json::Value;

use crate::input::pointer;
use crate::jobs::Issue;
use crate::providers::mailbox::ONE_MAILBOX;
use crate::providers::{Account, Mailbox as OneMailbox, Message};

/// Headers that are built from the other fields and cannot be set.
const OURS: &[&str] = &[
    "bcc",
    "cc",
    "date",
    "from",
    "message-id",
    "mime-version",
    "reply-to",
    "sender",
    "subject",
    "to",
    "return-path",
];

/// A mail ready to be transmitted.
pub(super) struct Ready {
    pub from: Address,
    pub to: Address,
    pub bytes: Vec<u8>,
    /// The `Message-ID` header.
    pub id: String,
}

/// Builds the mail.
///
/// Fails with all issues of the message.
pub(super) fn ready(message: &Message, account: &Account, now_s: i64) -> Result<Ready, Vec<Issue>> {
    let parts = MailFields::of(message, account)?;
    let id = format!("<{}@{}>", id_part(&message.id), parts.from.email.domain());
    let date = UNIX_EPOCH + Duration::from_secs(now_s.max(0).unsigned_abs());
    let (from, to) = (parts.from.email.clone(), parts.to.email.clone());
    let mut builder = Mail::builder()
        .from(parts.from)
        .to(parts.to)
        .date(date)
        .message_id(Some(id.clone()));
    if let Some(subject) = &message.subject {
        builder = builder.subject(subject.clone());
    }
    if let Some(reply_to) = parts.reply_to {
        builder = builder.reply_to(reply_to);
    }
    for (name, value) in parts.headers {
        builder = builder.raw_header(HeaderValue::new(name, value));
    }
    let body = whole_lines(&message.body);
    let mail = match &message.html {
        Some(html) => builder.multipart(MultiPart::alternative_plain_html(body, whole_lines(html))),
        None => builder.singlepart(SinglePart::plain(body)),
    };
    let mail = mail.map_err(|error| {
        vec![Issue {
            pointer: String::new(),
            message: format!("is not a valid mail: {error}"),
        }]
    })?;
    Ok(Ready {
        from,
        to,
        bytes: mail.formatted(),
        id,
    })
}

/// Returns a text without a CR that is not part of a line end. Some servers take one for a line
/// end, so that a dot behind it would end the mail, and the rest of the text would be commands.
fn whole_lines(text: &str) -> String {
    // The mail library writes each LF as CRLF.
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// Checks a message.
pub(super) fn check(message: &Message, account: &Account) -> Vec<Issue> {
    MailFields::of(message, account).err().unwrap_or_default()
}

/// The parts of a message that can be invalid, parsed.
struct MailFields {
    from: Mailbox,
    to: Mailbox,
    reply_to: Option<Mailbox>,
    headers: Vec<(HeaderName, String)>,
}

impl MailFields {
    fn of(message: &Message, account: &Account) -> Result<Self, Vec<Issue>> {
        let mut issues = Vec::new();
        let mut issue = |pointer: String, text: &str| {
            issues.push(Issue {
                pointer,
                message: text.to_owned(),
            })
        };
        let to = message.to.mailbox().as_ref().and_then(parts);
        if to.is_none() {
            issue("/to".to_owned(), ONE_MAILBOX);
        }
        let from = message
            .from
            .as_deref()
            .or_else(|| account.option("from"))
            .map(mailbox);
        match &from {
            None => issue(
                "/from".to_owned(),
                "is missing, and the account has no from of its own",
            ),
            Some(None) => issue("/from".to_owned(), ONE_MAILBOX),
            Some(Some(_)) => {}
        }
        if message.body.is_empty() && message.html.as_deref().unwrap_or_default().is_empty() {
            issue("/body".to_owned(), "must not be empty without html");
        }
        let reply_to = message
            .extra
            .get("reply_to")
            .map(|value| value.as_str().and_then(mailbox));
        if matches!(reply_to, Some(None)) {
            issue("/extra/reply_to".to_owned(), ONE_MAILBOX);
        }
        let mut headers = Vec::new();
        for (name, value) in account
            .headers
            .iter()
            .map(|(name, value)| (name, value.reveal()))
        {
            headers.extend(
                HeaderName::new_from_ascii(name.clone())
                    .ok()
                    .map(|name| (name, value.to_owned())),
            );
        }
        match message.extra.get("headers") {
            None => {}
            Some(Value::Object(given)) => {
                for (name, value) in given {
                    match header(name, value) {
                        Some(header) => headers.push(header),
                        None => issue(
                            pointer("/extra/headers", name),
                            "must be a header's name with a text of one line; From, To, Subject, Date, Content-* and the like have fields of their own",
                        ),
                    }
                }
            }
            Some(_) => issue(
                "/extra/headers".to_owned(),
                "must be an object of names and texts",
            ),
        }
        match (to, from.flatten()) {
            (Some(to), Some(from)) if issues.is_empty() => Ok(Self {
                from,
                to,
                reply_to: reply_to.flatten(),
                headers,
            }),
            _ => Err(issues),
        }
    }
}

/// Parses a header that a message may set; returns `None` for any other.
pub(super) fn header(name: &str, value: &Value) -> Option<(HeaderName, String)> {
    let low = name.to_ascii_lowercase();
    // The mail library accepts a line break in a name, behind which another header would begin.
    let is_name = name.bytes().all(|byte| byte.is_ascii_graphic());
    let is_ours = OURS.contains(&low.as_str()) || low.starts_with("content-");
    let value = value
        .as_str()
        .filter(|value| is_name && !is_ours && !value.chars().any(char::is_control))?;
    Some((
        HeaderName::new_from_ascii(name.to_owned()).ok()?,
        value.to_owned(),
    ))
}

/// Parses an address, with or without a name before it.
pub(super) fn mailbox(text: &str) -> Option<Mailbox> {
    OneMailbox::parse(text).as_ref().and_then(parts)
}

/// Converts a mailbox to the type of the mail library.
fn parts(mailbox: &OneMailbox) -> Option<Mailbox> {
    Some(Mailbox::new(
        mailbox.name().map(str::to_owned),
        mailbox.address().parse().ok()?,
    ))
}

/// Converts a message's id to the local part of a Message-ID.
fn id_part(id: &str) -> String {
    id.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "_-.".contains(c) {
                c
            } else {
                '-'
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::providers::Channel;
    use crate::providers::examples::account;
    use crate::providers::wire_tests::{extra, message};

    fn text(message: &Message) -> String {
        let account = account(&[("from", "Shop <shop@example.com>")], &[]);
        String::from_utf8(ready(message, &account, 784_111_777).ok().unwrap().bytes).unwrap()
    }

    #[test]
    fn a_mail_has_its_own_id_and_both_forms() {
        let mut sent = message(Channel::Email, "ann@example.org");
        sent.subject = Some("Grüße\r\nBcc: eve@example.net".to_owned());
        sent.extra = extra(
            json!({ "reply_to": "help@example.com", "headers": { "List-Unsubscribe": "<https://example.com/u>" } }),
        );
        let plain = text(&sent);
        for line in [
            "From: Shop <shop@example.com>\r\n",
            "To: ann@example.org\r\n",
            "Date: Sun, 06 Nov 1994 08:49:37 +0000\r\n",
            "Message-ID: <job_7@example.com>\r\n",
            "Reply-To: help@example.com\r\n",
            "List-Unsubscribe: <https://example.com/u>\r\n",
            "\r\n\r\nHello",
        ] {
            assert!(plain.contains(line), "{line} is missing in {plain}");
        }
        assert!(
            !plain.contains("\nBcc:"),
            "no header is smuggled in: {plain}"
        );
        sent.html = Some("<b>Hello</b>".to_owned());
        let both = text(&sent);
        assert!(
            both.contains("multipart/alternative")
                && both.contains("<b>Hello</b>")
                && both.contains("text/plain")
        );
    }

    #[test]
    fn no_text_ends_the_mail_early() {
        let mut sent = message(Channel::Email, "ann@example.org");
        sent.body = "one\r.\r\nMAIL FROM:<eve@example.net>\r\n\rtwo\n.\nthree".to_owned();
        let is_whole = |mail: &str| !mail.replace("\r\n", "").contains(['\r', '\n']);
        let plain = text(&sent);
        assert!(is_whole(&plain), "{plain:?}");
        assert!(plain.contains("one\r\n.\r\nMAIL"), "{plain:?}");
        sent.html = Some("<b>\r.\r\n</b>".to_owned());
        let both = text(&sent);
        assert!(is_whole(&both), "{both:?}");
    }

    #[test]
    fn the_name_of_a_header_begins_no_other_line() {
        let value = json!("eve@example.net");
        let odd = [
            "X\r\nBcc",
            "X\nFrom",
            "X\rTo",
            "\r\n.\r\nMAIL\tFROM",
            "X\tA",
            "X A",
            "X:A",
            "Ä",
            "",
        ];
        for name in odd {
            assert!(header(name, &value).is_none(), "{name:?}");
        }
        assert!(header("X-A_b.1", &value).is_some());
        let mut sent = message(Channel::Email, "ann@example.org");
        sent.extra = extra(json!({ "headers": { "X\r\nBcc": "eve@example.net" } }));
        let account = account(&[("from", "shop@example.com")], &[]);
        assert_eq!(check(&sent, &account).len(), 1);
    }

    #[test]
    fn everything_wrong_is_reported() {
        let mut sent = message(Channel::Email, "ann@example.org");
        sent.extra = extra(
            json!({ "reply_to": 1, "headers": { "Subject": "x", "X-A": "a\nb", "X-B": "fine" } }),
        );
        let pointers: Vec<String> = check(&sent, &account(&[], &[]))
            .into_iter()
            .map(|issue| issue.pointer)
            .collect();
        assert_eq!(
            pointers,
            [
                "/from",
                "/extra/reply_to",
                "/extra/headers/Subject",
                "/extra/headers/X-A"
            ]
        );
        let mut sent = message(Channel::Email, "ann@example.org");
        sent.from = Some("shop@example.com\r\nDATA".to_owned());
        assert_eq!(check(&sent, &account(&[], &[]))[0].pointer, "/from");
    }
}
