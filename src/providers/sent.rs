//! What became of one message at one account: the one outcome type of all drivers.

use std::fmt;
use std::time::Duration;

/// Whom a provider's "slow down" concerns. Only [`Scope::Account`] blocks the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The account (project, key, IP).
    Account,
    /// The connection alone, such as an APNs connection with too many tokens.
    Connection,
    /// One sender number or address of the account.
    Sender,
    /// One recipient: a device token, a chat, a mailbox, a channel.
    Recipient,
}

/// What became of one attempt to send one message through one account.
///
/// Reasons are the provider's own words or ours, cut to a line; they hold no secret, no address and no body.
/// Its debug text does not show the key of a throttle, which may be an address.
#[derive(Clone, PartialEq)]
pub enum Sent {
    /// It is delivered; nothing more will be heard.
    Delivered {
        /// The provider's own id of the message, where it has one.
        provider_id: Option<String>,
    },
    /// The provider has taken it; the final state comes by its event webhook, where it has one.
    Accepted {
        /// The provider's own id of the message, where it has one.
        provider_id: Option<String>,
    },
    /// It was not processed because of a limit, and is safe to send again later or elsewhere.
    Throttled {
        /// Whom it concerns.
        scope: Scope,
        /// Which of them (a sender, a chat), where the scope is not the account; never shown or logged.
        key: Option<String>,
        /// How long to wait, where it was said.
        delay: Option<Duration>,
        /// What was answered.
        reason: String,
    },
    /// It failed for no lasting reason and was not processed. It counts for the account's breaker.
    Transient {
        /// What happened.
        reason: String,
    },
    /// Nothing was tried, because this process has no descriptor left. It says nothing about the account or the message.
    Unable {
        /// What was lacking.
        reason: String,
    },
    /// The recipient cannot be reached, by this account or any other.
    PermanentRecipient {
        /// Nothing shall be sent to this recipient on this channel any more.
        suppress: bool,
        /// What was answered.
        reason: String,
    },
    /// The request is wrong and would be answered the same again.
    PermanentRequest {
        /// What was answered.
        reason: String,
    },
    /// The account cannot be used: credentials, suspension, no credit. Its breaker opens at once.
    AccountFailure {
        /// What was answered.
        reason: String,
    },
    /// It may have been sent: the answer got lost after the request was written.
    Ambiguous {
        /// What happened.
        reason: String,
    },
}

impl Sent {
    /// The word for records, metrics and people.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Delivered { .. } => "delivered",
            Self::Accepted { .. } => "accepted",
            Self::Throttled { .. } => "throttled",
            Self::Transient { .. } => "transient",
            Self::Unable { .. } => "unable",
            Self::PermanentRecipient { .. } => "permanent_recipient",
            Self::PermanentRequest { .. } => "permanent_request",
            Self::AccountFailure { .. } => "account_failure",
            Self::Ambiguous { .. } => "ambiguous",
        }
    }

    /// What was answered or happened; empty for a success.
    pub fn reason(&self) -> &str {
        match self {
            Self::Delivered { .. } | Self::Accepted { .. } => "",
            Self::Throttled { reason, .. }
            | Self::Transient { reason }
            | Self::Unable { reason }
            | Self::PermanentRecipient { reason, .. }
            | Self::PermanentRequest { reason }
            | Self::AccountFailure { reason }
            | Self::Ambiguous { reason } => reason,
        }
    }

    /// The provider has it.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Delivered { .. } | Self::Accepted { .. })
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct(self.word());
        match self {
            Self::Delivered { provider_id } | Self::Accepted { provider_id } => return text.field("id", provider_id).finish(),
            Self::Throttled { scope, delay, .. } => text.field("scope", scope).field("delay", delay),
            Self::PermanentRecipient { suppress, .. } => text.field("suppress", suppress),
            _ => &mut text,
        };
        text.field("reason", &self.reason()).finish_non_exhaustive()
    }
}
