//! A message of the log of accepted messages, and its outcome at the gates.

use std::sync::Arc;

use jiff::Timestamp;

use super::address::RecipientKey;
use super::dedup::DedupKey;
use super::digest::Arrival;
use super::fields::{GatedArgs, MessageTimes};
use super::gate::UnsentReason;
use super::gates::MessagePlan;
use super::profile::Profile;
use crate::providers::Recipient;

/// A message of the log.
#[derive(Clone, Debug)]
pub struct LoggedMessage {
    pub job: i64,
    pub tenant: Arc<str>,
    pub priority: i32,
    pub accepted_at: Timestamp,
    /// The time from which it may go: of its acceptance, or the later one that its sender named.
    pub goes_from: Timestamp,
    /// False for a message that only its deadline and suppressions stop.
    pub is_gated: bool,
    pub times: MessageTimes,
    pub args: GatedArgs,
    pub profile: Arc<Profile>,
    pub defaults: Arc<Profile>,
    /// The address of the message, or else of the profile.
    pub to: Option<Recipient>,
    pub key: RecipientKey,
    /// The key of its content; `None` for a digest, which is compared with nothing.
    pub content: Option<DedupKey>,
}

impl LoggedMessage {
    /// Returns its part of `parts`, which the messages of its recipient share.
    pub fn part(&self, parts: usize) -> usize {
        let mut first = [0; 8];
        first.copy_from_slice(&self.key.as_bytes()[..8]);
        let part = u64::from_be_bytes(first) % parts.max(1) as u64;
        usize::try_from(part).unwrap_or_default()
    }
}

/// A message as the log has it.
#[derive(Clone, Debug)]
pub struct LogRow {
    pub job: i64,
    pub tenant: Arc<str>,
    pub priority: i32,
    pub accepted_at: Timestamp,
    /// The time to run that its sender named; `None` for at once.
    pub run_at: Option<Timestamp>,
    /// True for a message that goes through all gates.
    pub is_gated: bool,
    pub args: GatedArgs,
    pub profile: Arc<Profile>,
    pub defaults: Arc<Profile>,
}

impl From<LogRow> for LoggedMessage {
    fn from(row: LogRow) -> Self {
        let args = row.args;
        let channel = args.channel;
        let to = match args.to {
            Some(_) => args.address(),
            None => row.profile.addresses.get(&channel).cloned(),
        };
        let key = args.recipient_key(&row.tenant, to.as_ref());
        let at = row
            .run_at
            .map_or(row.accepted_at, |at| at.max(row.accepted_at));
        Self {
            job: row.job,
            tenant: row.tenant,
            priority: row.priority,
            accepted_at: row.accepted_at,
            goes_from: at,
            is_gated: row.is_gated,
            times: args.times(&row.profile, &row.defaults, at, at),
            content: Some(args.dedup_key(&key)),
            args,
            profile: row.profile,
            defaults: row.defaults,
            to,
            key,
        }
    }
}

/// The outcome of a message at the gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateVerdict {
    Sent,
    Held,
    Collected,
    /// It is not accepted, because its recipient is over a cap.
    Refused,
    Ended(UnsentReason),
}

impl GateVerdict {
    /// Returns the outcome that a plan is for a message.
    pub fn of(plan: &MessagePlan) -> Self {
        match plan {
            MessagePlan::Send => Self::Sent,
            MessagePlan::Held { .. } => Self::Held,
            MessagePlan::Collected { arrival, .. } => match arrival {
                Arrival::Leads(_) => Self::Sent,
                Arrival::Joins(_) => Self::Collected,
            },
            MessagePlan::Refused { .. } => Self::Refused,
            MessagePlan::Ended { reason, .. } => Self::Ended(*reason),
        }
    }
}
