//! The claims of messages that are planned together, and of those that are tried without one: of
//! equal ones, the first that goes has it.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;

use super::claims::{NewClaim, counting, stored_claims, write_claims};
use super::plans::PlanBatch;
use super::rows::GateInput;
use crate::jobs::Error;
use crate::postgres::Transaction;
use crate::recipient::dedup::DedupClaim;
use crate::recipient::gates::{GateRows, MessagePlan, ends_before_dedup, is_deduped};
use crate::recipient::rules::RecipientRules;

impl PlanBatch<'_> {
    /// Claims the contents of all messages that the gates before dedup let pass.
    pub(super) async fn claim(&mut self, connection: &mut Transaction) -> Result<(), Error> {
        let is_compared = |input: &&GateInput| is_compared(input, self.rules, self.now);
        let compared: Vec<&GateInput> = self.inputs.iter().filter(is_compared).collect();
        if compared.is_empty() {
            return Ok(());
        }
        let mut claimed: BTreeSet<i64> = BTreeSet::new();
        let found = loop {
            let stored = stored_claims(connection, &compared).await?;
            let mut found = counting(&stored);
            let wanted = self.unclaimed(&compared, &found, &claimed);
            let new = wanted.iter().map(|(claim, job_id)| NewClaim {
                claim: *claim,
                job_id: *job_id,
                before: stored.get(claim).map(|one| one.claim.job),
            });
            let more = write_claims(connection, new.collect(), self.now).await?;
            let has_all = more.len() == wanted.len();
            claimed.extend(more);
            if has_all {
                found.extend(
                    wanted
                        .into_iter()
                        .map(|(key, job)| (key, self.new_claim(job))),
                );
                break found;
            }
            // Another planner was faster: its messages are the first ones, unless they have ended
            // unsent since.
        };
        let has = |input: &GateInput| claimed.contains(&input.message.job_id);
        self.has_claim = self.inputs.iter().map(has).collect();
        self.claims = found;
        Ok(())
    }

    /// Returns the jobs of messages that have to claim their contents, by claim. Of equal messages
    /// in one batch that is the first.
    fn unclaimed(
        &self,
        compared: &[&GateInput],
        found: &HashMap<i64, DedupClaim>,
        claimed: &BTreeSet<i64>,
    ) -> HashMap<i64, i64> {
        let mut unclaimed: HashMap<i64, i64> = HashMap::new();
        for input in compared {
            let (key, job_id) = (input.claim, input.message.job_id);
            let window = self.rules.category(&input.args.category).dedup_window;
            let is_taken = |claim: &DedupClaim| {
                claimed.contains(&claim.job) || claim.blocks(Some(job_id), self.now, window)
            };
            if !found.get(&key).is_some_and(is_taken) {
                unclaimed.entry(key).or_insert(job_id);
            }
        }
        unclaimed
    }

    fn new_claim(&self, job: i64) -> DedupClaim {
        DedupClaim {
            job,
            at: self.now,
            is_marked: false,
        }
    }

    /// Passes the claim of a message that ends unsent on to the next equal one of the batch, as if
    /// that one were planned later. Returns false if there is nothing to pass on, or nobody to take
    /// it.
    pub(super) fn pass_claim_on(&mut self, at: usize, plan: &MessagePlan) -> bool {
        let is_unsent = matches!(
            plan,
            MessagePlan::Ended { .. } | MessagePlan::Refused { .. }
        );
        if !is_unsent || !self.has_claim[at] {
            return false;
        }
        let claim = self.inputs[at].claim;
        let is_equal =
            |other: &GateInput| other.claim == claim && is_compared(other, self.rules, self.now);
        let Some(next) = self.inputs[at + 1..].iter().position(is_equal) else {
            return false;
        };
        let next = at + 1 + next;
        let passed = self.new_claim(self.inputs[next].message.job_id);
        self.claims.insert(claim, passed);
        self.has_claim[next] = true;
        true
    }

    /// Writes the claims that were passed on, given the jobs that had them first. Their rows are
    /// locked since these claimed them.
    pub(super) async fn write_passed_on(
        &self,
        connection: &mut Transaction,
        first_holders: HashMap<i64, i64>,
    ) -> Result<(), Error> {
        let passed_on = first_holders.into_iter().filter_map(|(claim, first)| {
            Some(NewClaim {
                claim,
                job_id: self.claims.get(&claim)?.job,
                before: Some(first),
            })
        });
        write_claims(connection, passed_on.collect(), self.now).await?;
        Ok(())
    }
}

/// Returns true for a message that is compared with others: no gate before dedup ends it.
fn is_compared(input: &GateInput, rules: &RecipientRules, now: Timestamp) -> bool {
    let candidate = input.candidate();
    let rows = GateRows {
        is_suppressed: input.is_suppressed,
        ..GateRows::default()
    };
    let ends = || ends_before_dedup(&candidate, input.policy(rules), &rows, now);
    is_deduped(&candidate, rules) && ends().is_none()
}

/// Reads the claims of messages whose attempts begin. A message without one claims its content as
/// if it were planned now: a dead letter has given its own back, and runs again.
pub(super) async fn claims_of_attempts(
    connection: &mut Transaction,
    inputs: &[GateInput],
    rules: &RecipientRules,
    now: Timestamp,
) -> Result<HashMap<i64, DedupClaim>, Error> {
    let all: Vec<&GateInput> = inputs.iter().collect();
    loop {
        let stored = stored_claims(connection, &all).await?;
        let found = counting(&stored);
        let missing = missing(inputs, &found, rules, now);
        if missing.is_empty() {
            return Ok(found);
        }
        let new = missing.iter().map(|(claim, job_id)| NewClaim {
            claim: *claim,
            job_id: *job_id,
            before: stored.get(claim).map(|one| one.claim.job),
        });
        // Others may be faster; who has each claim is read anew.
        write_claims(connection, new.collect(), now).await?;
    }
}

/// Returns the jobs of messages that neither have a claim nor are duplicates, by claim. Of equal
/// messages that is the first.
fn missing(
    inputs: &[GateInput],
    found: &HashMap<i64, DedupClaim>,
    rules: &RecipientRules,
    now: Timestamp,
) -> HashMap<i64, i64> {
    let mut missing: HashMap<i64, i64> = HashMap::new();
    for input in inputs {
        let job_id = input.message.job_id;
        let window = rules.category(&input.args.category).dedup_window;
        let is_settled = found
            .get(&input.claim)
            .is_some_and(|claim| claim.job == job_id || claim.blocks(Some(job_id), now, window));
        if !is_settled && is_compared(input, rules, now) {
            missing.entry(input.claim).or_insert(job_id);
        }
    }
    missing
}
