//! Events that providers report by webhook after a message was sent.

/// The kind of an event.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum EventKind {
    /// The provider has passed the message on, or is trying to.
    Sent,
    /// The message reached the recipient.
    Delivered,
    /// The recipient's side rejected the message for good; the recipient is suppressed.
    Bounced,
    /// The message was not delivered; another one may be.
    Failed,
    /// The recipient reported the message as spam.
    Complained,
    /// The recipient unsubscribed.
    Unsubscribed,
}

impl EventKind {
    /// Returns the name used in records, metrics and SQL.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// An event of one message.
#[derive(Clone, PartialEq)]
pub struct ProviderEvent {
    /// The id of the event, unique at its provider, so that a repeated event counts once. It is
    /// composed of the event's fields if the provider sends no id.
    pub event_id: String,
    /// The provider's id of the message, as in the driver's [`super::Sent`].
    pub provider_id: String,
    /// The kind of the event.
    pub event_type: EventKind,
    /// The recipient, if the event names one; never logged.
    pub recipient: Option<String>,
    /// The time of the event, in unix seconds.
    pub at_s: i64,
    /// The provider's words and codes on one line, without addresses.
    pub reason: String,
}

impl ProviderEvent {
    /// Splits the report of a message that was kept from a recipient who had unsubscribed: the
    /// recipient is suppressed, and the message failed.
    pub(super) fn of_unsent(self) -> [Self; 2] {
        let failed = Self {
            event_id: format!("failed:{}", self.event_id),
            event_type: EventKind::Failed,
            ..self.clone()
        };
        [self, failed]
    }
}

impl std::fmt::Debug for ProviderEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProviderEvent")
            .field("provider_id", &self.provider_id)
            .field("event_type", &self.event_type)
            .finish_non_exhaustive()
    }
}

/// A webhook request as received.
pub struct WebhookRequest<'a> {
    /// The whole public URL, with its query, as the provider knows it.
    pub url: &'a str,
    /// The headers, with names in lower case.
    pub headers: &'a std::collections::BTreeMap<String, String>,
    /// The raw body.
    pub body: &'a [u8],
    /// Our clock, in unix seconds.
    pub now_s: i64,
}

/// The reason for rejecting a webhook request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectedWebhook {
    /// The signature is missing, wrong, or too old.
    #[error("the signature is not valid: {0}")]
    Signature(String),
    /// The request is signed correctly but cannot be parsed.
    #[error("the events cannot be read: {0}")]
    Unreadable(String),
    /// The signature cannot be checked at present; the sender may retry.
    #[error("the signature cannot be checked at the moment: {0}")]
    Later(String),
    /// The account has no secret to check signatures with.
    #[error("account {account} has no {field}, so its events cannot be verified")]
    NoSecret {
        /// The name of the account.
        account: String,
        /// The missing key of its settings.
        field: &'static str,
    },
}
