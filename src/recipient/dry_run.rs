//! A dry run: messages that were accepted, through the gates under two sets of rules, with a
//! virtual clock and the state of caps, claims and digests in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::address::RecipientKey;
use super::digest::Arrival;
use super::fields::GatedArgs;
use super::gate::UnsentReason;
use super::gates::MessagePlan;
use super::profile::Profile;
use super::replay_state::GateReplay;
use super::rules::RecipientRules;
use crate::providers::Recipient;

/// The number of tenants in a report.
pub const TENANTS_SHOWN: usize = 10;

/// A message of the log.
#[derive(Clone, Debug)]
pub struct LoggedMessage {
    pub job: i64,
    pub tenant: Arc<str>,
    pub priority: i32,
    pub accepted_at: Timestamp,
    pub deadline: Option<Timestamp>,
    pub args: GatedArgs,
    pub profile: Arc<Profile>,
    pub defaults: Arc<Profile>,
    /// The address of the message, or else of the profile.
    pub to: Option<Recipient>,
    pub key: RecipientKey,
}

/// A message as the log has it.
#[derive(Clone, Debug)]
pub struct LogRow {
    pub job: i64,
    pub tenant: Arc<str>,
    pub priority: i32,
    pub accepted_at: Timestamp,
    pub args: GatedArgs,
    pub profile: Arc<Profile>,
    pub defaults: Arc<Profile>,
}

impl From<LogRow> for LoggedMessage {
    fn from(row: LogRow) -> Self {
        let args = row.args;
        let channel = args.channel;
        let to = match args.to.as_deref() {
            Some(text) => Recipient::parse(channel, text).ok(),
            None => row.profile.addresses.get(&channel).cloned(),
        };
        let key = match (&args.fields.recipient, &to) {
            (Some(id), _) => RecipientKey::of_subscriber(&row.tenant, channel, id),
            (None, Some(to)) => RecipientKey::of_address(&row.tenant, to),
            (None, None) => RecipientKey::of_subscriber(&row.tenant, channel, ""),
        };
        let valid_for = args.valid_for_s.and_then(|seconds| {
            let span = jiff::SignedDuration::try_from_secs_f64(seconds).ok()?;
            row.accepted_at.checked_add(span).ok()
        });
        Self {
            job: row.job,
            tenant: row.tenant,
            priority: row.priority,
            accepted_at: row.accepted_at,
            deadline: valid_for,
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

/// Messages by their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GateCounts {
    pub sent: u64,
    /// Messages that go later, or wait at the end of the log.
    pub held: u64,
    pub collected: u64,
    /// The digests that went, which are no messages of the log.
    pub digests: u64,
    pub capped: u64,
    pub refused: u64,
    pub duplicate: u64,
    pub opted_out: u64,
    /// Messages that came in quiet hours and are dropped then.
    pub quiet: u64,
    /// Messages that ended otherwise: expired, or without an address.
    pub ended: u64,
}

impl GateCounts {
    /// Returns the count of an outcome.
    fn of(&mut self, verdict: GateVerdict) -> &mut u64 {
        match verdict {
            GateVerdict::Sent => &mut self.sent,
            GateVerdict::Held => &mut self.held,
            GateVerdict::Collected => &mut self.collected,
            GateVerdict::Refused => &mut self.refused,
            GateVerdict::Ended(UnsentReason::Capped) => &mut self.capped,
            GateVerdict::Ended(UnsentReason::Duplicate) => &mut self.duplicate,
            GateVerdict::Ended(UnsentReason::OptedOut) => &mut self.opted_out,
            GateVerdict::Ended(UnsentReason::Quiet) => &mut self.quiet,
            GateVerdict::Ended(_) => &mut self.ended,
        }
    }
}

/// The counts of one set of rules, by category and by tenant.
#[derive(Debug, Default)]
pub(super) struct ReplayTally {
    categories: BTreeMap<Arc<str>, GateCounts>,
    tenants: HashMap<Arc<str>, GateCounts>,
}

impl ReplayTally {
    /// Counts a message.
    pub(super) fn count(&mut self, message: &LoggedMessage, verdict: GateVerdict) {
        let (category, tenant) = self.counts(&message.args.category, &message.tenant);
        *category.of(verdict) += 1;
        *tenant.of(verdict) += 1;
    }

    /// Counts a message that was held as one that ended all the same.
    pub(super) fn recount(&mut self, message: &LoggedMessage, verdict: GateVerdict) {
        self.count(message, verdict);
        let (category, tenant) = self.counts(&message.args.category, &message.tenant);
        category.held = category.held.saturating_sub(1);
        tenant.held = tenant.held.saturating_sub(1);
    }

    /// Counts digests that go.
    pub(super) fn digests(&mut self, category: &str, tenant: &Arc<str>, messages: u64) {
        let (category, tenant) = self.counts(category, tenant);
        category.digests += messages;
        tenant.digests += messages;
    }

    fn counts(&mut self, category: &str, tenant: &Arc<str>) -> (&mut GateCounts, &mut GateCounts) {
        if !self.categories.contains_key(category) {
            self.categories
                .insert(category.into(), GateCounts::default());
        }
        let category = self.categories.get_mut(category).expect("it was put there");
        (category, self.tenants.entry(tenant.clone()).or_default())
    }
}

/// The counts of a category or a tenant under both sets of rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DryRunRow {
    /// The name of the category, or of the tenant.
    pub name: String,
    /// The messages that have another outcome under the new rules.
    pub changed: u64,
    pub old: GateCounts,
    pub new: GateCounts,
}

/// The outcome of a dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DryRunReport {
    /// The messages of the log.
    pub messages: u64,
    /// The messages that have another outcome under the new rules.
    pub changed: u64,
    /// The categories by name.
    pub categories: Vec<DryRunRow>,
    /// The tenants with the most such messages.
    pub tenants: Vec<DryRunRow>,
}

/// A dry run: the same messages under the old rules and the new ones, side by side.
pub struct DryRun {
    old: GateReplay,
    new: GateReplay,
    messages: u64,
    changed_categories: HashMap<String, u64>,
    changed_tenants: HashMap<Arc<str>, u64>,
}

impl DryRun {
    /// Begins with no message sent, held or collected before.
    pub fn new(old: Arc<RecipientRules>, new: Arc<RecipientRules>) -> Self {
        Self {
            old: GateReplay::new(old),
            new: GateReplay::new(new),
            messages: 0,
            changed_categories: HashMap::new(),
            changed_tenants: HashMap::new(),
        }
    }

    /// Takes the next message. One that is older than those before it counts at their time.
    pub fn message(&mut self, message: LoggedMessage) {
        let message = Arc::new(message);
        self.messages += 1;
        let outcomes = [self.old.message(&message), self.new.message(&message)];
        if outcomes[0] != outcomes[1] {
            let category = &message.args.category;
            *self.changed_categories.entry(category.clone()).or_default() += 1;
            let tenant = message.tenant.clone();
            *self.changed_tenants.entry(tenant).or_default() += 1;
        }
    }

    /// Lets what is due until `end` go, and returns the counts.
    pub fn finish(mut self, end: Timestamp) -> DryRunReport {
        self.old.advance(end);
        self.new.advance(end);
        let (old, mut new) = (self.old.tally, self.new.tally);
        // Both have the same messages, but a digest can have a category that only one knows.
        for category in old.categories.keys() {
            new.categories.entry(category.clone()).or_default();
        }
        let row = |name: &str, changed: Option<&u64>, old: Option<&GateCounts>, new| DryRunRow {
            name: name.to_owned(),
            changed: changed.copied().unwrap_or_default(),
            old: old.copied().unwrap_or_default(),
            new,
        };
        let categories = new.categories.iter().map(|(name, counts)| {
            let changed = self.changed_categories.get(&**name);
            row(name, changed, old.categories.get(name), *counts)
        });
        let categories = categories.collect();
        let mut tenants: Vec<DryRunRow> = self
            .changed_tenants
            .iter()
            .map(|(name, changed)| {
                let counts = new.tenants.get(name).copied().unwrap_or_default();
                row(name, Some(changed), old.tenants.get(name), counts)
            })
            .collect();
        tenants.sort_by(|a, b| b.changed.cmp(&a.changed).then_with(|| a.name.cmp(&b.name)));
        let changed = tenants.iter().map(|tenant| tenant.changed).sum();
        tenants.truncate(TENANTS_SHOWN);
        DryRunReport {
            messages: self.messages,
            changed,
            categories,
            tenants,
        }
    }
}

#[cfg(test)]
#[path = "dry_run_tests.rs"]
mod tests;
