//! What a provider tells afterwards, by its event webhook.

/// What happened to a message, or to its recipient's will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Happened {
    /// The provider has handed it on, or tries to.
    Sent,
    /// It reached the recipient.
    Delivered,
    /// The recipient's side refused it for good: nothing more goes to this recipient.
    Bounced,
    /// It could not be delivered, which may be otherwise another time.
    Failed,
    /// The recipient calls it spam.
    Complained,
    /// The recipient wants no more.
    Unsubscribed,
}

impl Happened {
    /// The word in records, metrics and SQL.
    pub fn word(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Delivered => "delivered",
            Self::Bounced => "bounced",
            Self::Failed => "failed",
            Self::Complained => "complained",
            Self::Unsubscribed => "unsubscribed",
        }
    }

    /// Nothing more shall go to the recipient on this channel.
    pub fn suppresses(self) -> bool {
        matches!(self, Self::Bounced | Self::Complained | Self::Unsubscribed)
    }
}

/// One event of one message.
#[derive(Clone, PartialEq)]
pub struct Event {
    /// Unique for the event at its provider, so that one that comes twice counts once; made of its parts where the provider has none.
    pub event_id: String,
    /// The provider's id of the message, as the driver's [`super::Sent`] told it.
    pub provider_id: String,
    /// What happened.
    pub happened: Happened,
    /// Whom it was sent to, where the event says so; never logged.
    pub recipient: Option<String>,
    /// When, unix seconds.
    pub at_s: i64,
    /// The provider's words and codes on one line, without addresses.
    pub reason: String,
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Event").field("provider_id", &self.provider_id).field("happened", &self.happened).finish_non_exhaustive()
    }
}

/// A webhook's request as it came.
pub struct Posted<'a> {
    /// The whole URL as the provider knows it: the public one, with its query.
    pub url: &'a str,
    /// Headers by their names in lower case.
    pub headers: &'a std::collections::BTreeMap<String, String>,
    /// The bytes.
    pub body: &'a [u8],
    /// Our clock, unix seconds.
    pub now_s: i64,
}

/// Why a webhook's request is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Disbelieved {
    /// The signature is missing or wrong, or too old.
    #[error("the signature is not valid: {0}")]
    Signature(String),
    /// It is signed and cannot be read.
    #[error("the events cannot be read: {0}")]
    Unreadable(String),
    /// It cannot be checked at present; its sender is to try again.
    #[error("it cannot be checked now: {0}")]
    Later(String),
    /// The account has no secret to check signatures with.
    #[error("account {account} has no {field}, so its events cannot be believed")]
    NoSecret {
        /// The account.
        account: String,
        /// The missing key of its settings.
        field: &'static str,
    },
}
