//! What is asked and written about messages.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use super::DeliveryState;
use crate::providers::{Channel, Event, Happened, Recipient};

/// How an attempt ended that found no account.
pub const NO_ACCOUNT: &str = "no_account";

/// What is asked before an attempt. Its debug text does not show the recipient.
#[derive(Clone, PartialEq)]
pub struct Asked {
    /// The message's job.
    pub job_id: i64,
    /// How it travels.
    pub channel: Channel,
    /// Whom it is for.
    pub recipient: Recipient,
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").field("job_id", &self.job_id).field("channel", &self.channel).finish_non_exhaustive()
    }
}

/// What is known before an attempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Begun {
    /// Why nothing goes to the recipient any more; `None` where it may.
    pub suppressed: Option<String>,
    /// Attempts that were written down before.
    pub attempts: i32,
    /// How the last of them ended.
    pub last_outcome: Option<String>,
    /// When it was queued again after it had died; its deadline counts from then on.
    pub requeued_at: Option<Timestamp>,
    /// Since when it waits: the latest of being enqueued, its own time to run, and being queued again. `None` where its job is
    /// not there any more.
    pub waits_since: Option<Timestamp>,
    /// How long that is, by the clock of Postgres.
    pub waited: Duration,
    /// How far it had come; `None` where nothing was written down.
    pub state: Option<DeliveryState>,
    /// Tries in a row that its recipient could not take, by all messages.
    pub failures: u32,
    /// For so long nothing goes to its recipient; `None` where it may go now.
    pub rest: Option<Duration>,
}

impl Begun {
    /// It has left, or its recipient's side refused it for good, and nobody has asked for it again since: it is not sent.
    pub fn is_settled(&self) -> bool {
        let word = self.last_outcome.as_deref();
        let is_through = matches!(self.state, Some(DeliveryState::Sent | DeliveryState::Delivered | DeliveryState::Bounced));
        // Being queued again takes the last outcome away; a provider's event then tells of the time before.
        word == Some("permanent_recipient")
            || is_through && (self.requeued_at.is_none() || matches!(word, Some("accepted" | "delivered")))
    }

    /// It may have been sent, and was given up because of that.
    pub fn is_doubtful(&self) -> bool {
        self.state == Some(DeliveryState::Failed) && self.last_outcome.as_deref() == Some("ambiguous")
    }
}

/// One attempt at one account.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// When it began.
    pub at: Timestamp,
    /// The account; empty where there was none.
    pub account: String,
    /// How it ended: a word of [`crate::providers::Sent::word`], or [`NO_ACCOUNT`].
    pub outcome: &'static str,
    /// The status as the wire had it.
    pub status: String,
    /// What was answered, without secrets, addresses and bodies.
    pub reason: String,
    /// How long it took.
    pub took: Duration,
}

/// What an attempt, or several, came to. Its debug text does not show the recipient.
#[derive(Clone, PartialEq)]
pub struct Written {
    /// The message's job.
    pub job_id: i64,
    /// How it travels.
    pub channel: Channel,
    /// The pool it went through.
    pub pool: String,
    /// The provider's word.
    pub provider: &'static str,
    /// The account that has it or had it last.
    pub account: Option<String>,
    /// How far it has come.
    pub state: DeliveryState,
    /// The provider's own id of it.
    pub provider_id: Option<String>,
    /// Whom it is for; kept as a keyed digest and masked.
    pub recipient: Recipient,
    /// What sort of message it is: `marketing`, for instance; empty for none.
    pub category: String,
    /// The attempts since the last word, oldest first.
    pub attempts: Vec<Attempt>,
    /// Nothing goes to the recipient on this channel any more, for this reason.
    pub suppress: Option<String>,
    /// What all messages for the recipient are to know of it.
    pub met: Option<Met>,
}

/// What a message met at its recipient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Met {
    /// It could not take it, for so many tries in a row, and is left alone.
    Unable {
        /// The tries.
        failures: u32,
        /// How long it is left alone.
        rest: Duration,
    },
    /// It is there again.
    Able,
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Written")
            .field("job_id", &self.job_id)
            .field("pool", &self.pool)
            .field("account", &self.account)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// What a provider told about messages of one account, in one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// The pool of the account.
    pub pool: String,
    /// The account.
    pub account: String,
    /// What the pool carries.
    pub channel: Channel,
    /// What happened.
    pub events: Vec<Event>,
}

/// What a bounded step through many messages came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Messages that were changed.
    pub jobs: u64,
    /// The walk has not come to its end: the next call goes on where this one stopped.
    pub more: bool,
}

/// How many events of a request were new, by what happened.
pub type Fresh = Vec<(Happened, u64)>;
