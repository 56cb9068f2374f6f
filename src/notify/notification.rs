//! A message as people and programs see it: without its body, and its recipient masked.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::DeliveryState;
use crate::providers::Channel;

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Notification {
    /// The number of its job.
    pub id: i64,
    /// How far it has come.
    pub state: DeliveryState,
    /// `sms`, `email`, `push`, `chat` or `webhook`.
    pub channel: String,
    /// The pool that it goes through.
    pub pool: String,
    /// Whose accounts those are; empty before the first attempt.
    pub provider: String,
    /// The account that has it, or tried it last.
    pub account: Option<String>,
    /// The provider's own id of it.
    pub provider_id: Option<String>,
    /// Whom it is for, masked.
    #[schema(example = "a***@e***.com")]
    pub to: String,
    /// What sort of message it is; empty for none.
    pub category: String,
    /// Why it is in its state, in the words of the provider or ours.
    pub reason: String,
    /// Its recipient calls it spam.
    pub complained: bool,
    /// Attempts in all.
    pub tries: i32,
    /// The last 50 attempts, oldest first.
    pub attempts: Vec<DeliveryAttempt>,
    /// When it was queued again after it had died.
    pub requeued_at: Option<Timestamp>,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When something was last heard of it.
    pub updated_at: Timestamp,
}

/// One attempt at one account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DeliveryAttempt {
    /// When it began.
    pub at: Timestamp,
    /// The account; `null` where none was there.
    pub account: Option<String>,
    /// `delivered`, `accepted`, `throttled`, `transient`, `permanent_recipient`, `permanent_request`, `account_failure`, `ambiguous`
    /// or `no_account`.
    pub outcome: String,
    /// The status as the wire had it.
    pub status: String,
    /// What was answered.
    pub reason: String,
    /// How long it took, in milliseconds.
    pub ms: i64,
}

/// Which messages to list, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NotificationFilter {
    /// Only messages in this state.
    pub state: Option<DeliveryState>,
    /// Only messages of this channel.
    pub channel: Option<Channel>,
    /// Only messages of this pool.
    pub pool: Option<String>,
    /// Only messages that this account has or tried last.
    pub account: Option<String>,
    /// Only messages with a smaller id: the cursor.
    pub before: Option<i64>,
    /// At most so many, 1 to 1000.
    pub limit: i64,
}

/// A page of messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NotificationPage {
    /// Newest first; a page may be short, or empty, though more follow.
    pub notifications: Vec<Notification>,
    /// [`NotificationFilter::before`] of the next page; `None` when everything was looked at.
    pub next: Option<i64>,
}

/// A recipient to whom nothing goes on a channel any more.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Suppression {
    /// The channel.
    pub channel: String,
    /// The digest of the channel and the recipient in its one spelling, under a key of this installation, in hexadecimal.
    pub recipient_digest: String,
    /// Why.
    pub reason: String,
    /// The pool whose event or answer it was; `null` where a person said so.
    pub pool: Option<String>,
    /// The account whose event or answer it was.
    pub account: Option<String>,
    /// Since when.
    pub created_at: Timestamp,
}
