//! A message as drivers are given it: filled in, checked for its channel, ready to be sent.

use std::fmt;

use serde_json::{Map, Value};

use super::Recipient;

/// How a message reaches people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Channel {
    /// A text message; the recipient is a number in E.164 form.
    Sms,
    /// A mail; the recipient is an address.
    Email,
    /// A push notification; the recipient is a device token.
    Push,
    /// A chat message; the recipient is a chat's id, a channel's id, or a user's.
    Chat,
    /// A request; the recipient is a URL.
    Webhook,
}

impl Channel {
    /// All of them, by their words.
    pub const WORDS: [(&str, Self); 5] =
        [("sms", Self::Sms), ("email", Self::Email), ("push", Self::Push), ("chat", Self::Chat), ("webhook", Self::Webhook)];

    /// The word in arguments, records and metrics.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, channel)| *channel == self).map_or("", |(word, _)| word)
    }
}

/// A message. Its debug text shows neither address nor body.
#[derive(Clone, PartialEq)]
pub struct Message {
    /// Unique for the message, the same for all its attempts: `job_<id>`. Goes along where a provider takes such an id.
    pub id: String,
    /// How it travels.
    pub channel: Channel,
    /// Whom it is for.
    pub to: Recipient,
    /// Who sends it, where not the account's own `from`.
    pub from: Option<String>,
    /// Subject of a mail, or title of a push notification.
    pub subject: Option<String>,
    /// The text; for a webhook the body, which is JSON.
    pub body: String,
    /// The same as HTML, for mails.
    pub html: Option<String>,
    /// What only one provider understands, such as `collapse_id` or `media_url`; each driver's documentation lists its own.
    pub extra: Map<String, Value>,
    /// Unix seconds after which it is worth nothing, where there is such a time.
    pub expires_at_s: Option<i64>,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("id", &self.id).field("channel", &self.channel).finish_non_exhaustive()
    }
}
