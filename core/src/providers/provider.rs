//! The supported providers.

use super::Channel;

/// A provider, named as in the settings.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    serde::Deserialize,
    serde::Serialize,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "snake_case")]
pub enum Provider {
    /// Twilio Messages.
    Twilio,
    /// SendGrid v3 mail/send.
    Sendgrid,
    /// Amazon SES v2.
    Ses,
    /// Any SMTP server.
    Smtp,
    /// Mailgun messages.
    Mailgun,
    /// Apple Push Notification service.
    Apns,
    /// Firebase Cloud Messaging HTTP v1.
    Fcm,
    /// Telegram bots.
    Telegram,
    /// Slack, by incoming webhook or Web API.
    Slack,
    /// A webhook of the recipient's own, signed according to Standard Webhooks.
    Webhook,
    /// The inbox that Flyball keeps. Its pool is built in, so the settings cannot name it.
    Inbox,
}

impl Provider {
    /// All providers that the settings can name.
    pub const ALL: [Self; 10] = [
        Self::Twilio,
        Self::Sendgrid,
        Self::Ses,
        Self::Smtp,
        Self::Mailgun,
        Self::Apns,
        Self::Fcm,
        Self::Telegram,
        Self::Slack,
        Self::Webhook,
    ];

    /// Returns the name used in settings, records and metrics.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the channel of the provider's messages.
    pub fn channel(self) -> Channel {
        match self {
            Self::Twilio => Channel::Sms,
            Self::Sendgrid | Self::Ses | Self::Smtp | Self::Mailgun => Channel::Email,
            Self::Apns | Self::Fcm => Channel::Push,
            Self::Telegram | Self::Slack => Channel::Chat,
            Self::Webhook => Channel::Webhook,
            Self::Inbox => Channel::InApp,
        }
    }

    /// Returns true if the answering server is the recipient's own, so that its faults say nothing
    /// about the account.
    pub fn is_recipients(self) -> bool {
        self == Self::Webhook
    }
}

impl std::fmt::Display for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
