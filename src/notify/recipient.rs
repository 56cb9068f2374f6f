//! Recipients: when two are the same, how they are kept, and what people may see of them. The law in
//! `flyball.normal_recipient`, `flyball.recipient_digest` and `flyball.mask_recipient` is the same.

use aws_lc_rs::digest;
use serde_json::Value;

use crate::providers::Channel;

/// The kind of a message's job.
pub const KIND: &str = "notification";

/// What is blank to both languages.
const BLANKS: [char; 6] = [' ', '\t', '\n', '\r', '\u{c}', '\u{b}'];

/// What people put between the digits of a number.
const BETWEEN_DIGITS: [char; 4] = ['-', '(', ')', '.'];

/// The one spelling of a recipient: mail addresses in lower case, numbers without blanks and dashes, all without blanks around.
pub fn normal(channel: Channel, recipient: &str) -> String {
    match channel {
        Channel::Email => recipient.trim_matches(BLANKS).to_ascii_lowercase(),
        Channel::Sms => recipient.chars().filter(|c| !BLANKS.contains(c) && !BETWEEN_DIGITS.contains(c)).collect(),
        Channel::Push | Channel::Chat | Channel::Webhook => recipient.trim_matches(BLANKS).to_owned(),
    }
}

/// The digest under which a recipient is known on a channel.
pub fn digest(channel: Channel, recipient: &str) -> Vec<u8> {
    let text = format!("{}\u{1f}{}", channel.word(), normal(channel, recipient));
    digest::digest(&digest::SHA256, text.as_bytes()).as_ref().to_vec()
}

/// A recipient as people may see it: `a***@e***.com`, `+1555***00`.
pub fn mask(channel: Channel, recipient: &str) -> String {
    let recipient = normal(channel, recipient);
    match channel {
        Channel::Email => match recipient.rsplit_once('@') {
            Some((_, domain)) => format!("{}***@{}", first(&recipient, 1), mask_host(domain)),
            None => "***".to_owned(),
        },
        Channel::Webhook => {
            let scheme = ["https://", "http://"].into_iter().find(|scheme| recipient.starts_with(scheme));
            let Some(scheme) = scheme else { return "***".to_owned() };
            let host = recipient[scheme.len()..].split(['/', '?', '#']).next().unwrap_or_default();
            format!("{scheme}{}/***", mask_host(host))
        }
        Channel::Sms => mask_text(&recipient, 10, 5),
        Channel::Push | Channel::Chat => mask_text(&recipient, 12, 3),
    }
}

/// Masks the recipient in the arguments of a message's job; those of other kinds stay as they are.
pub fn mask_args(kind: &str, args: &mut Value) {
    if kind != KIND {
        return;
    }
    let channel = args.get("channel").and_then(Value::as_str);
    let channel = channel.and_then(|word| Channel::WORDS.iter().find(|(known, _)| *known == word)).map(|(_, channel)| *channel);
    if let Some(to) = args.get_mut("to").filter(|to| !to.is_null()) {
        let masked = channel.zip(to.as_str()).map(|(channel, to)| mask(channel, to));
        *to = Value::String(masked.unwrap_or_else(|| "***".to_owned()));
    }
}

/// The first letter and what stands behind the last dot.
fn mask_host(host: &str) -> String {
    let end = host.rfind('.').map_or("", |at| &host[at..]);
    format!("{}***{end}", first(host, 1))
}

/// The first few and the last two characters, of texts that are long enough.
fn mask_text(text: &str, long: usize, shown: usize) -> String {
    match text.chars().count() {
        0..5 => "***".to_owned(),
        length if length < long => format!("***{}", last_two(text)),
        _ => format!("{}***{}", first(text, shown), last_two(text)),
    }
}

fn first(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}

fn last_two(text: &str) -> &str {
    text.char_indices().rev().nth(1).map_or(text, |(at, _)| &text[at..])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn two_spellings_of_one_recipient_are_the_same() {
        for (channel, one, other) in [
            (Channel::Email, " Ada@Example.COM\n", "ada@example.com"),
            (Channel::Sms, "+1 (555) 010-00.00", "+15550100000"),
            (Channel::Push, " abc ", "abc"),
            (Channel::Webhook, "https://a.example/B ", "https://a.example/B"),
        ] {
            assert_eq!(digest(channel, one), digest(channel, other), "{one}");
        }
    }

    #[test]
    fn another_channel_or_case_of_a_token_is_another_recipient() {
        assert_ne!(digest(Channel::Push, "abc"), digest(Channel::Chat, "abc"));
        assert_ne!(digest(Channel::Push, "abc"), digest(Channel::Push, "ABC"));
    }

    #[test]
    fn the_arguments_of_a_message_show_its_recipient_masked_whatever_they_hold() {
        let masked = |kind, mut args: Value| {
            mask_args(kind, &mut args);
            args
        };
        assert_eq!(
            masked(KIND, json!({"channel": "email", "to": "ada@example.com", "body": "x"})),
            json!({"channel": "email", "to": "a***@e***.com", "body": "x"})
        );
        assert_eq!(masked(KIND, json!({"channel": "fax", "to": ["ada@example.com"]}))["to"], "***");
        assert_eq!(masked("http", json!({"to": "ada@example.com"}))["to"], "ada@example.com");
        assert_eq!(masked(KIND, json!("text")), json!("text"));
    }

    #[test]
    fn people_see_enough_to_recognise_and_too_little_to_use() {
        for (channel, recipient, shown) in [
            (Channel::Email, "Ada@Example.com", "a***@e***.com"),
            (Channel::Email, "a@localhost", "a***@l***"),
            (Channel::Email, "nonsense", "***"),
            (Channel::Sms, "+1 555 0100 00", "+1555***00"),
            (Channel::Sms, "12345", "***45"),
            (Channel::Sms, "110", "***"),
            (Channel::Push, "0123456789abcdef", "012***ef"),
            (Channel::Chat, "-10012345", "***45"),
            (Channel::Webhook, "https://u:p@hooks.example.com/x?token=1", "https://u***.com/***"),
            (Channel::Webhook, "ftp://x", "***"),
        ] {
            assert_eq!(mask(channel, recipient), shown, "{recipient}");
        }
    }
}
