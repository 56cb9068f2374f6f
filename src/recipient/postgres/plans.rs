//! The planner: takes messages through the gates and writes what the gates found.
//!
//! One transaction plans a batch. It locks the messages, then dedup claims, then lists of sends, then
//! digests, each in the order of their keys. A planner that dies leaves the messages unplanned.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;
use serde_json::{Value, json};
use sqlx::PgConnection;
use sqlx::types::Json;

use super::attempts::MARK;
use super::messages::{GatedMessage, load, take_due, take_jobs};
use super::query;
use super::rows::{
    DigestKey, GateInput, StoredList, StoredTimes, cap_times, claims, columns, crowd, digests,
    inputs, reserved, sent, sql_time, stored,
};
use crate::jobs::Error;
use crate::postgres::Db;
use crate::recipient::address::RecipientKey;
use crate::recipient::dedup::DedupClaim;
use crate::recipient::digest::{Arrival, OpenDigest};
use crate::recipient::gate::{MessageGate, UnsentReason};
use crate::recipient::gates::{
    CapList, GatePolicy, GateRows, MessagePlan, Origin, cap_lists, collectors, plan,
};
use crate::recipient::release::BUCKET_S;
use crate::recipient::rules::RecipientRules;

pub(super) const CLAIM: &str = "
with wanted as (
    select * from unnest($1::text[]::uuid[], $2::bigint[], $3::bigint[], $4::bigint[])
        as a(recipient, content, job_id, expected)
)
insert into flyball.dedup as d (recipient, content, job_id, at)
select w.recipient, w.content, w.job_id, clock_timestamp() from wanted w order by w.recipient, w.content
on conflict (recipient, content) do update
set job_id = excluded.job_id, at = excluded.at, is_marked = false
where d.job_id in (
    select w.expected from wanted w where w.recipient = excluded.recipient and w.content = excluded.content
)
returning d.job_id";

// The lanes are named to all workers: a job with an old id that came to its lane just now would be
// found late.
pub(super) const SEND: &str = "
with removed as (
    delete from flyball.scheduled where job_id = any($1) returning *
),
moved as (
    insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
    select lane_id, priority, job_id, attempt, cost, holds_unique from removed
    on conflict do nothing
),
lanes as (
    select lane_id, min(priority) as urgency, row_number() over (order by min(priority), lane_id) / 370 as page
    from removed group by lane_id
)
select count(pg_notify('flyball', page.lanes))
from (select string_agg(lane_id::text, ',' order by urgency, lane_id) as lanes from lanes group by page) page";

// A message of a tenant is counted by the limits of its tenant when it is released, so it waits for
// them then, whatever it took when it was accepted.
pub(super) const HOLD: &str = "
with held as materialized (
    select j.id, a.until, flyball.turn_of(j.throttle, s.priority, false) as turn, s.ctid as tid,
        case when j.tenant <> '' then flyball.lane_of(flyball.admission_throttle(j.tenant), j.module) end as admission_lane,
        j.admission_lane is null as was_admitted
    from unnest($1::bigint[], $2::timestamptz[]) as a(job_id, until)
    cross join lateral (select * from flyball.job where id = a.job_id limit 1) j
    cross join lateral (select ctid, priority from flyball.scheduled where job_id = a.job_id limit 1) s
),
changed as (
    update flyball.job j set admission_lane = h.admission_lane
    from held h
    where j.id = h.id and h.admission_lane is not null and h.was_admitted
)
update flyball.scheduled s
set run_at = h.until, turn = h.turn, lane_id = coalesce(h.admission_lane, s.lane_id)
from held h
where s.job_id = h.id";

pub(super) const RESERVE: &str = "
with forgotten as (
    delete from flyball.cap_reservation where job_id = any($5)
)
insert into flyball.cap_reservation (recipient, list, at_s, job_id)
select * from unnest($1::text[]::uuid[], $2::int[], $3::int[], $4::bigint[])
on conflict do nothing";

pub(super) const OPEN_DIGESTS: &str = "
insert into flyball.digest as d
    (tenant, module, type, recipient, key, recipient_id, channel, address, throttle, throttle_key, opened_at, closes_at, items)
select * from unnest($1::text[], $2::text[], $3::text[], $4::text[]::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
    $10::text[], $11::timestamptz[], $12::timestamptz[], $13::int[])
    as a(tenant, module, type, recipient, key, recipient_id, channel, address, throttle, throttle_key, opened_at, closes_at, items)
order by 3, 4, 5
on conflict (type, recipient, key) do update
set items = d.items + excluded.items, opened_at = excluded.opened_at, closes_at = excluded.closes_at,
    last_at = clock_timestamp(), address = coalesce(excluded.address, d.address), throttle = excluded.throttle
returning d.type, uuid_send(d.recipient) as recipient, d.key, d.id";

pub(super) const ADD_ITEMS: &str = "
insert into flyball.digest_item (digest_id, job_id, item, at)
select * from unnest($1::bigint[], $2::bigint[], $3::jsonb[], $4::timestamptz[])";

// A message that becomes an item, or ends, is no job any more; its record says what became of it.
pub(super) const END: &str = "
with ended as materialized (
    select a.*, j.tenant, j.throttle, j.args, r.attempt
    from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[])
        as a(job_id, state, reason, rule, address, known)
    cross join lateral (select * from flyball.job where id = a.job_id limit 1) j
    cross join lateral (select attempt from flyball.scheduled where job_id = a.job_id limit 1) r
),
removed as (
    delete from flyball.scheduled where job_id = any($1)
),
history as (
    insert into flyball.attempt (job_id, attempt, outcome)
    select e.job_id, e.attempt, case when e.state = 'cancelled' then 'cancelled' else 'completed' end::flyball.outcome from ended e
),
released_keys as (
    delete from flyball.unique_holder
    where digest = any(array(
        select u.digest from flyball.unique_holder u where u.expires_at is null and u.job_id = any($1) for update skip locked
    ))
)
insert into flyball.delivery as d
    (job_id, channel, pool, tenant, state, recipient_digest, recipient, category, attempts, attempt_count, last_outcome, reason)
select e.job_id, coalesce(e.args ->> 'channel', ''), e.throttle, e.tenant, e.state, flyball.keyed_digest(e.known),
    coalesce(flyball.mask_recipient(e.args ->> 'channel', e.address), ''), coalesce(e.args ->> 'category', ''),
    jsonb_build_array(jsonb_build_object('at', to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'),
        'account', null, 'outcome', e.reason, 'status', '', 'reason', e.rule, 'ms', 0)),
    1, e.reason, e.rule
from ended e
where e.state <> 'cancelled'
order by e.job_id
on conflict (job_id) do update
set state = excluded.state, attempts = flyball.append_attempts(d.attempts, excluded.attempts), attempt_count = d.attempt_count + 1,
    last_outcome = excluded.last_outcome, reason = excluded.reason, updated_at = clock_timestamp()";

pub(super) const RECORD_PLANS: &str = "
insert into flyball.message_plan as p
    (job_id, recipient, state, gate, rule, reason, holds, until, planned_at, coalesces, content, other_job, digest_id)
select * from unnest($1::bigint[], $2::text[]::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::jsonb[], $8::timestamptz[],
    $9::timestamptz[], $10::boolean[], $11::bigint[], $12::bigint[], $13::bigint[])
on conflict (job_id) do update
set recipient = excluded.recipient, state = excluded.state, gate = excluded.gate, rule = excluded.rule, reason = excluded.reason,
    holds = excluded.holds, until = excluded.until,
    since = case when p.state = excluded.state and p.gate = excluded.gate then p.since else clock_timestamp() end,
    planned_at = coalesce(p.planned_at, excluded.planned_at), coalesces = excluded.coalesces,
    content = coalesce(excluded.content, p.content), other_job = excluded.other_job, digest_id = coalesce(excluded.digest_id, p.digest_id)";

pub(super) const COUNT_CROWD: &str = "
insert into flyball.held_crowd as c (throttle, quarter, messages)
select * from unnest($1::text[], $2::bigint[], $3::bigint[]) as a(throttle, quarter, messages) order by 1, 2
on conflict (throttle, quarter) do update set messages = c.messages + excluded.messages";

/// A message with its plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedMessage {
    pub job_id: i64,
    pub plan: MessagePlan,
    /// The other message, of a duplicate.
    pub duplicate_of: Option<i64>,
}

/// The capacity of a throttle, in messages a second; 0 if it is unknown.
pub type Capacity<'a> = &'a (dyn Fn(&str) -> f64 + Send + Sync);

/// Plans messages that are due, at most `most`, and returns their plans.
pub async fn plan_due(
    db: &Db,
    rules: &RecipientRules,
    capacity: Capacity<'_>,
    most: i64,
) -> Result<Vec<PlannedMessage>, Error> {
    let mut transaction = db.begin().await?;
    let jobs = take_due(&mut transaction, most).await?;
    let planned = plan_taken(&mut transaction, &jobs, rules, capacity).await?;
    transaction.commit().await?;
    Ok(planned)
}

/// Plans those of these messages that nobody else plans, and returns their plans.
pub async fn plan_jobs(
    db: &Db,
    jobs: &[i64],
    rules: &RecipientRules,
    capacity: Capacity<'_>,
) -> Result<Vec<PlannedMessage>, Error> {
    let mut transaction = db.begin().await?;
    let jobs = take_jobs(&mut transaction, jobs).await?;
    let planned = plan_taken(&mut transaction, &jobs, rules, capacity).await?;
    transaction.commit().await?;
    Ok(planned)
}

async fn plan_taken(
    connection: &mut PgConnection,
    jobs: &[i64],
    rules: &RecipientRules,
    capacity: Capacity<'_>,
) -> Result<Vec<PlannedMessage>, Error> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let (messages, now) = load(connection, jobs).await?;
    // The attempt reports what is wrong with the arguments; a job that is gone has no row to plan.
    let (readable, unreadable): (Vec<GatedMessage>, Vec<GatedMessage>) = messages
        .into_iter()
        .partition(|message| message.args.is_some());
    let inputs = inputs(connection, readable).await?;
    let mut batch = PlanBatch::read(connection, inputs, rules, now).await?;
    batch.plan_all(connection, capacity).await?;
    let unplanned: Vec<i64> = unreadable.iter().map(|message| message.job_id).collect();
    batch.write(connection, unplanned).await?;
    Ok(batch.planned)
}

/// Messages that are planned together, with all rows that decide about them.
struct PlanBatch<'a> {
    rules: &'a RecipientRules,
    now: Timestamp,
    inputs: Vec<GateInput>,
    lists: Vec<Vec<CapList>>,
    claims: HashMap<(RecipientKey, i64), DedupClaim>,
    times: HashMap<StoredList, StoredTimes>,
    digests: HashMap<DigestKey, OpenDigest>,
    crowd: HashMap<(String, i64), u64>,
    /// True for messages that have the claim on their content.
    has_claim: Vec<bool>,
    planned: Vec<PlannedMessage>,
}

impl<'a> PlanBatch<'a> {
    async fn read(
        connection: &mut PgConnection,
        inputs: Vec<GateInput>,
        rules: &'a RecipientRules,
        now: Timestamp,
    ) -> Result<Self, Error> {
        let lists = inputs
            .iter()
            .map(|input| cap_lists(&input.candidate(), rules));
        let mut batch = Self {
            lists: lists.collect(),
            has_claim: vec![false; inputs.len()],
            rules,
            now,
            inputs,
            claims: HashMap::new(),
            times: HashMap::new(),
            digests: HashMap::new(),
            crowd: HashMap::new(),
            planned: Vec::new(),
        };
        batch.claim(connection).await?;
        batch.read_times(connection).await?;
        batch.read_digests(connection).await?;
        Ok(batch)
    }

    fn policy<'b>(&'b self, input: &'b GateInput) -> GatePolicy<'b> {
        GatePolicy {
            profile: &input.profile,
            defaults: &input.defaults,
            rules: self.rules,
        }
    }

    /// Claims the contents of all messages that the gates before dedup let pass.
    async fn claim(&mut self, connection: &mut PgConnection) -> Result<(), Error> {
        let passes = |input: &&GateInput| {
            let candidate = input.candidate();
            let category = self.rules.category(candidate.category);
            if candidate.origin != Origin::Sender || category.dedup_window.is_zero() {
                return false;
            }
            let rows = GateRows {
                is_suppressed: input.is_suppressed,
                ..GateRows::default()
            };
            match plan(&candidate, self.policy(input), &rows, self.now) {
                MessagePlan::Ended { gate, .. } => gate > MessageGate::Dedup,
                MessagePlan::Refused { .. } => false,
                _ => true,
            }
        };
        let wanting: Vec<&GateInput> = self.inputs.iter().filter(passes).collect();
        if wanting.is_empty() {
            return Ok(());
        }
        let mut found = claims(connection, &wanting).await?;
        let mut wanted: HashMap<(RecipientKey, i64), (i64, i64)> = HashMap::new();
        for input in &wanting {
            let (key, job_id) = ((input.recipient, input.content), input.message.job_id);
            let window = self.rules.category(&input.args.category).dedup_window;
            let claim = found.get(&key);
            if claim.is_some_and(|claim| claim.blocks(Some(job_id), self.now, window)) {
                continue;
            }
            // Of equal messages in one batch the first has the claim.
            let expected = claim.map_or(job_id, |claim| claim.job);
            wanted.entry(key).or_insert((job_id, expected));
        }
        let keys: Vec<_> = wanted.into_iter().collect();
        let recipients: Vec<String> = keys.iter().map(|(key, _)| key.0.to_hex()).collect();
        let contents: Vec<i64> = keys.iter().map(|(key, _)| key.1).collect();
        let jobs: Vec<i64> = keys.iter().map(|(_, (job, _))| *job).collect();
        let expected: Vec<i64> = keys.iter().map(|(_, (_, expected))| *expected).collect();
        let claimed: Vec<i64> = sqlx::query_scalar(CLAIM)
            .persistent(false)
            .bind(recipients)
            .bind(contents)
            .bind(jobs)
            .bind(expected)
            .fetch_all(&mut *connection)
            .await?;
        let claimed: BTreeSet<i64> = claimed.into_iter().collect();
        if claimed.len() < keys.len() {
            // Another planner was faster: its messages are the first ones.
            found = claims(connection, &wanting).await?;
        }
        for (key, (job, _)) in keys {
            if claimed.contains(&job) {
                let claim = DedupClaim {
                    job,
                    at: self.now,
                    is_marked: false,
                };
                found.insert(key, claim);
            }
        }
        let has = |input: &GateInput| claimed.contains(&input.message.job_id);
        self.has_claim = self.inputs.iter().map(has).collect();
        self.claims = found;
        Ok(())
    }

    /// Reads the times of all lists. Those of lists without room now are locked and read again, so
    /// that no two messages get the same time.
    async fn read_times(&mut self, connection: &mut PgConnection) -> Result<(), Error> {
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
        self.read_lists(connection, &tight, &jobs, true).await
    }

    async fn read_lists(
        &mut self,
        connection: &mut PgConnection,
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

    async fn read_digests(&mut self, connection: &mut PgConnection) -> Result<(), Error> {
        let mut keys: Vec<DigestKey> = Vec::new();
        for input in &self.inputs {
            let candidate = input.candidate();
            if candidate.origin == Origin::Sender {
                let types = collectors(&candidate, self.rules);
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
        Ok(())
    }

    /// Plans each message with what those before it take.
    async fn plan_all(
        &mut self,
        connection: &mut PgConnection,
        capacity: Capacity<'_>,
    ) -> Result<(), Error> {
        // The size of the crowd is read once the quarters of an hour are known.
        let mut quarters: Vec<(String, i64)> = Vec::new();
        for at in 0..self.inputs.len() {
            let plan = self.plan_one(at, 0, 0.0);
            if let Some(quarter) = quiet_quarter(&plan) {
                quarters.push((self.inputs[at].message.throttle.clone(), quarter));
            }
        }
        quarters.sort_unstable();
        quarters.dedup();
        self.crowd = crowd(connection, &quarters).await?;
        for at in 0..self.inputs.len() {
            let first = self.plan_one(at, 0, 0.0);
            let plan = match quiet_quarter(&first) {
                Some(quarter) => {
                    let throttle = self.inputs[at].message.throttle.clone();
                    let capacity_per_s = capacity(&throttle);
                    let held = self.crowd.entry((throttle, quarter)).or_default();
                    *held += 1;
                    let held = *held;
                    self.plan_one(at, held, capacity_per_s)
                }
                None => first,
            };
            self.note(at, &plan);
            let input = &self.inputs[at];
            let is_duplicate = matches!(
                plan,
                MessagePlan::Ended {
                    reason: UnsentReason::Duplicate,
                    ..
                }
            );
            let other = self.claims.get(&(input.recipient, input.content));
            self.planned.push(PlannedMessage {
                job_id: input.message.job_id,
                duplicate_of: other.filter(|_| is_duplicate).map(|claim| claim.job),
                plan,
            });
        }
        Ok(())
    }

    fn plan_one(&self, at: usize, held_with_it: u64, capacity_per_s: f64) -> MessagePlan {
        let input = &self.inputs[at];
        let stored: Vec<StoredList> = self.lists[at]
            .iter()
            .map(|list| input.stored(list))
            .collect();
        let times = cap_times(&stored, &self.times);
        let candidate = input.candidate();
        let open: Vec<(&str, OpenDigest)> = collectors(&candidate, self.rules)
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
            claim: self.claims.get(&(input.recipient, input.content)).copied(),
            digests: &open,
            times: &times,
            has_slots: input.message.has_slots,
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

    async fn write(
        &self,
        connection: &mut PgConnection,
        mut sending: Vec<i64>,
    ) -> Result<(), Error> {
        let mut held = Vec::new();
        let mut ended = Vec::new();
        let mut collected = Vec::new();
        for (at, one) in self.planned.iter().enumerate() {
            match &one.plan {
                MessagePlan::Send => sending.push(one.job_id),
                MessagePlan::Held { .. } => held.push(at),
                MessagePlan::Collected { arrival, .. } => {
                    collected.push(at);
                    if matches!(arrival, Arrival::Leads(_)) {
                        sending.push(one.job_id);
                    } else {
                        ended.push((at, "collected", String::new()));
                    }
                }
                MessagePlan::Ended { reason, rule, .. } => {
                    ended.push((at, state_of(*reason), rule.clone()));
                }
                MessagePlan::Refused { rule, .. } => ended.push((at, "capped", rule.clone())),
            }
        }
        self.reserve(connection).await?;
        let digest_ids = self.collect(connection, &collected).await?;
        self.hold(connection, &held).await?;
        self.end(connection, &ended).await?;
        self.record(connection, &digest_ids).await?;
        self.mark_collected(connection, &ended).await?;
        if !sending.is_empty() {
            query(SEND).bind(sending).execute(connection).await?;
        }
        Ok(())
    }

    async fn reserve(&self, connection: &mut PgConnection) -> Result<(), Error> {
        let mut rows: Vec<(StoredList, i32, i64)> = Vec::new();
        for (at, one) in self.planned.iter().enumerate() {
            let Some(second) = reserved_second(&one.plan, self.now) else {
                continue;
            };
            let lists = self.lists[at].iter();
            rows.extend(
                lists.map(|list| (self.inputs[at].stored(list), stored(second), one.job_id)),
            );
        }
        let had: Vec<i64> = self
            .inputs
            .iter()
            .filter(|input| input.message.planned_at.is_some())
            .map(|input| input.message.job_id)
            .collect();
        if rows.is_empty() && had.is_empty() {
            return Ok(());
        }
        let lists: Vec<StoredList> = rows.iter().map(|row| row.0).collect();
        let (recipients, ids) = columns(&lists);
        query(RESERVE)
            .bind(recipients)
            .bind(ids)
            .bind(rows.iter().map(|row| row.1).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.2).collect::<Vec<_>>())
            .bind(had)
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Puts items into their digests, which it opens if need be. Returns the digest of each message.
    async fn collect(
        &self,
        connection: &mut PgConnection,
        collected: &[usize],
    ) -> Result<HashMap<usize, i64>, Error> {
        if collected.is_empty() {
            return Ok(HashMap::new());
        }
        let mut adding: HashMap<DigestKey, (usize, i32)> = HashMap::new();
        for at in collected {
            let MessagePlan::Collected { digest, arrival } = &self.planned[*at].plan else {
                continue;
            };
            let more = i32::from(matches!(arrival, Arrival::Joins(_)));
            let key = digest_key(&self.inputs[*at], digest, self.rules);
            let entry = adding.entry(key).or_insert((*at, 0));
            *entry = (*at, entry.1 + more);
        }
        let open: Vec<(&DigestKey, &GateInput, OpenDigest, i32)> = adding
            .iter()
            .filter_map(|(key, (at, more))| {
                Some((key, &self.inputs[*at], *self.digests.get(key)?, *more))
            })
            .collect();
        let texts = |of: &dyn Fn(&(&DigestKey, &GateInput, OpenDigest, i32)) -> String| {
            open.iter().map(of).collect::<Vec<String>>()
        };
        let address = |input: &GateInput| input.args.to.clone();
        let rows = query(OPEN_DIGESTS)
            .bind(texts(&|one| one.1.message.tenant.clone()))
            .bind(texts(&|one| one.1.message.module.clone()))
            .bind(texts(&|one| one.0.0.clone()))
            .bind(texts(&|one| one.0.1.to_hex()))
            .bind(texts(&|one| one.0.2.clone()))
            .bind(texts(&|one| {
                one.1.args.fields.recipient.clone().unwrap_or_default()
            }))
            .bind(texts(&|one| one.1.args.channel.as_str().to_owned()))
            .bind(open.iter().map(|one| address(one.1)).collect::<Vec<_>>())
            .bind(texts(&|one| one.1.message.throttle.clone()))
            .bind(texts(&|one| one.1.message.throttle_key.clone()))
            .bind(
                open.iter()
                    .map(|one| sql_time(one.2.opened_at))
                    .collect::<Vec<_>>(),
            )
            .bind(
                open.iter()
                    .map(|one| sql_time(one.2.closes_at))
                    .collect::<Vec<_>>(),
            )
            .bind(open.iter().map(|one| one.3).collect::<Vec<_>>())
            .fetch_all(&mut *connection)
            .await?;
        let mut ids: HashMap<DigestKey, i64> = HashMap::new();
        for row in &rows {
            let key = super::rows::stored_key(row)?;
            ids.insert((get(row, "type")?, key, get(row, "key")?), get(row, "id")?);
        }
        let (mut of_message, mut items) = (HashMap::new(), Vec::new());
        for at in collected {
            let (input, one) = (&self.inputs[*at], &self.planned[*at]);
            let MessagePlan::Collected { digest, arrival } = &one.plan else {
                continue;
            };
            let Some(id) = ids.get(&digest_key(input, digest, self.rules)) else {
                continue;
            };
            of_message.insert(*at, *id);
            if matches!(arrival, Arrival::Joins(_)) {
                items.push((*id, one.job_id, Json(input.args.data.clone())));
            }
        }
        query(ADD_ITEMS)
            .bind(items.iter().map(|item| item.0).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.1).collect::<Vec<_>>())
            .bind(
                items
                    .iter()
                    .map(|item| item.2.clone())
                    .collect::<Vec<Json<Value>>>(),
            )
            .bind(vec![sql_time(self.now); items.len()])
            .execute(connection)
            .await?;
        Ok(of_message)
    }

    async fn hold(&self, connection: &mut PgConnection, held: &[usize]) -> Result<(), Error> {
        if held.is_empty() {
            return Ok(());
        }
        let until = |at: &usize| {
            let until = self.planned[*at].plan.planned_at(self.now);
            sql_time(until.unwrap_or(self.now))
        };
        query(HOLD)
            .bind(
                held.iter()
                    .map(|at| self.planned[*at].job_id)
                    .collect::<Vec<_>>(),
            )
            .bind(held.iter().map(until).collect::<Vec<_>>())
            .execute(&mut *connection)
            .await?;
        let mut more: HashMap<(String, i64), i64> = HashMap::new();
        for at in held {
            if let Some(quarter) = quiet_quarter(&self.planned[*at].plan) {
                let throttle = self.inputs[*at].message.throttle.clone();
                *more.entry((throttle, quarter)).or_default() += 1;
            }
        }
        if !more.is_empty() {
            query(COUNT_CROWD)
                .bind(more.keys().map(|key| key.0.clone()).collect::<Vec<_>>())
                .bind(more.keys().map(|key| key.1).collect::<Vec<_>>())
                .bind(more.values().copied().collect::<Vec<_>>())
                .execute(connection)
                .await?;
        }
        Ok(())
    }

    async fn end(
        &self,
        connection: &mut PgConnection,
        ended: &[(usize, &'static str, String)],
    ) -> Result<(), Error> {
        if ended.is_empty() {
            return Ok(());
        }
        let known = |at: usize| {
            let to = self.inputs[at].to.as_ref()?;
            Some(crate::recipient::address::suppression_digest(
                to.channel(),
                to.identity(),
            ))
        };
        let address = |at: usize| {
            self.inputs[at]
                .to
                .as_ref()
                .map(|to| to.address().to_owned())
        };
        query(END)
            .bind(
                ended
                    .iter()
                    .map(|one| self.planned[one.0].job_id)
                    .collect::<Vec<_>>(),
            )
            .bind(
                ended
                    .iter()
                    .map(|one| delivery_state(one.1))
                    .collect::<Vec<_>>(),
            )
            .bind(ended.iter().map(|one| one.1).collect::<Vec<_>>())
            .bind(ended.iter().map(|one| one.2.as_str()).collect::<Vec<_>>())
            .bind(ended.iter().map(|one| address(one.0)).collect::<Vec<_>>())
            .bind(ended.iter().map(|one| known(one.0)).collect::<Vec<_>>())
            .execute(&mut *connection)
            .await?;
        // A message that ended unsent gives its claim back.
        let unsent: Vec<i64> = ended
            .iter()
            .filter(|one| one.1 != "collected" && self.has_claim[one.0])
            .map(|one| self.planned[one.0].job_id)
            .collect();
        if !unsent.is_empty() {
            super::attempts::give_back_claims(connection, &unsent).await?;
        }
        Ok(())
    }

    /// Marks the claims of items, because an equal event soon after is a duplicate of them.
    async fn mark_collected(
        &self,
        connection: &mut PgConnection,
        ended: &[(usize, &'static str, String)],
    ) -> Result<(), Error> {
        let collected: Vec<i64> = ended
            .iter()
            .filter(|one| one.1 == "collected" && self.has_claim[one.0])
            .map(|one| self.planned[one.0].job_id)
            .collect();
        if !collected.is_empty() {
            query(MARK).bind(collected).execute(connection).await?;
        }
        Ok(())
    }

    /// Records the plans that somebody may ask for, or that took something.
    async fn record(
        &self,
        connection: &mut PgConnection,
        digest_ids: &HashMap<usize, i64>,
    ) -> Result<(), Error> {
        let rows: Vec<PlanRow<'_>> = self
            .planned
            .iter()
            .enumerate()
            .filter(|(at, one)| {
                let was_recorded = self.inputs[*at].message.planned_at.is_some();
                one.plan != MessagePlan::Send || self.has_claim[*at] || was_recorded
            })
            .map(|(at, one)| PlanRow {
                job_id: one.job_id,
                recipient: self.inputs[at].recipient.to_hex(),
                planned: one,
                planned_at: one.plan.planned_at(self.now),
                content: self.has_claim[at].then_some(self.inputs[at].content),
                digest_id: digest_ids.get(&at).copied(),
            })
            .collect();
        write_rows(connection, &rows).await
    }
}

/// A row of a plan.
pub(super) struct PlanRow<'a> {
    pub job_id: i64,
    pub recipient: String,
    pub planned: &'a PlannedMessage,
    pub planned_at: Option<Timestamp>,
    pub content: Option<i64>,
    pub digest_id: Option<i64>,
}

/// Writes plans over those that are recorded.
pub(super) async fn write_rows(
    connection: &mut PgConnection,
    rows: &[PlanRow<'_>],
) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let parts: Vec<PlanParts> = rows.iter().map(|row| parts_of(&row.planned.plan)).collect();
    query(RECORD_PLANS)
        .bind(rows.iter().map(|row| row.job_id).collect::<Vec<_>>())
        .bind(
            rows.iter()
                .map(|row| row.recipient.as_str())
                .collect::<Vec<_>>(),
        )
        .bind(parts.iter().map(|part| part.state).collect::<Vec<_>>())
        .bind(parts.iter().map(|part| part.gate).collect::<Vec<_>>())
        .bind(
            parts
                .iter()
                .map(|part| part.rule.as_str())
                .collect::<Vec<_>>(),
        )
        .bind(parts.iter().map(|part| part.reason).collect::<Vec<_>>())
        .bind(
            parts
                .iter()
                .map(|part| Json(part.holds.clone()))
                .collect::<Vec<_>>(),
        )
        .bind(
            parts
                .iter()
                .map(|part| part.until.map(sql_time))
                .collect::<Vec<_>>(),
        )
        .bind(
            rows.iter()
                .map(|row| row.planned_at.map(sql_time))
                .collect::<Vec<_>>(),
        )
        .bind(parts.iter().map(|part| part.coalesces).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.content).collect::<Vec<_>>())
        .bind(
            rows.iter()
                .map(|row| row.planned.duplicate_of)
                .collect::<Vec<_>>(),
        )
        .bind(rows.iter().map(|row| row.digest_id).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// The columns of a plan.
struct PlanParts {
    state: &'static str,
    gate: &'static str,
    rule: String,
    reason: &'static str,
    holds: Value,
    until: Option<Timestamp>,
    coalesces: bool,
}

fn parts_of(plan: &MessagePlan) -> PlanParts {
    let parts = |state, gate: &'static str, rule: &str| PlanParts {
        state,
        gate,
        rule: rule.to_owned(),
        reason: "",
        holds: json!([]),
        until: None,
        coalesces: false,
    };
    match plan {
        MessagePlan::Send => parts("sending", "", ""),
        MessagePlan::Held {
            holds, coalesces, ..
        } => {
            let last = holds.last();
            let each = holds.iter().map(|hold| {
                json!({"gate": hold.gate.as_str(), "rule": hold.rule, "until": hold.until.to_string()})
            });
            PlanParts {
                holds: each.collect(),
                until: last.map(|hold| hold.until),
                coalesces: *coalesces,
                ..parts(
                    "held",
                    last.map_or("", |hold| hold.gate.as_str()),
                    last.map_or("", |hold| hold.rule.as_str()),
                )
            }
        }
        MessagePlan::Collected { digest, arrival } => match arrival {
            Arrival::Leads(_) => parts("sending", "", ""),
            Arrival::Joins(open) => PlanParts {
                until: Some(open.closes_at),
                ..parts("collected", MessageGate::Digest.as_str(), digest)
            },
        },
        MessagePlan::Ended { gate, reason, rule } => PlanParts {
            reason: reason.as_str(),
            ..parts("ended", gate.as_str(), rule)
        },
        MessagePlan::Refused { rule, reset_at } => PlanParts {
            reason: UnsentReason::Capped.as_str(),
            until: Some(*reset_at),
            ..parts("ended", MessageGate::Caps.as_str(), rule)
        },
    }
}

/// Returns the second that a message reserves in its lists; `None` if it takes none.
fn reserved_second(plan: &MessagePlan, now: Timestamp) -> Option<i64> {
    match plan {
        MessagePlan::Send
        | MessagePlan::Collected {
            arrival: Arrival::Leads(_),
            ..
        } => Some(crate::recipient::caps::noted_at(now)),
        MessagePlan::Held { reserve_s, .. } => Some(*reserve_s),
        _ => None,
    }
}

/// Returns the quarter of an hour in which the quiet hours of a held message end.
pub(super) fn quiet_quarter(plan: &MessagePlan) -> Option<i64> {
    let MessagePlan::Held { holds, .. } = plan else {
        return None;
    };
    let quiet = holds
        .iter()
        .rfind(|hold| hold.gate == MessageGate::QuietHours)?;
    Some(quiet.until.as_second().div_euclid(BUCKET_S))
}

/// Returns the key of the digest of a type into which a message goes.
pub(super) fn digest_key(input: &GateInput, name: &str, rules: &RecipientRules) -> DigestKey {
    let per_actor = rules.digest(name).is_some_and(|kind| kind.per_actor);
    let actor = input.args.fields.actor.clone().filter(|_| per_actor);
    (name.to_owned(), input.recipient, actor.unwrap_or_default())
}

/// Returns the reason of a message that ended, as it is recorded.
fn state_of(reason: UnsentReason) -> &'static str {
    reason.as_str()
}

/// Returns the state of the delivery of a message that ended for a reason.
fn delivery_state(reason: &'static str) -> &'static str {
    match reason {
        "expired" => "failed",
        other => other,
    }
}

fn get<'r, T>(row: &'r sqlx::postgres::PgRow, column: &str) -> Result<T, sqlx::Error>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    sqlx::Row::try_get(row, column)
}
