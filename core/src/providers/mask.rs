//! Masks for recipients that people see. For the spellings that SQL can read,
//! `flyball.mask_recipient` gives the same results.

use super::{Channel, Recipient};

/// The replacement for hidden text.
pub const MASK: &str = "***";

impl Recipient {
    /// Returns the recipient as people see it: `a***@e***.com`, `+1555***00`.
    pub fn masked(&self) -> String {
        let identity = self.identity();
        match self.channel() {
            Channel::Email => match identity.rsplit_once('@') {
                Some((_, domain)) => format!("{}***@{}", first(identity, 1), mask_host(domain)),
                None => MASK.to_owned(),
            },
            Channel::Webhook => {
                let scheme = ["https://", "http://"]
                    .into_iter()
                    .find(|scheme| identity.starts_with(scheme));
                let Some(scheme) = scheme else {
                    return MASK.to_owned();
                };
                let host = identity[scheme.len()..]
                    .split(['/', '?', '#'])
                    .next()
                    .unwrap_or_default();
                // The part before an @ is a name and a password.
                let host = host.rsplit('@').next().unwrap_or_default();
                format!("{scheme}{}/***", mask_host(host))
            }
            Channel::Sms => mask_text(identity, 10, 5),
            Channel::Push | Channel::Chat | Channel::InApp => mask_text(identity, 12, 3),
        }
    }
}

/// Keeps the first letter and the part after the last dot.
fn mask_host(host: &str) -> String {
    let end = host.rfind('.').map_or("", |at| &host[at..]);
    format!("{}***{end}", first(host, 1))
}

/// Keeps the first few and the last two characters of texts that are long enough.
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
    text.char_indices()
        .rev()
        .nth(1)
        .map_or(text, |(at, _)| &text[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_enough_to_recognise_and_too_little_to_use() {
        for (channel, recipient, shown) in [
            (Channel::Email, "Ada@Example.com", "a***@e***.com"),
            (Channel::Email, "a@localhost", "a***@l***"),
            (Channel::Sms, "+1 555 0100 00", "+1555***00"),
            (Channel::Push, "0123456789abcdef", "012***ef"),
            (Channel::Chat, "-10012345", "***45"),
            (
                Channel::Webhook,
                "https://u:p@hooks.example.com/x?token=1",
                "https://h***.com/***",
            ),
        ] {
            assert_eq!(
                Recipient::parse(channel, recipient).unwrap().masked(),
                shown,
                "{recipient}"
            );
        }
    }
}
