//! Queries about messages and records of their attempts.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use super::DeliveryState;
use crate::providers::{Channel, EventKind, ProviderEvent, Recipient};

/// The outcome of an attempt that found no account.
pub const NO_ACCOUNT: &str = "no_account";

/// The query before an attempt. Its debug text does not show the recipient.
#[derive(Clone, PartialEq)]
pub struct BeginRequest {
    /// The message's job.
    pub job_id: i64,
    pub channel: Channel,
    /// The address; `None` if there is none any more.
    pub recipient: Option<Recipient>,
}

impl fmt::Debug for BeginRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BeginRequest")
            .field("job_id", &self.job_id)
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}

/// The state of a message's batch before an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchStatus {
    /// It runs, or the message is in none.
    #[default]
    Running,
    /// It is paused, so the message waits.
    Paused,
    /// It is cancelled, so the message is not sent.
    Cancelled,
}

/// The record of a message before an attempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BegunDelivery {
    /// The reason for the recipient's suppression, empty for the message of a tenant, which reads
    /// no suppressions; `None` if it is not suppressed.
    pub suppressed: Option<String>,
    /// Attempts recorded so far.
    pub attempts: i32,
    /// The outcome of the last attempt.
    pub last_outcome: Option<String>,
    /// True if an attempt got no answer, so that the message may have been sent.
    pub was_ambiguous: bool,
    /// The time at which it was requeued after it had died; its deadline counts from then.
    pub requeued_at: Option<Timestamp>,
    /// The start of its wait: the latest of its enqueue time, its own time to run, its requeue
    /// time, and the end of its last hold by a gate, if the pool's deadline counts for it.
    ///
    /// `None` if its job no longer exists.
    pub waits_since: Option<Timestamp>,
    /// The length of its wait so far, by the clock of Postgres.
    pub waited: Duration,
    /// The recorded state; `None` if nothing was recorded.
    pub state: Option<DeliveryState>,
    /// The state of its batch.
    pub batch: BatchStatus,
    /// Failures in a row of the recipient, over all its messages.
    pub failures: u32,
    /// The remaining rest of the recipient; `None` if it may be tried now.
    pub rest: Option<Duration>,
}

impl BegunDelivery {
    /// Returns true if the message was sent, or refused for good by its recipient, and has not been
    /// requeued since. Such a message is not sent again.
    pub fn is_settled(&self) -> bool {
        let word = self.last_outcome.as_deref();
        let is_through = matches!(
            self.state,
            Some(DeliveryState::Sent | DeliveryState::Delivered | DeliveryState::Bounced)
        );
        // A requeue clears the last outcome; a later provider event is about the earlier send.
        word == Some("permanent_recipient")
            || is_through
                && (self.requeued_at.is_none() || matches!(word, Some("accepted" | "delivered")))
    }

    /// Returns true if the message was given up because it may have been sent.
    pub fn is_doubtful(&self) -> bool {
        self.state == Some(DeliveryState::Failed)
            && self.last_outcome.as_deref() == Some("ambiguous")
    }
}

/// One attempt at one account.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// The start of the attempt.
    pub at: Timestamp,
    /// The account; empty if none was available.
    pub account: String,
    /// The outcome: a value of [`crate::providers::Sent::as_str`], or [`NO_ACCOUNT`].
    pub outcome: &'static str,
    /// The status exactly as the provider sent it.
    pub status: String,
    /// The provider's reason, without secrets, addresses and bodies.
    pub reason: String,
    /// The duration of the attempt.
    pub took: Duration,
}

/// The result of one or more attempts. Its debug text does not show the recipient.
#[derive(Clone, PartialEq)]
pub struct DeliveryUpdate {
    /// The message's job.
    pub job_id: i64,
    pub channel: Channel,
    /// The pool that it went through.
    pub pool: String,
    /// The provider's name.
    pub provider: &'static str,
    /// The account that sent it, or tried last.
    pub account: Option<String>,
    /// The state of the delivery.
    pub state: DeliveryState,
    /// The provider's own id of the message.
    pub provider_id: Option<String>,
    /// The recipient, stored masked and as a keyed digest; `None` if it has no address.
    pub recipient: Option<Recipient>,
    /// The category of the message, such as `marketing`; empty for none.
    pub category: String,
    /// The attempts since the last record, oldest first.
    pub attempts: Vec<Attempt>,
    /// The reason to suppress the recipient on this channel, if it is to be suppressed.
    pub suppress: Option<String>,
    /// The recipient's availability, which concerns all messages for it.
    pub met: Option<RecipientResult>,
}

/// The availability of a recipient, as an attempt found it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RecipientResult {
    /// Unavailable: the recipient could not take the message and now rests.
    Unable {
        /// Failures in a row.
        failures: u32,
        /// The length of the rest.
        rest: Duration,
    },
    /// Available again.
    Able,
}

impl fmt::Debug for DeliveryUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeliveryUpdate")
            .field("job_id", &self.job_id)
            .field("pool", &self.pool)
            .field("account", &self.account)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// Events that a provider reported about one account's messages, in one request.
#[derive(Clone, Debug, PartialEq)]
pub struct EventReport {
    /// The pool of the account.
    pub pool: String,
    pub account: String,
    /// The channel of the pool.
    pub channel: Channel,
    pub events: Vec<ProviderEvent>,
}

/// The result of one bounded step over many messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepResult {
    /// Changed messages.
    pub jobs: u64,
    /// True if the walk is not complete; the next call continues after this one.
    pub more: bool,
    /// Messages that are left as they were, because open transactions hold what they need.
    pub skipped: u64,
}

/// Counts of a request's new events, by type.
pub type Fresh = Vec<(EventKind, u64)>;
