//! Masks for messages that people see.

use serde_json::Value;

use crate::providers::mask::MASK;
use crate::providers::{Channel, Recipient};

/// The kind of a message's job.
pub const KIND: &str = "notification";

/// Arguments of a message that may hold its recipient's private data: a code, a name, a debt.
const CONTENTS: [&str; 6] = ["subject", "body", "html", "template", "data", "extra"];

/// Masks the recipient and the contents in the arguments of a message's job, and leaves other kinds
/// unchanged.
pub fn mask_args(kind: &str, args: &mut Value) {
    if kind != KIND {
        return;
    }
    let channel = args.get("channel").and_then(Value::as_str);
    let channel = channel
        .and_then(|word| Channel::WORDS.iter().find(|(known, _)| *known == word))
        .map(|(_, channel)| *channel);
    if let Some(to) = args.get_mut("to").filter(|to| !to.is_null()) {
        let recipient = channel
            .zip(to.as_str())
            .and_then(|(channel, to)| Recipient::parse(channel, to).ok());
        *to = Value::String(
            recipient.map_or_else(|| MASK.to_owned(), |recipient| recipient.masked()),
        );
    }
    for field in CONTENTS {
        if let Some(value) = args.get_mut(field) {
            hide(value);
        }
    }
}

/// Hides every text, number and flag, but keeps the names of an object's fields, so that people see
/// which were given.
fn hide(value: &mut Value) {
    match value {
        Value::Null => {}
        Value::Object(fields) => fields.values_mut().for_each(|value| {
            if !value.is_null() {
                *value = MASK.into()
            }
        }),
        other => *other = MASK.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn known(channel: Channel, text: &str) -> Vec<u8> {
        let recipient = Recipient::parse(channel, text).unwrap();
        crate::recipient::address::suppression_digest(channel, recipient.identity())
    }

    #[test]
    fn two_spellings_of_one_recipient_are_the_same() {
        for (channel, one, other) in [
            (Channel::Email, " Ada@Example.COM\n", "ada@example.com"),
            (
                Channel::Email,
                "\"Ada, L.\" <ADA@example.com>",
                "ada@example.com",
            ),
            (
                Channel::Email,
                "ada@bücher.example",
                "ada@XN--BCHER-KVA.example",
            ),
            (Channel::Sms, "+1 (555) 010-00.00", "+15550100000"),
            (Channel::Sms, "whatsapp:+15550100000", "+1 555 0100000"),
            (Channel::Push, " abc ", "abc"),
            (Channel::Chat, "@News", "@news"),
            (
                Channel::Webhook,
                "HTTPS://A.example:443/x/../B#part ",
                "https://a.example/B",
            ),
            (
                Channel::Webhook,
                "https://a.example./%7eb?c=%2f",
                "https://a.example/~b?c=%2F",
            ),
        ] {
            assert_eq!(known(channel, one), known(channel, other), "{one}");
        }
    }

    #[test]
    fn another_channel_or_case_of_a_token_is_another_recipient() {
        assert_ne!(known(Channel::Push, "abc"), known(Channel::Chat, "abc"));
        assert_ne!(known(Channel::Push, "abc"), known(Channel::Push, "ABC"));
        assert_eq!(
            known(Channel::Push, &"ab".repeat(32)),
            known(Channel::Push, &"AB".repeat(32)),
            "Apple's are numbers"
        );
    }

    #[test]
    fn the_arguments_of_a_message_show_its_recipient_masked_whatever_they_hold() {
        let masked = |kind, mut args: Value| {
            mask_args(kind, &mut args);
            args
        };
        assert_eq!(
            masked(
                KIND,
                json!({"channel": "email", "to": "ada@example.com", "body": "x"})
            ),
            json!({"channel": "email", "to": "a***@e***.com", "body": "***"})
        );
        assert_eq!(
            masked(KIND, json!({"channel": "fax", "to": ["ada@example.com"]}))["to"],
            "***"
        );
        let code = json!({"channel": "sms", "to": "+15550100000", "template": {"body": "{{ code }}"}, "data": {"code": 123_456}, "subject": null,
            "extra": {"content_variables": {"1": "123456"}}, "priority": "high"});
        assert_eq!(
            masked(KIND, code),
            json!({"channel": "sms", "to": "+1555***00", "template": {"body": "***"}, "data": {"code": "***"}, "subject": null,
                "extra": {"content_variables": "***"}, "priority": "high"})
        );
        assert_eq!(
            masked("http", json!({"to": "ada@example.com"}))["to"],
            "ada@example.com"
        );
        assert_eq!(masked(KIND, json!("text")), json!("text"));
    }
}
