//! The outcome of one attempt at one account, common to all drivers.

use std::fmt;
use std::time::Duration;

/// The scope of a provider's rate limit. Only [`Scope::Account`] blocks the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The account (project, key, IP).
    Account,
    /// A single connection, such as an APNs connection with too many tokens.
    Connection,
    /// One sender number or address of the account.
    Sender,
    /// One recipient: a device token, a chat, a mailbox, a channel.
    Recipient,
}

/// The outcome of one attempt to send one message through one account.
///
/// Reasons are the provider's words or ours, on one short line; they contain no secret, no address
/// and no body. The debug text omits the key of a throttle, which may be an address.
#[derive(Clone, PartialEq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Sent {
    /// The message was delivered; no further event is expected.
    Delivered {
        /// The provider's own id of the message, if any.
        provider_id: Option<String>,
    },
    /// The provider accepted the message; the final state arrives by its event webhook, if it has
    /// one.
    Accepted {
        /// The provider's own id of the message, if any.
        provider_id: Option<String>,
    },
    /// The message was not processed because of a limit; it is safe to send later or elsewhere.
    Throttled {
        /// The scope of the limit.
        scope: Scope,
        /// The limited sender, chat or device if the scope is not the account; never shown or
        /// logged.
        key: Option<String>,
        /// The delay that the provider asked for, if any.
        delay: Option<Duration>,
        /// The provider's reason.
        reason: String,
    },
    /// The message was not processed, because of a temporary failure. It counts as a failure for
    /// the account's breaker.
    Transient {
        /// The failure.
        reason: String,
    },
    /// No attempt was made, because the process is out of file descriptors. This says nothing about
    /// the account or the message.
    Unable {
        /// The missing resource.
        reason: String,
    },
    /// The recipient cannot be reached through this or any other account.
    PermanentRecipient {
        /// Suppresses the recipient on this channel.
        suppress: bool,
        /// The provider's reason.
        reason: String,
    },
    /// The request is invalid and would be rejected again.
    PermanentRequest {
        /// The provider's reason.
        reason: String,
    },
    /// The account cannot be used: credentials, suspension, no credit. Its breaker opens as soon as
    /// a second message confirms it.
    AccountFailure {
        /// The provider's reason.
        reason: String,
    },
    /// The message may have been sent: the answer was lost after the request was written.
    Ambiguous {
        /// The failure.
        reason: String,
    },
}

impl Sent {
    /// Returns the name used in records, metrics and messages.
    pub fn as_str(&self) -> &'static str {
        self.into()
    }

    /// Returns the reason for a failure; empty on success.
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

    /// Returns true if the provider has the message.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Delivered { .. } | Self::Accepted { .. })
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct(self.as_str());
        match self {
            Self::Delivered { provider_id } | Self::Accepted { provider_id } => {
                return text.field("id", provider_id).finish();
            }
            Self::Throttled { scope, delay, .. } => {
                text.field("scope", scope).field("delay", delay)
            }
            Self::PermanentRecipient { suppress, .. } => text.field("suppress", suppress),
            _ => &mut text,
        };
        text.field("reason", &self.reason()).finish_non_exhaustive()
    }
}
