//! The claims of messages that are planned together: of equal ones, the first has it.

use std::collections::{BTreeSet, HashMap};

use super::claims::{NewClaim, counting, stored_claims, write_claims};
use super::plans::PlanBatch;
use super::rows::GateInput;
use crate::jobs::Error;
use crate::postgres::Transaction;
use crate::recipient::dedup::DedupClaim;
use crate::recipient::gates::{GateRows, ends_before_dedup, is_deduped};

impl PlanBatch<'_> {
    /// Returns true for a message that is compared with others: no gate before dedup ends it.
    fn is_compared(&self, input: &GateInput) -> bool {
        let candidate = input.candidate();
        let rows = GateRows {
            is_suppressed: input.is_suppressed,
            ..GateRows::default()
        };
        let ends = || ends_before_dedup(&candidate, self.policy(input), &rows, self.now);
        is_deduped(&candidate, self.rules) && ends().is_none()
    }

    /// Claims the contents of all messages that the gates before dedup let pass.
    pub(super) async fn claim(&mut self, connection: &mut Transaction) -> Result<(), Error> {
        let is_compared = |input: &&GateInput| self.is_compared(input);
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
}
