//! A message before the gates, and the lists of sends to which caps apply.

use jiff::Timestamp;

use super::address::RecipientKey;
use super::caps::{CapRule, CapRules};
use super::local_time::LocalInstant;
use super::rules::OverCap;
use crate::providers::{Channel, Recipient};

/// The priority of critical messages.
pub const CRITICAL: i32 = 0;

/// The priority of normal messages, which one that names none and a digest have. More urgent ones
/// are neither collected nor spread.
pub const NORMAL: i32 = 2;

/// The origin of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// A sender.
    #[default]
    Sender,
    /// A digest that closes.
    Digest,
    /// An item of a closed digest that goes alone.
    Item,
}

/// A message before the gates.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub origin: Origin,
    /// The job; `None` before it is accepted.
    pub job: Option<i64>,
    /// The priority, from 0 for critical.
    pub priority: i32,
    pub channel: Channel,
    pub category: &'a str,
    pub template: Option<&'a str>,
    /// The address; `None` if the recipient has none on the channel.
    pub to: Option<&'a Recipient>,
    pub recipient: RecipientKey,
    /// The person or thing whose action the message reports.
    pub actor: Option<&'a str>,
    /// The type of digest that the sender names.
    pub digest: Option<&'a str>,
    /// The sender's own cap for the messages of this template that have the same one.
    pub at_most: Option<&'a CapRule>,
    /// The time of the recipient's clock that the sender names. Such a message is never collected.
    pub local: Option<LocalInstant>,
    /// The time from which its age and its validity count: of its acceptance, or its local one.
    pub accepted_at: Timestamp,
    pub deadline: Option<Timestamp>,
    pub is_cancelled: bool,
}

impl Candidate<'_> {
    /// Returns true if nothing collects the message: an urgent one, or one that names a time.
    pub fn goes_alone(&self) -> bool {
        self.priority < NORMAL || self.local.is_some()
    }
}

/// The list of sends to which caps apply.
#[derive(Clone, Debug, PartialEq)]
pub struct CapList {
    /// The key of its row.
    pub key: RecipientKey,
    pub caps: CapRules,
    pub over: OverCap,
}
