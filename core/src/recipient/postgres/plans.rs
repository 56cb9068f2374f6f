//! The planner: takes messages through the gates and writes what the gates found.
//!
//! One transaction plans a batch. It takes the messages out of the queue, then locks dedup claims,
//! then lists of sends, then digests, each in the order of their keys. A planner that dies leaves the
//! messages unplanned.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use sqlx::query;

use super::messages::{GatedMessage, load};
use super::new_lists::add_lists;
use super::rows::{
    DigestKey, GateInput, StoredList, StoredTimes, cap_times, crowd, digests, inputs, reserved,
    sent,
};
use super::taken::{
    DUE_JOBS, Look, PUT_JOB_OFF, TakenMessages, take_due, take_jobs, take_siblings,
};
use crate::jobs::Error;
use crate::postgres::{Db, Transaction};
use crate::recipient::address::RecipientKey;
use crate::recipient::candidate::{CapList, Origin};
use crate::recipient::caps::CapWindow;
use crate::recipient::collectors::collectors;
use crate::recipient::crowd::crowd_quarter;
use crate::recipient::dedup::DedupClaim;
use crate::recipient::digest::{Arrival, COALESCED, OpenDigest};
use crate::recipient::gate::UnsentReason;
use crate::recipient::gates::{GatePolicy, GateRows, MessagePlan, cap_lists, plan, quiet_of};
use crate::recipient::quiet::COALESCED_MIN;
use crate::recipient::rules::RecipientRules;

/// The longest wait for a lock of a transaction that gives way soon.
const GIVE_WAY_SOON: &str = "set local lock_timeout = '100ms'";

/// A message with its plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedMessage {
    pub job_id: i64,
    pub plan: MessagePlan,
    /// The other message, of a duplicate.
    pub duplicate_of: Option<i64>,
}

/// The company in which a message wakes that was held in quiet hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waking {
    /// All that may become one digest with it wake too.
    Together,
    /// It wakes alone, because one of them cannot be planned.
    Alone,
}

/// The use of the times of lists that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListUse {
    /// Messages get places in them, so those without room are locked.
    Reserves,
    /// A forecast. Its reader holds digests already, which come last in the order of the locks.
    Foresees,
}

/// The capacity of a throttle, in messages a second.
pub type Capacity<'a> = &'a (dyn Fn(&str) -> f64 + Send + Sync);

/// Plans messages that are due, at most `most`, and returns their plans.
pub async fn plan_due(
    db: &Db,
    rules: &RecipientRules,
    capacity: Capacity<'_>,
    look: Look,
    most: i64,
) -> Result<Vec<PlannedMessage>, Error> {
    let mut transaction = db.begin().await?;
    let mut taken = take_due(&mut transaction, look, most).await?;
    if taken.is_empty() && look == Look::AtFresh {
        taken = take_due(&mut transaction, Look::AtAll, most).await?;
    }
    let planned = plan_taken(&mut transaction, taken, Waking::Together, rules, capacity).await;
    transaction.end(planned).await
}

/// Plans those of these messages that nobody else plans, and returns their plans.
pub async fn plan_jobs(
    db: &Db,
    jobs: &[i64],
    rules: &RecipientRules,
    capacity: Capacity<'_>,
) -> Result<Vec<PlannedMessage>, Error> {
    let mut transaction = db.begin().await?;
    let taken = take_jobs(&mut transaction, jobs).await?;
    let planned = plan_taken(&mut transaction, taken, Waking::Together, rules, capacity).await;
    transaction.end(planned).await
}

/// Returns the jobs of messages whose plan is due, at most `most`.
pub async fn due_jobs(db: &Db, most: i64) -> Result<Vec<i64>, Error> {
    let due = sqlx::query_scalar(DUE_JOBS).bind(most);
    Ok(due.fetch_all(db).await?)
}

/// Puts off the plan of a message, because it failed.
pub async fn put_plan_off(db: &Db, job: i64) -> Result<(), Error> {
    query(PUT_JOB_OFF).bind(job).execute(db).await?;
    Ok(())
}

/// Plans messages like [`plan_jobs`], and gives way soon if somebody else has locked what they need.
pub async fn plan_apart(
    db: &Db,
    jobs: &[i64],
    waking: Waking,
    rules: &RecipientRules,
    capacity: Capacity<'_>,
) -> Result<Vec<PlannedMessage>, Error> {
    let mut transaction = db.begin().await?;
    give_way_soon(&mut transaction).await?;
    let taken = take_jobs(&mut transaction, jobs).await?;
    let planned = plan_taken(&mut transaction, taken, waking, rules, capacity).await;
    transaction.end(planned).await
}

/// Makes a transaction fail soon where it would wait for a lock.
pub(super) async fn give_way_soon(connection: &mut Transaction) -> Result<(), Error> {
    sqlx::raw_sql(GIVE_WAY_SOON).execute(connection).await?;
    Ok(())
}

async fn plan_taken(
    connection: &mut Transaction,
    mut taken: TakenMessages,
    waking: Waking,
    rules: &RecipientRules,
    capacity: Capacity<'_>,
) -> Result<Vec<PlannedMessage>, Error> {
    if taken.is_empty() {
        return Ok(Vec::new());
    }
    let (mut messages, now) = load(connection, &taken.jobs()).await?;
    let woken = woken(&messages);
    let is_together = waking == Waking::Together && rules.digest(COALESCED).is_some();
    if is_together && !woken.is_empty() {
        let siblings = take_siblings(connection, &woken).await?;
        if !siblings.is_empty() {
            messages.extend(load(connection, &siblings.jobs()).await?.0);
            taken.extend(siblings);
        }
    }
    // The attempt reports what is wrong with the arguments; a job that is gone has no row to plan.
    let (readable, unreadable): (Vec<GatedMessage>, Vec<GatedMessage>) = messages
        .into_iter()
        .partition(|message| message.args.is_some());
    let inputs = inputs(connection, readable).await?;
    let lists = ListUse::Reserves;
    let mut batch = PlanBatch::read(connection, inputs, rules, now, lists).await?;
    batch.plan_all(connection, capacity).await?;
    let unplanned: Vec<i64> = unreadable.iter().map(|message| message.job_id).collect();
    batch.write(connection, &taken, unplanned).await?;
    Ok(batch.planned)
}

/// Returns the numbers of messages that wake, by recipient and category.
fn woken(messages: &[GatedMessage]) -> HashMap<(RecipientKey, String), i64> {
    let mut woken: HashMap<(RecipientKey, String), i64> = HashMap::new();
    for message in messages.iter().filter(|message| message.coalesces) {
        let Some(args) = &message.args else {
            continue;
        };
        let recipient = args.recipient_key(&message.tenant, args.address().as_ref());
        let key = (recipient, args.category.clone());
        *woken.entry(key).or_default() += 1;
    }
    woken
}

/// Messages that are planned together, with all rows that decide about them.
pub(super) struct PlanBatch<'a> {
    pub(super) rules: &'a RecipientRules,
    pub(super) now: Timestamp,
    pub(super) inputs: Vec<GateInput>,
    pub(super) lists: Vec<Vec<CapList>>,
    pub(super) claims: HashMap<i64, DedupClaim>,
    times: HashMap<StoredList, StoredTimes>,
    pub(super) digests: HashMap<DigestKey, OpenDigest>,
    /// Digests that were not open when they were read.
    pub(super) absent: HashSet<DigestKey>,
    crowd: HashMap<(String, i64), u64>,
    /// True for messages that have the claim on their content.
    pub(super) has_claim: Vec<bool>,
    /// The quarter of an hour in which each message is released with a crowd; `None` if it is held
    /// in none.
    pub(super) quarters: Vec<Option<i64>>,
    pub(super) planned: Vec<PlannedMessage>,
}

impl<'a> PlanBatch<'a> {
    pub(super) async fn read(
        connection: &mut Transaction,
        inputs: Vec<GateInput>,
        rules: &'a RecipientRules,
        now: Timestamp,
        list_use: ListUse,
    ) -> Result<Self, Error> {
        let lists = inputs.iter().map(|input| match input.message.has_slots() {
            // A message keeps the slots of its last attempt.
            true => Vec::new(),
            false => cap_lists(&input.candidate(), rules),
        });
        let mut batch = Self {
            lists: lists.collect(),
            has_claim: vec![false; inputs.len()],
            rules,
            now,
            inputs,
            claims: HashMap::new(),
            times: HashMap::new(),
            digests: HashMap::new(),
            absent: HashSet::new(),
            crowd: HashMap::new(),
            quarters: Vec::new(),
            planned: Vec::new(),
        };
        batch.claim(connection).await?;
        batch.read_times(connection, list_use).await?;
        batch.read_digests(connection).await?;
        Ok(batch)
    }

    pub(super) fn policy<'b>(&'b self, input: &'b GateInput) -> GatePolicy<'b> {
        input.policy(self.rules)
    }

    /// Reads the times of all lists. Lists without room now are locked and read again, so that no
    /// two messages get the same time; a forecast locks none.
    async fn read_times(
        &mut self,
        connection: &mut Transaction,
        list_use: ListUse,
    ) -> Result<(), Error> {
        let jobs: Vec<i64> = self
            .inputs
            .iter()
            .map(|input| input.message.job_id)
            .collect();
        let mut all: Vec<StoredList> = Vec::new();
        for (input, lists) in self.inputs.iter().zip(&self.lists) {
            all.extend(lists.iter().map(|list| input.stored(list)));
        }
        all.sort_unstable();
        all.dedup();
        self.read_lists(connection, &all, &jobs, false).await?;
        if list_use == ListUse::Foresees {
            return Ok(());
        }
        let mut tight: Vec<StoredList> = Vec::new();
        for (input, lists) in self.inputs.iter().zip(&self.lists) {
            for list in lists {
                let key = input.stored(list);
                let counted = self.times.get(&key);
                let counted = counted.map_or(0, |times| times.sent.len() + times.reserved.len());
                let fewest = list.caps.0.iter().map(|rule| rule.most).min();
                if fewest.is_some_and(|fewest| counted >= fewest as usize) {
                    tight.push(key);
                }
            }
        }
        tight.sort_unstable();
        tight.dedup();
        let has_sends = |key: &StoredList| {
            let times = self.times.get(key);
            times.is_some_and(|times| !times.sent.is_empty())
        };
        let new: Vec<StoredList> = (tight.iter().copied())
            .filter(|key| !has_sends(key))
            .collect();
        add_lists(connection, &new).await?;
        self.read_lists(connection, &tight, &jobs, true).await
    }

    async fn read_lists(
        &mut self,
        connection: &mut Transaction,
        lists: &[StoredList],
        jobs: &[i64],
        locks: bool,
    ) -> Result<(), Error> {
        let mut of_sent = sent(connection, lists, locks).await?;
        let mut of_reserved = reserved(connection, lists, jobs).await?;
        for list in lists {
            let times = StoredTimes {
                sent: of_sent.remove(list).unwrap_or_default(),
                reserved: of_reserved.remove(list).unwrap_or_default(),
            };
            self.times.insert(*list, times);
        }
        Ok(())
    }

    async fn read_digests(&mut self, connection: &mut Transaction) -> Result<(), Error> {
        let mut keys: Vec<DigestKey> = Vec::new();
        for (input, lists) in self.inputs.iter().zip(&self.lists) {
            let candidate = input.candidate();
            if candidate.origin == Origin::Sender {
                let types = collectors(&candidate, lists, self.rules);
                keys.extend(
                    types
                        .iter()
                        .map(|kind| digest_key(input, &kind.name, self.rules)),
                );
            }
        }
        keys.sort_unstable();
        keys.dedup();
        self.digests = digests(connection, &keys, true).await?;
        let is_absent = |key: &DigestKey| !self.digests.contains_key(key);
        self.absent = keys.into_iter().filter(is_absent).collect();
        Ok(())
    }

    /// Plans each message with what those before it take.
    pub(super) async fn plan_all(
        &mut self,
        connection: &mut Transaction,
        capacity: Capacity<'_>,
    ) -> Result<(), Error> {
        // The size of the crowd is read once the quarters of an hour are known.
        let mut quarters: Vec<(String, i64)> = Vec::new();
        for (at, input) in self.inputs.iter().enumerate() {
            let by_day = |list: &CapList| {
                let mut rules = list.caps.0.iter();
                rules.any(|rule| rule.window == CapWindow::LocalDay)
            };
            let candidate = input.candidate();
            let is_free = quiet_of(&candidate, self.policy(input)).0.is_empty();
            if is_free && candidate.local.is_none() && !self.lists[at].iter().any(by_day) {
                continue;
            }
            let plan = self.plan_one(at, 0, 0.0);
            if let Some(quarter) = crowd_quarter(&plan) {
                quarters.push((input.message.throttle.clone(), quarter));
            }
        }
        quarters.sort_unstable();
        quarters.dedup();
        self.crowd = crowd(connection, &quarters).await?;
        let woken = self.woken();
        let mut first_holders: HashMap<i64, i64> = HashMap::new();
        for at in 0..self.inputs.len() {
            let (plan, quarter) = match woken.get(&at) {
                Some(open) => {
                    let plan = MessagePlan::Collected {
                        digest: COALESCED.to_owned(),
                        arrival: Arrival::Joins(*open),
                    };
                    (plan, None)
                }
                None => self.plan_in_crowd(at, capacity),
            };
            self.note(at, &plan);
            self.quarters.push(quarter);
            if self.pass_claim_on(at, &plan) {
                let input = &self.inputs[at];
                let first = first_holders.entry(input.claim);
                first.or_insert(input.message.job_id);
            }
            let input = &self.inputs[at];
            let is_duplicate = matches!(
                plan,
                MessagePlan::Ended {
                    reason: UnsentReason::Duplicate,
                    ..
                }
            );
            let other = self.claims.get(&input.claim);
            self.planned.push(PlannedMessage {
                job_id: input.message.job_id,
                duplicate_of: other.filter(|_| is_duplicate).map(|claim| claim.job),
                plan,
            });
        }
        self.write_passed_on(connection, first_holders).await
    }

    /// Returns the messages that become one digest: three or more of a category that were held for
    /// one recipient in quiet hours. Caps do not judge them, but the digest.
    fn woken(&self) -> HashMap<usize, OpenDigest> {
        if self.rules.digest(COALESCED).is_none() {
            return HashMap::new();
        }
        let mut awake: HashMap<DigestKey, Vec<usize>> = HashMap::new();
        for (at, input) in self.inputs.iter().enumerate() {
            let goes = || self.plan_by(at, &[], 0, 0.0) == MessagePlan::Send;
            if input.message.coalesces && goes() {
                let key = digest_key(input, COALESCED, self.rules);
                awake.entry(key).or_default().push(at);
            }
        }
        awake.retain(|_, members| members.len() >= COALESCED_MIN);
        let mut woken = HashMap::new();
        for members in awake.into_values() {
            let open = OpenDigest {
                opened_at: self.now,
                closes_at: self.now,
                items: members.len(),
            };
            woken.extend(members.into_iter().map(|at| (at, open)));
        }
        woken
    }

    /// Plans a message, and returns the quarter of an hour in which it is released with a crowd. Its
    /// place then depends on the number of messages that are held for this quarter.
    fn plan_in_crowd(&mut self, at: usize, capacity: Capacity<'_>) -> (MessagePlan, Option<i64>) {
        let first = self.plan_one(at, 0, 0.0);
        let Some(quarter) = crowd_quarter(&first) else {
            return (first, None);
        };
        let message = &self.inputs[at].message;
        let capacity_per_s = capacity(&message.throttle);
        let key = (message.throttle.clone(), quarter);
        let held = self.crowd.entry(key).or_default();
        // One that is planned again is counted already.
        *held += u64::from(message.crowd_quarter != Some(quarter));
        let held = *held;
        (self.plan_one(at, held, capacity_per_s), Some(quarter))
    }

    fn plan_one(&self, at: usize, held_with_it: u64, capacity_per_s: f64) -> MessagePlan {
        self.plan_by(at, &self.lists[at], held_with_it, capacity_per_s)
    }

    /// Plans a message by these of its lists.
    fn plan_by(
        &self,
        at: usize,
        lists: &[CapList],
        held_with_it: u64,
        capacity_per_s: f64,
    ) -> MessagePlan {
        let input = &self.inputs[at];
        let stored: Vec<StoredList> = lists.iter().map(|list| input.stored(list)).collect();
        let times = cap_times(&stored, &self.times);
        let candidate = input.candidate();
        let open: Vec<(&str, OpenDigest)> = collectors(&candidate, lists, self.rules)
            .iter()
            .filter_map(|kind| {
                let open = self
                    .digests
                    .get(&digest_key(input, &kind.name, self.rules))?;
                Some((kind.name.as_str(), *open))
            })
            .collect();
        let rows = GateRows {
            is_suppressed: input.is_suppressed,
            claim: self.claims.get(&input.claim).copied(),
            digests: &open,
            times: &times,
            lists: Some(lists),
            has_slots: input.message.has_slots(),
            held_with_it,
            capacity_per_s,
        };
        plan(&candidate, self.policy(input), &rows, self.now)
    }

    /// Notes what a message takes, for those that are planned after it.
    fn note(&mut self, at: usize, plan: &MessagePlan) {
        let input = &self.inputs[at];
        if let Some(second) = reserved_second(plan, self.now) {
            for list in &self.lists[at] {
                let times = self.times.entry(input.stored(list)).or_default();
                times.reserved.push(second);
                times.reserved.sort_unstable();
            }
        }
        if let MessagePlan::Collected { digest, arrival } = plan {
            let (Arrival::Leads(open) | Arrival::Joins(open)) = arrival;
            self.digests
                .insert(digest_key(input, digest, self.rules), *open);
        }
    }
}

/// Returns the second that a message reserves in its lists; `None` if it takes none.
pub(super) fn reserved_second(plan: &MessagePlan, now: Timestamp) -> Option<i64> {
    match plan {
        MessagePlan::Send
        | MessagePlan::Collected {
            arrival: Arrival::Leads(_),
            ..
        } => Some(crate::recipient::caps::noted_at(now)),
        MessagePlan::Held {
            reserve_s,
            coalesces: false,
            ..
        } => Some(*reserve_s),
        _ => None,
    }
}

/// Returns the key of the digest of a type into which a message goes.
pub(super) fn digest_key(input: &GateInput, name: &str, rules: &RecipientRules) -> DigestKey {
    if name == COALESCED {
        return (
            name.to_owned(),
            input.recipient,
            input.args.category.clone(),
        );
    }
    let per_actor = rules.digest(name).is_some_and(|kind| kind.per_actor);
    let actor = input.args.fields.actor.clone().filter(|_| per_actor);
    (name.to_owned(), input.recipient, actor.unwrap_or_default())
}
