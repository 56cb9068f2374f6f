//! Writes what the gates found: messages become ready, scheduled, items, or end.

use std::collections::{BTreeSet, HashMap};

use jiff::SignedDuration;
use sqlx::PgConnection;

use super::attempts::{GIVE_BACK, MARK, settle_claims};
use super::copy::{COPIED_MIN, copy};
use super::ends::{EndedMessage, end_messages};
use super::plan_rows::{PlanRow, write_rows};
use super::plans::{PlanBatch, digest_key, quiet_quarter, reserved_second};
use super::reservations::{NewReservation, reserve};
use super::rows::{ClaimKey, DigestKey, GateInput, sql_time, stored_key};
use super::statement::query;
use crate::jobs::Error;
use crate::recipient::address::RecipientKey;
use crate::recipient::digest::{Arrival, COALESCED, OpenDigest};
use crate::recipient::gates::MessagePlan;
use crate::recipient::rules::OverCap;

// The lanes are named to all workers: a job with an old id that came to its lane just now would be
// found late.
pub(super) const SEND: &str = "
with removed as (
    delete from flyball.scheduled where job_id = any($1) returning *
),
moved as (
    insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
    -- No `on conflict`, which writes a record of the log more for each row.
    select r.lane_id, r.priority, r.job_id, r.attempt, r.cost, r.holds_unique from removed r
    where not exists (
        select from flyball.ready h where h.lane_id = r.lane_id and h.priority = r.priority and h.job_id = r.job_id
    )
),
lanes as (
    select lane_id, min(priority) as urgency, row_number() over (order by min(priority), lane_id) / 370 as page
    from removed group by lane_id
)
select count(pg_notify('flyball', page.lanes))
from (select string_agg(lane_id::text, ',' order by urgency, lane_id) as lanes from lanes group by page) page";

// As SEND, but the rows of the queue are returned as the text that a copy takes.
pub(super) const TAKE_OUT: &str = "
with removed as (
    delete from flyball.scheduled where job_id = any($1) returning *
),
lanes as (
    select lane_id, min(priority) as urgency, row_number() over (order by min(priority), lane_id) / 370 as page
    from removed group by lane_id
),
told as materialized (
    select count(pg_notify('flyball', page.lanes))
    from (select string_agg(lane_id::text, ',' order by urgency, lane_id) as lanes from lanes group by page) page
)
select string_agg(concat_ws(e'\\t', r.lane_id, r.priority, r.job_id, r.attempt, r.cost, r.holds_unique), e'\\n'
    order by r.lane_id, r.priority, r.job_id)
from removed r
cross join told
where not exists (
    select from flyball.ready h where h.lane_id = r.lane_id and h.priority = r.priority and h.job_id = r.job_id
)";

const COPY_READY: &str =
    "copy flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique) from stdin";

// A message of a tenant is counted by the limits of its tenant when it is released, so it waits for
// them then, whatever it took when it was accepted.
pub(super) const HOLD: &str = "
with held as materialized (
    select j.id, a.until, s.ctid as tid,
        case when a.coalesces then s.priority - 4 else flyball.turn_of(j.throttle, s.priority, false) end as turn,
        case when j.tenant <> '' then flyball.lane_of(flyball.admission_throttle(j.tenant), j.module) end as admission_lane,
        j.admission_lane is null as was_admitted
    from unnest($1::bigint[], $2::timestamptz[], $3::boolean[]) as a(job_id, until, coalesces)
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

pub(super) const OPEN_DIGESTS: &str = "
insert into flyball.digest as d
    (tenant, module, type, recipient, key, recipient_id, category, channel, address, throttle, throttle_key, opened_at, closes_at, items)
select * from unnest($1::text[], $2::text[], $3::text[], $4::text[]::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
    $10::text[], $11::text[], $12::timestamptz[], $13::timestamptz[], $14::int[])
    as a(tenant, module, type, recipient, key, recipient_id, category, channel, address, throttle, throttle_key, opened_at, closes_at, items)
order by 3, 4, 5
on conflict (type, recipient, key) do update
set items = d.items + excluded.items, opened_at = excluded.opened_at, closes_at = excluded.closes_at,
    last_at = clock_timestamp(), address = coalesce(excluded.address, d.address), throttle = excluded.throttle
returning d.type, uuid_send(d.recipient) as recipient, d.key, d.id";

pub(super) const ADD_ITEMS: &str = "
insert into flyball.digest_item (digest_id, job_id, item, at)
select a.digest_id, a.job_id, j.args, $3
from unnest($1::bigint[], $2::bigint[]) as a(digest_id, job_id)
cross join lateral (select args from flyball.job where id = a.job_id limit 1) j";

pub(super) const COUNT_CROWD: &str = "
insert into flyball.held_crowd as c (throttle, quarter, messages)
select * from unnest($1::text[], $2::bigint[], $3::bigint[]) as a(throttle, quarter, messages) order by 1, 2
on conflict (throttle, quarter) do update set messages = c.messages + excluded.messages";

/// The time for which every delivery is kept at least.
const DELIVERIES_KEPT: SignedDuration = SignedDuration::from_hours(24);

/// A digest that gets items: its key, its newest item, its state, and the number of new items.
type GrowingDigest<'a> = (&'a DigestKey, &'a GateInput, OpenDigest, i32);

impl PlanBatch<'_> {
    pub(super) async fn write(
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
                    ended.push((at, reason.as_str(), rule.clone()));
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
        send(connection, sending).await
    }

    async fn reserve(&self, connection: &mut PgConnection) -> Result<(), Error> {
        let mut rows: Vec<NewReservation> = Vec::new();
        for (at, one) in self.planned.iter().enumerate() {
            let Some(second) = reserved_second(&one.plan, self.now) else {
                continue;
            };
            let lists = self.lists[at].iter();
            rows.extend(lists.map(|list| (self.inputs[at].stored(list), second, one.job_id)));
        }
        // One that SQL accepted under a cap that refuses has a reservation from then.
        let refuses = |at: usize| {
            let mut lists = self.lists[at].iter();
            lists.any(|list| list.over == OverCap::Refuse)
        };
        let had: Vec<(RecipientKey, i64)> = (self.inputs.iter().enumerate())
            .filter(|(at, input)| input.message.planned_at.is_some() || refuses(*at))
            .map(|(_, input)| (input.recipient, input.message.job_id))
            .collect();
        reserve(connection, &rows, &had).await
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
        let open: Vec<GrowingDigest<'_>> = adding
            .iter()
            .filter_map(|(key, (at, more))| {
                Some((key, &self.inputs[*at], *self.digests.get(key)?, *more))
            })
            .collect();
        let texts = |of: &dyn Fn(&GrowingDigest<'_>) -> String| {
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
            .bind(texts(&|one| self.digest_category(&one.0.0, one.1)))
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
            let key = stored_key(row)?;
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
                items.push((*id, one.job_id));
            }
        }
        query(ADD_ITEMS)
            .bind(items.iter().map(|item| item.0).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.1).collect::<Vec<_>>())
            .bind(sql_time(self.now))
            .execute(connection)
            .await?;
        Ok(of_message)
    }

    /// Returns the category of a digest: its type's, or that of the messages that were held.
    fn digest_category(&self, name: &str, item: &GateInput) -> String {
        match self.rules.digest(name) {
            Some(kind) if name != COALESCED => kind.category.clone(),
            _ => item.args.category.clone(),
        }
    }

    async fn hold(&self, connection: &mut PgConnection, held: &[usize]) -> Result<(), Error> {
        if held.is_empty() {
            return Ok(());
        }
        let until = |at: &usize| {
            let until = self.planned[*at].plan.planned_at(self.now);
            sql_time(until.unwrap_or(self.now))
        };
        // Messages that may become one are planned again when they wake.
        let coalesces = |at: &usize| {
            let plan = &self.planned[*at].plan;
            matches!(
                plan,
                MessagePlan::Held {
                    coalesces: true,
                    ..
                }
            )
        };
        query(HOLD)
            .bind(
                held.iter()
                    .map(|at| self.planned[*at].job_id)
                    .collect::<Vec<_>>(),
            )
            .bind(held.iter().map(until).collect::<Vec<_>>())
            .bind(held.iter().map(coalesces).collect::<Vec<_>>())
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
        let each = ended.iter().map(|(at, reason, rule)| EndedMessage {
            input: &self.inputs[*at],
            reason,
            rule,
        });
        end_messages(connection, each.collect(), self.now).await?;
        // A message that ended unsent gives its claim back.
        let unsent = self.claims_of(ended, |reason| reason != "collected");
        settle_claims(connection, GIVE_BACK, &unsent).await
    }

    /// Marks the claims of items, because an equal event soon after is a duplicate of them. As long
    /// as every delivery is kept, that of the item says so by itself.
    async fn mark_collected(
        &self,
        connection: &mut PgConnection,
        ended: &[(usize, &'static str, String)],
    ) -> Result<(), Error> {
        let mut collected = self.claims_of(ended, |reason| reason == "collected");
        let outlives = |input: &GateInput| {
            let window = self.rules.category(&input.args.category).dedup_window;
            window > DELIVERIES_KEPT
        };
        let marked = self.inputs.iter().filter(|input| outlives(input));
        let marked: BTreeSet<i64> = marked.map(|input| input.message.job_id).collect();
        collected.retain(|key| marked.contains(&key.job_id));
        settle_claims(connection, MARK, &collected).await
    }

    /// Returns the claims of messages that ended for such a reason.
    fn claims_of(
        &self,
        ended: &[(usize, &'static str, String)],
        counts: impl Fn(&str) -> bool,
    ) -> Vec<ClaimKey> {
        let ended = ended
            .iter()
            .filter(|one| counts(one.1) && self.has_claim[one.0]);
        ended.map(|one| self.inputs[one.0].claim_key()).collect()
    }

    /// Records the plans of messages that do not go at once, or did not before.
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
                one.plan != MessagePlan::Send || was_recorded
            })
            .map(|(at, one)| PlanRow {
                job_id: one.job_id,
                recipient: self.inputs[at].recipient.to_hex(),
                planned: one,
                planned_at: one.plan.planned_at(self.now),
                digest_id: digest_ids.get(&at).copied(),
                now: self.now,
                is_new: !self.inputs[at].message.is_recorded,
            })
            .collect();
        write_rows(connection, &rows).await
    }
}

/// Makes messages ready.
async fn send(connection: &mut PgConnection, jobs: Vec<i64>) -> Result<(), Error> {
    if jobs.len() < COPIED_MIN {
        if !jobs.is_empty() {
            query(SEND).bind(jobs).execute(connection).await?;
        }
        return Ok(());
    }
    let rows: Option<String> = sqlx::query_scalar(TAKE_OUT)
        .persistent(false)
        .bind(jobs)
        .fetch_one(&mut *connection)
        .await?;
    match rows {
        Some(rows) => Ok(copy(connection, COPY_READY, rows).await?),
        None => Ok(()),
    }
}

fn get<'r, T>(row: &'r sqlx::postgres::PgRow, column: &str) -> Result<T, sqlx::Error>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    sqlx::Row::try_get(row, column)
}
