//! The counts of a replay, by category and by tenant.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;

use super::gate::UnsentReason;
use super::logged::{GateVerdict, LoggedMessage};

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
    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.held += other.held;
        self.collected += other.collected;
        self.digests += other.digests;
        self.capped += other.capped;
        self.refused += other.refused;
        self.duplicate += other.duplicate;
        self.opted_out += other.opted_out;
        self.quiet += other.quiet;
        self.ended += other.ended;
    }

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
    pub(super) categories: BTreeMap<Arc<str>, GateCounts>,
    pub(super) tenants: HashMap<Arc<str>, GateCounts>,
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

    /// Adds the counts of another part of the log.
    pub(super) fn add(&mut self, other: Self) {
        for (name, counts) in other.categories {
            self.categories.entry(name).or_default().add(&counts);
        }
        for (name, counts) in other.tenants {
            self.tenants.entry(name).or_default().add(&counts);
        }
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
