//! Answers of the gates to people: explanations, checks, open digests.

use std::time::Duration;

use super::check::RecipientCheck;
use super::explain::{DigestView, MessageExplanation};
use super::postgres::{
    self, CheckedMessage, DigestFilter, HeldCounts, MessageStanding, RecordedPlans,
};
use super::service::Gates;
use crate::jobs::{Attribution, Error, Queue};

/// The times between looks at messages that another process plans.
const LOOK_AFTER: [Duration; 5] = [
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
];

impl Gates {
    /// Plans messages that were just accepted, and returns the plans of all, also of those that
    /// another process plans: it waits a little for their records. What is unplanned then has a
    /// planner that is slow.
    pub async fn plan_accepted(&self, jobs: &[i64]) -> Result<RecordedPlans, Error> {
        let mut plans = RecordedPlans {
            planned: Vec::new(),
            unplanned: jobs.to_vec(),
        };
        plans.add(self.plan_jobs(jobs).await?);
        let mut pauses = LOOK_AFTER.iter();
        while !plans.unplanned.is_empty() {
            // The known ones are returned although the rest cannot be read.
            let Ok(look) = postgres::recorded_plans(&self.db, &plans.unplanned).await else {
                break;
            };
            plans.planned.extend(look.planned);
            plans.unplanned = look.unplanned;
            let Some(pause) = pauses.next().filter(|_| !plans.unplanned.is_empty()) else {
                break;
            };
            tokio::time::sleep(*pause).await;
            // The message of a planner that died is free again.
            let Ok(freed) = self.plan_jobs(&plans.unplanned).await else {
                break;
            };
            plans.add(freed);
        }
        Ok(plans)
    }

    /// Explains a message; with a tenant, only one of its own. `None` for an unknown one.
    pub async fn explain(
        &self,
        id: i64,
        tenant: Option<&str>,
    ) -> Result<Option<MessageExplanation>, Error> {
        let rules = self.rules.load();
        let capacity = |throttle: &str| self.capacity(throttle);
        postgres::explain(&self.db, id, tenant, &rules, &capacity).await
    }

    /// Returns the gate that holds a message, or the digest that has it.
    pub async fn standing(&self, id: i64) -> Result<MessageStanding, Error> {
        postgres::standing(&self.db, id).await
    }

    /// Returns the state of a recipient for a kind of message, and uses nothing.
    pub async fn check(&self, message: &CheckedMessage) -> Result<RecipientCheck, Error> {
        postgres::check(&self.db, message, &self.rules.load()).await
    }

    /// Returns a page of open digests, next to close first.
    pub async fn open_digests(&self, filter: &DigestFilter) -> Result<Vec<DigestView>, Error> {
        let read = |queue: Queue| async move { postgres::open_digests(&queue.pool, filter).await };
        self.queue.read_lagging(read).await
    }

    /// Withdraws an item from its digest. Returns the type of the digest; `None` if there is no
    /// such item, or its digest has closed.
    pub async fn withdraw(&self, id: i64, signed: &Attribution) -> Result<Option<String>, Error> {
        postgres::withdraw(&self.db, id, &self.rules.load(), signed).await
    }

    /// Lets the held messages of a recipient be planned again, and returns their number.
    pub async fn replan(
        &self,
        tenant: &str,
        recipient: &str,
        signed: &Attribution,
    ) -> Result<i64, Error> {
        postgres::replan(&self.db, tenant, recipient, signed).await
    }

    /// Counts held messages by gate, and items by type of digest.
    pub async fn held_counts(&self) -> Result<HeldCounts, Error> {
        let read = |queue: Queue| async move { postgres::held_counts(&queue.pool).await };
        self.queue.read_lagging(read).await
    }
}
