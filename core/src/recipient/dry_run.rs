//! A dry run: messages that were accepted, through the gates under two sets of rules, with a
//! virtual clock and the state of caps, claims and digests in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::logged::{GateVerdict, LoggedMessage};
use super::replay_state::GateReplay;
use super::replay_tally::{GateCounts, ReplayTally};
use super::rules::RecipientRules;

/// The number of tenants in a report.
pub const TENANTS_SHOWN: usize = 10;

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
    /// Messages that their senders want to go later, by this time and by job.
    later: BTreeMap<(Timestamp, i64), LoggedMessage>,
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
            later: BTreeMap::new(),
            messages: 0,
            changed_categories: HashMap::new(),
            changed_tenants: HashMap::new(),
        }
    }

    /// Takes the next message. One that is older than those before it counts at their time.
    pub fn message(&mut self, message: LoggedMessage) {
        let now = message.accepted_at;
        self.message_at(message, now);
    }

    /// Takes the next message at `now`, the newest time of the log until then.
    pub fn message_at(&mut self, message: LoggedMessage, now: Timestamp) {
        self.messages += 1;
        self.release(now);
        match message.goes_from > now {
            true => _ = self.later.insert((message.goes_from, message.job), message),
            false => self.take(message, now),
        }
    }

    /// Takes the messages whose own time has come.
    fn release(&mut self, now: Timestamp) {
        while let Some(next) = self.later.first_entry().filter(|next| next.key().0 <= now) {
            let ((at, _), message) = next.remove_entry();
            self.take(message, at);
        }
    }

    fn take(&mut self, message: LoggedMessage, now: Timestamp) {
        let message = Arc::new(message);
        let outcomes = [
            self.old.message(&message, now),
            self.new.message(&message, now),
        ];
        if outcomes[0] != outcomes[1] {
            let category = &message.args.category;
            *self.changed_categories.entry(category.clone()).or_default() += 1;
            let tenant = message.tenant.clone();
            *self.changed_tenants.entry(tenant).or_default() += 1;
        }
    }

    /// Lets what is due until `end` go, and returns the counts.
    pub fn finish(self, end: Timestamp) -> DryRunReport {
        Self::finish_all(vec![self], end)
    }

    /// Returns the counts of dry runs of one log, each of which had all messages of its recipients.
    pub fn finish_all(parts: Vec<Self>, end: Timestamp) -> DryRunReport {
        let (mut old, mut new) = (ReplayTally::default(), ReplayTally::default());
        let mut messages = 0;
        let mut changed_categories: HashMap<String, u64> = HashMap::new();
        let mut changed_tenants: HashMap<Arc<str>, u64> = HashMap::new();
        for mut part in parts {
            part.release(end);
            // They wait at the end of the log, whatever the rules say.
            for message in std::mem::take(&mut part.later).into_values() {
                part.old.tally.count(&message, GateVerdict::Held);
                part.new.tally.count(&message, GateVerdict::Held);
            }
            part.old.advance(end);
            part.new.advance(end);
            old.add(part.old.tally);
            new.add(part.new.tally);
            messages += part.messages;
            for (name, changed) in part.changed_categories {
                *changed_categories.entry(name).or_default() += changed;
            }
            for (name, changed) in part.changed_tenants {
                *changed_tenants.entry(name).or_default() += changed;
            }
        }
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
            let changed = changed_categories.get(&**name);
            row(name, changed, old.categories.get(name), *counts)
        });
        let categories = categories.collect();
        let mut tenants: Vec<DryRunRow> = changed_tenants
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
            messages,
            changed,
            categories,
            tenants,
        }
    }
}

#[cfg(test)]
#[path = "dry_run_tests.rs"]
mod tests;
