//! The medium of a message.

/// The medium of a message.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Deserialize, serde::Serialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Channel {
    /// A text message; the recipient is a number in E.164 form.
    Sms,
    /// A mail; the recipient is a mail address.
    Email,
    /// A push notification; the recipient is a device token.
    Push,
    /// A chat message; the recipient is the id of a chat, a channel or a user.
    Chat,
    /// An HTTP request; the recipient is a URL.
    Webhook,
    /// A message in the inbox that Flyball keeps; the recipient is the id of a recipient.
    InApp,
}

impl Channel {
    /// All channels and their names.
    pub const WORDS: [(&str, Self); 6] = [
        ("sms", Self::Sms),
        ("email", Self::Email),
        ("push", Self::Push),
        ("chat", Self::Chat),
        ("webhook", Self::Webhook),
        ("inapp", Self::InApp),
    ];

    /// Returns the name used in arguments, records and metrics.
    pub fn as_str(self) -> &'static str {
        Self::WORDS
            .iter()
            .find(|(_, channel)| *channel == self)
            .map_or("", |(word, _)| word)
    }
}
