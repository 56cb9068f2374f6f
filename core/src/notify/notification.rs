//! A message as the API shows it: without its body, and with its recipient masked.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::DeliveryState;
use crate::providers::Channel;

/// A message and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct Notification {
    /// The number of its job.
    pub id: i64,
    /// The tenant that owns it; empty for the operators' own.
    pub tenant: String,
    /// The state of the delivery.
    pub state: DeliveryState,
    /// The channel: `sms`, `email`, `push`, `chat`, `webhook` or `inapp`.
    pub channel: String,
    /// The pool that it goes through.
    pub pool: String,
    /// The provider of the pool's accounts; empty before the first attempt.
    pub provider: String,
    /// The account that sent it, or tried last.
    pub account: Option<String>,
    /// The provider's own id of the message.
    pub provider_id: Option<String>,
    /// The recipient, masked.
    #[cfg_attr(feature = "api", schema(example = "a***@e***.com"))]
    pub to: String,
    /// The category of the message; empty for none.
    pub category: String,
    /// The reason for its state, as the provider or Flyball gave it.
    pub reason: String,
    /// True if its recipient reported it as spam.
    pub complained: bool,
    /// The number of attempts in all.
    pub attempt_count: i32,
    /// The last 50 attempts, oldest first.
    pub attempts: Vec<DeliveryAttempt>,
    /// The time at which it was requeued after it had died.
    pub requeued_at: Option<Timestamp>,
    /// The time at which it was enqueued.
    pub created_at: Timestamp,
    /// The time of the last change.
    pub updated_at: Timestamp,
}

/// One attempt at one account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct DeliveryAttempt {
    /// The start of the attempt.
    pub at: Timestamp,
    /// The account; `null` if none was available.
    pub account: Option<String>,
    /// The outcome: `delivered`, `accepted`, `throttled`, `transient`, `permanent_recipient`,
    /// `permanent_request`, `account_failure`, `ambiguous` or `no_account`.
    pub outcome: String,
    /// The status exactly as the provider sent it.
    pub status: String,
    /// The provider's reason.
    pub reason: String,
    /// The duration, in milliseconds.
    pub ms: i64,
}

/// A filter for messages, which are listed newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NotificationFilter {
    /// Only messages in this state.
    pub state: Option<DeliveryState>,
    /// Only messages of this channel.
    pub channel: Option<Channel>,
    /// Only messages of this pool.
    pub pool: Option<String>,
    /// Only messages that this account sent or tried last.
    pub account: Option<String>,
    /// Only messages of this tenant; all messages if absent.
    pub tenant: Option<String>,
    /// The cursor: only messages with a smaller id.
    pub before: Option<i64>,
    /// Most messages on the page, 1 to 1000.
    pub limit: i64,
}

/// A page of messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NotificationPage {
    /// The messages, newest first. A page may be short, or empty, though more follow.
    pub notifications: Vec<Notification>,
    /// The [`NotificationFilter::before`] of the next page; `None` if the search is complete.
    pub next: Option<i64>,
}

/// The counts of what became of a tenant's messages. An event of a provider that names no message
/// counts for its account alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct TenantFeedback {
    /// Messages that a provider accepted.
    pub accepted: i64,
    /// Messages that bounced for good.
    pub bounced: i64,
    /// Messages that recipients reported as spam.
    pub complained: i64,
    /// Recipients that unsubscribed.
    pub unsubscribed: i64,
}

/// A recipient that is suppressed on one channel.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct Suppression {
    /// The channel on which it is suppressed.
    pub channel: String,
    /// The digest of the channel and the normalized recipient, keyed for this installation, in
    /// hexadecimal.
    pub recipient_digest: String,
    /// The reason for the suppression.
    pub reason: String,
    /// The pool whose event or answer caused it; `null` if a person did.
    pub pool: Option<String>,
    /// The account whose event or answer caused it.
    pub account: Option<String>,
    /// The start of the suppression.
    pub created_at: Timestamp,
}
