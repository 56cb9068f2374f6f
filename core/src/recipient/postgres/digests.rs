//! The closer: ends digests that are due, in two statements of one transaction.
//!
//! The first takes the digests, the second their items: it sees what every planner wrote that had
//! the digest's row before. In one statement items would be lost, because its snapshot is older than
//! its locks. A digest with other items than were counted is not closed.

use std::collections::{HashMap, HashSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};
use sqlx::types::Json;
use sqlx::{Row, query};

use super::copy::CopiedRows;
use super::crowds::count_crowd;
use super::digest_messages::{DigestMessages, DueDigest, NewDigestMessage};
use super::due_digests::{DUE, DUE_ONE, due};
use super::messages::GatedMessage;
use super::plans::{Capacity, ListUse, PlanBatch, give_way_soon};
use super::queued_digests::{DigestPlace, QUEUED_RULE, looks_again, queued};
use super::rows::{inputs, sql_time};
use super::statement::query_unprepared;
use super::taken_items::{ItemsWanted, TakenItems, item_bytes, take_items, take_part};
use super::unwanted_items::{ItemChoices, UnwantedItem, count_fewer, take_unwanted};
use crate::jobs::Error;
use crate::jobs::check::MAX_ARGS_BYTES;
use crate::postgres::{Db, Transaction};
use crate::providers::Channel;
use crate::recipient::candidate::{NORMAL, Origin};
use crate::recipient::crowd::crowd_quarter;
use crate::recipient::digest::{DigestType, later};
use crate::recipient::fields::{GateFields, GatedArgs};
use crate::recipient::gate::{MessageGate, UnsentReason};
use crate::recipient::gates::MessagePlan;
use crate::recipient::rules::RecipientRules;

/// The most items whose contents one transaction reads.
const ITEMS_MAX: usize = 10_000;

/// The bytes of items after which a transaction reads no further digest, and a part ends.
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// The time after which a digest whose type is gone is looked at again.
const UNKNOWN_TYPE: SignedDuration = SignedDuration::from_secs(60);

pub(super) const PUT_OFF: &str = "
update flyball.digest d
set closes_at = a.until, gate = a.gate, rule = a.rule
from unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::text[]) as a(id, until, gate, rule)
where d.id = a.id";

pub(super) const CLOSE: &str = "
delete from flyball.digest where id = any($1)";

// The items were pending until now; their messages are instead of them.
pub(super) const NO_LONGER_PENDING: &str = "
delete from flyball.pending p using unnest($1::text[], $2::bigint[]) as a(tenant, job_id)
where p.tenant = a.tenant and p.job_id = a.job_id";

pub(super) const ENQUEUE: &str = "
select e.job_id
from flyball.enqueue_rows_as(case when $1 <> '' then 'tenant:' || $1 else '' end, true,
    array_fill('notification'::text, array[cardinality($2::jsonb[])]), $2::jsonb[], $3::text[], $4::text[],
    array_fill($5::int, array[cardinality($2::jsonb[])]), array_fill(null::timestamptz, array[cardinality($2::jsonb[])]),
    array_fill(10, array[cardinality($2::jsonb[])]), array_fill(null::text, array[cardinality($2::jsonb[])]), array_fill(null::float8, array[cardinality($2::jsonb[])]),
    array_fill(1::float8, array[cardinality($2::jsonb[])]), array_fill(null::text, array[cardinality($2::jsonb[])]),
    array_fill(null::float8, array[cardinality($2::jsonb[])]), array_fill(null::float8, array[cardinality($2::jsonb[])]),
    array_fill(null::float8, array[cardinality($2::jsonb[])]), array_fill(false, array[cardinality($2::jsonb[])]), $6)
    with ordinality as e(job_id, duplicate, replaced, backlog, n)
order by e.n";

const COPY_ORIGINS: &str = "copy flyball.message_plan
    (job_id, recipient, origin, digest_id, digest_type, digest_key, since) from stdin (format binary)";

// An item whose digest does not go ends for the same reason. An equal message that comes later is
// no duplicate of one that nobody sees.
pub(super) const END_ITEMS: &str = "
with ended as (
    update flyball.delivery d
    set state = case when a.reason in ('expired', 'cancelled') then 'failed' else a.reason end, last_outcome = a.reason, reason = a.rule,
        updated_at = clock_timestamp()
    from unnest($1::bigint[], $2::text[], $3::text[]) as a(job_id, reason, rule)
    where d.job_id = a.job_id and d.state = 'collected'
    returning d.job_id
)
delete from flyball.dedup d
using (
    select k.claim, p.job_id
    from ended e
    cross join lateral (select h.recipient, h.job_id from flyball.message_plan h where h.job_id = e.job_id limit 1) p
    cross join lateral flyball.claims_of(p.recipient, array[p.job_id]) as k(claim)
) c
where d.claim = c.claim and d.job_id = c.job_id";

pub(super) const REOPEN: &str = "
insert into flyball.digest
    (tenant, module, type, recipient, key, recipient_id, category, channel, address, throttle, throttle_key, closes_at, items)
select * from unnest($1::text[], $2::text[], $3::text[], $4::text[]::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
    $10::text[], $11::text[], $12::timestamptz[], array_fill(0, array[cardinality($1::text[])]))
on conflict do nothing";

/// A digest that closes, and its type.
type Closing<'a> = (&'a DueDigest, &'a DigestType);

/// The result of one poll for digests that are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClosedDigests {
    /// The number of digests that were looked at.
    pub seen: usize,
    /// The number of digests that were closed.
    pub closed: usize,
    /// The jobs of their messages.
    pub jobs: Vec<i64>,
    /// True if there were more than were looked at.
    pub is_cut: bool,
}

impl DueDigest {
    fn count(&self) -> usize {
        self.items.unsigned_abs() as usize
    }

    /// Returns the number of items whose contents its close reads.
    fn read_max(&self, rules: &RecipientRules) -> usize {
        let kind = rules.digest(&self.type_name);
        kind.map_or(0, |kind| kind.shown_max(self.count()))
    }

    /// Returns the most items of a part, if its items have so many bytes that it closes in parts.
    fn part_max(&self, kind: &DigestType, bytes: usize) -> Option<usize> {
        if kind.shown_max(self.count()) <= ITEMS_MAX && bytes <= BYTES_MAX {
            return None;
        }
        let most = kind.part_max(self.count());
        Some(most.min(ITEMS_MAX)).filter(|most| *most > 0)
    }

    fn place(&self) -> DigestPlace<'_> {
        DigestPlace {
            id: self.id,
            type_name: &self.type_name,
            recipient: &self.recipient,
            key: &self.key,
        }
    }
}

/// Closes digests that are due, at most `most` and as many as have [`ITEMS_MAX`] items and
/// [`BYTES_MAX`] bytes to read. One that may not go out now stays open and collects, and one that
/// is larger closes in parts.
pub async fn close_due(
    db: &Db,
    rules: &RecipientRules,
    capacity: Capacity<'_>,
    most: i64,
) -> Result<ClosedDigests, Error> {
    let mut transaction = db.begin().await?;
    let closed = close(&mut transaction, (DUE, most), rules, capacity).await;
    transaction.end(closed).await
}

/// Closes one digest if it is due, and does not wait for long for what somebody else has locked.
pub async fn close_one(
    db: &Db,
    rules: &RecipientRules,
    capacity: Capacity<'_>,
    digest: i64,
) -> Result<ClosedDigests, Error> {
    let mut transaction = db.begin().await?;
    give_way_soon(&mut transaction).await?;
    let closed = close(&mut transaction, (DUE_ONE, digest), rules, capacity).await;
    transaction.end(closed).await
}

/// The digests of one step, by what happens to them.
#[derive(Default)]
struct DueDecisions<'a> {
    closing: Vec<Closing<'a>>,
    /// The digests that end unsent, with the reason and the rule.
    ending: Vec<(&'a DueDigest, &'static str, &'a str)>,
    /// The digests that stay open, with the time of the next look, the gate and the rule.
    waiting: Vec<(&'a DueDigest, Timestamp, &'static str, &'a str)>,
    /// The numbers of digests that a gate keeps from now on, by throttle and quarter of an hour.
    crowds: HashMap<(String, i64), i64>,
}

impl<'a> DueDecisions<'a> {
    fn of(
        due: &'a [DueDigest],
        rules: &'a RecipientRules,
        plans: &'a HashMap<i64, MessagePlan>,
        queued: &HashSet<i64>,
        now: Timestamp,
    ) -> Self {
        let mut decisions = Self::default();
        for digest in due {
            let kind = rules.digest(&digest.type_name);
            match (kind, plans.get(&digest.id)) {
                (None, _) => decisions.wait(digest, later(now, UNKNOWN_TYPE), "", ""),
                (Some(kind), _) if digest.items == 0 => decisions.closing.push((digest, kind)),
                (Some(_), Some(plan @ MessagePlan::Held { holds, .. })) => {
                    // One that was kept open before is counted already.
                    if let Some(quarter) = crowd_quarter(plan).filter(|_| digest.gate.is_empty()) {
                        let place = (digest.throttle.clone(), quarter);
                        *decisions.crowds.entry(place).or_default() += 1;
                    }
                    if let Some(last) = holds.last() {
                        decisions.wait(digest, last.until, last.gate.as_str(), &last.rule);
                    }
                }
                (Some(_), Some(MessagePlan::Ended { reason, rule, .. })) => {
                    let ended = (digest, reason.as_str(), rule.as_str());
                    decisions.ending.push(ended);
                }
                (Some(kind), _) if queued.contains(&digest.id) => {
                    let until = later(now, looks_again(kind));
                    decisions.wait(digest, until, MessageGate::Pool.as_str(), QUEUED_RULE);
                }
                (Some(kind), _) => decisions.closing.push((digest, kind)),
            }
        }
        decisions
    }

    fn wait(&mut self, digest: &'a DueDigest, until: Timestamp, gate: &'static str, rule: &'a str) {
        self.waiting.push((digest, until, gate, rule));
    }
}

async fn close(
    transaction: &mut Transaction,
    which: (&'static str, i64),
    rules: &RecipientRules,
    capacity: Capacity<'_>,
) -> Result<ClosedDigests, Error> {
    let (mut due, now) = due(transaction, which).await?;
    let found = due.len();
    let bytes = whole_bytes(transaction, &due, rules).await?;
    cut(&mut due, &bytes, rules);
    if due.is_empty() {
        return Ok(ClosedDigests::default());
    }
    let (plans, choices) = plans(transaction, &due, rules, capacity, now).await?;
    let unwanted = take_unwanted(transaction, &mut due, &choices, rules).await?;
    let places: Vec<DigestPlace<'_>> = due.iter().map(DueDigest::place).collect();
    let queued = queued(transaction, &places).await?;
    let DueDecisions {
        mut closing,
        ending,
        waiting,
        crowds,
    } = DueDecisions::of(&due, rules, &plans, &queued, now);
    count_crowd(transaction, &crowds).await?;
    put_off(transaction, &waiting).await?;
    let mut parted: Vec<(Closing<'_>, usize)> = Vec::new();
    closing.retain(|(digest, kind)| {
        let bytes = bytes.get(&digest.id).copied().unwrap_or_default();
        let most = digest.part_max(kind, bytes);
        parted.extend(most.map(|most| ((*digest, *kind), most)));
        most.is_none()
    });
    let mut items = take_closed(transaction, &closing, &ending).await?;
    for ((digest, kind), most) in parted.iter().copied() {
        let is_alone = kind.goes_alone(digest.count());
        let (first, found) = take_part(transaction, digest.id, most, BYTES_MAX, is_alone).await?;
        check_count(digest, found, most)?;
        let fewer = i32::try_from(first.jobs.len()).unwrap_or(i32::MAX);
        count_fewer(transaction, digest.id, fewer).await?;
        items.insert(digest.id, first);
    }
    no_longer_pending(transaction, &due, &items, &unwanted).await?;
    let opted_out = UnsentReason::OptedOut.as_str();
    let mut ended: Vec<(i64, &str, &str)> = unwanted
        .iter()
        .map(|item| (item.job_id, opted_out, item.rule.as_str()))
        .collect();
    for (digest, reason, rule) in &ending {
        let taken = items.remove(&digest.id).unwrap_or_default();
        ended.extend(taken.jobs.iter().map(|job| (*job, *reason, *rule)));
    }
    let mut made = DigestMessages::default();
    for (digest, kind) in closing.iter().chain(parted.iter().map(|one| &one.0)) {
        let taken = items.remove(&digest.id).unwrap_or_default();
        made.add(digest, kind, taken, now);
    }
    let expired = UnsentReason::Expired.as_str();
    ended.extend(made.expired.iter().map(|job| (*job, expired, "")));
    end_items(transaction, &ended).await?;
    reopen(transaction, &closing, now).await?;
    let jobs = enqueue(transaction, &made.messages, now).await?;
    Ok(ClosedDigests {
        seen: due.len(),
        closed: closing.len() + ending.len(),
        jobs,
        is_cut: due.len() < found || !parted.is_empty(),
    })
}

/// Returns the bytes of the items of those digests of which more is read than one message holds.
/// One with very many items closes in parts in any case.
async fn whole_bytes(
    connection: &mut Transaction,
    due: &[DueDigest],
    rules: &RecipientRules,
) -> Result<HashMap<i64, usize>, Error> {
    let is_whole = |digest: &&DueDigest| {
        let kind = rules.digest(&digest.type_name);
        kind.is_some_and(|kind| !kind.is_one_message(digest.count()))
            && (1..=ITEMS_MAX).contains(&digest.count())
    };
    let whole: Vec<i64> = due.iter().filter(is_whole).map(|one| one.id).collect();
    item_bytes(connection, &whole).await
}

/// Leaves the first digests, and at least one, whose contents are few enough to be read at once.
fn cut(due: &mut Vec<DueDigest>, bytes: &HashMap<i64, usize>, rules: &RecipientRules) {
    let (mut items, mut read, mut kept) = (0, 0, 0);
    for digest in due.iter() {
        items += digest.read_max(rules);
        read += bytes.get(&digest.id).copied().unwrap_or_default();
        if (items > ITEMS_MAX || read > BYTES_MAX) && kept > 0 {
            break;
        }
        kept += 1;
    }
    due.truncate(kept);
}

/// Deletes digests, and takes their items: of those that close with the contents that are needed,
/// of those that end without.
async fn take_closed(
    connection: &mut Transaction,
    closing: &[Closing<'_>],
    ending: &[(&DueDigest, &'static str, &str)],
) -> Result<HashMap<i64, TakenItems>, Error> {
    let mut wanted: HashMap<i64, ItemsWanted> = HashMap::new();
    for (digest, kind) in closing {
        let items = kind.shown_max(digest.count());
        // More contents than one message holds are needed only if there are more messages.
        let bytes = match kind.is_one_message(digest.count()) {
            true => MAX_ARGS_BYTES,
            false => usize::MAX,
        };
        let one = ItemsWanted {
            items,
            bytes,
            is_alone: kind.goes_alone(digest.count()),
        };
        wanted.insert(digest.id, one);
    }
    for (digest, ..) in ending {
        wanted.insert(digest.id, ItemsWanted::default());
    }
    let ids: Vec<i64> = wanted.keys().copied().collect();
    query(CLOSE).bind(&ids).execute(&mut *connection).await?;
    let items = take_items(connection, &wanted).await?;
    let due = closing.iter().map(|one| one.0);
    for digest in due.chain(ending.iter().map(|one| one.0)) {
        let found = items.get(&digest.id).map_or(0, |taken| taken.jobs.len());
        check_count(digest, found, digest.count())?;
    }
    Ok(items)
}

/// Refuses to close a digest with other items than were counted.
fn check_count(digest: &DueDigest, found: usize, wanted: usize) -> Result<(), Error> {
    if found == wanted {
        return Ok(());
    }
    let problem = format!(
        "digest {} has {found} items where {wanted} were counted",
        digest.id
    );
    Err(Error::Store(sqlx::Error::Decode(problem.into())))
}

/// Takes digests through the gates, each as one message. Returns the choices of recipients beside,
/// for those that may go.
async fn plans(
    connection: &mut Transaction,
    due: &[DueDigest],
    rules: &RecipientRules,
    capacity: Capacity<'_>,
    now: Timestamp,
) -> Result<(HashMap<i64, MessagePlan>, HashMap<i64, ItemChoices>), Error> {
    let candidate = |digest: &DueDigest| {
        let kind = rules.digest(&digest.type_name)?;
        if digest.items == 0 {
            return None;
        }
        let (_, channel) = Channel::WORDS
            .iter()
            .find(|(word, _)| *word == digest.channel)?;
        let id = Some(digest.recipient_id.clone()).filter(|id| !id.is_empty());
        let actor = Some(digest.key.clone()).filter(|key| kind.per_actor && !key.is_empty());
        let args = GatedArgs {
            channel: *channel,
            to: digest.address.clone(),
            category: digest.category.clone(),
            valid_for_s: None,
            data: Value::Object(Map::new()),
            content: Value::Null,
            fields: GateFields {
                recipient: id,
                template_id: Some(kind.template.clone()),
                actor,
                ..GateFields::default()
            },
        };
        Some(GatedMessage {
            job_id: digest.id,
            module: digest.module.clone(),
            throttle: digest.throttle.clone(),
            throttle_key: digest.throttle_key.clone(),
            origin: Origin::Digest,
            ..GatedMessage::without_job(&digest.tenant, args, now)
        })
    };
    let messages: Vec<GatedMessage> = due.iter().filter_map(candidate).collect();
    let inputs = inputs(connection, messages).await?;
    // The messages of those that close are planned, and get their places, once they are enqueued.
    let lists = ListUse::Foresees;
    let mut batch = PlanBatch::read(connection, inputs, rules, now, lists).await?;
    batch.plan_all(connection, capacity).await?;
    let planned = batch.planned.into_iter();
    let plans: HashMap<i64, MessagePlan> = planned.map(|one| (one.job_id, one.plan)).collect();
    let stays =
        |plan: &MessagePlan| matches!(plan, MessagePlan::Held { .. } | MessagePlan::Ended { .. });
    let choices = batch
        .inputs
        .iter()
        .filter(|input| !plans.get(&input.message.job_id).is_some_and(stays))
        .filter_map(|input| Some((input.message.job_id, ItemChoices::of(input)?)))
        .collect();
    Ok((plans, choices))
}

async fn put_off(
    connection: &mut Transaction,
    waiting: &[(&DueDigest, Timestamp, &'static str, &str)],
) -> Result<(), Error> {
    if waiting.is_empty() {
        return Ok(());
    }
    query_unprepared(PUT_OFF)
        .bind(waiting.iter().map(|one| one.0.id).collect::<Vec<_>>())
        .bind(
            waiting
                .iter()
                .map(|one| sql_time(one.1))
                .collect::<Vec<_>>(),
        )
        .bind(waiting.iter().map(|one| one.2).collect::<Vec<_>>())
        .bind(waiting.iter().map(|one| one.3).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

async fn no_longer_pending(
    connection: &mut Transaction,
    due: &[DueDigest],
    items: &HashMap<i64, TakenItems>,
    unwanted: &[UnwantedItem],
) -> Result<(), Error> {
    let tenants: HashMap<i64, &str> = due
        .iter()
        .map(|digest| (digest.id, digest.tenant.as_str()))
        .collect();
    let taken = items
        .iter()
        .flat_map(|(digest, taken)| taken.jobs.iter().map(move |job| (*digest, *job)));
    let left_out = unwanted.iter().map(|item| (item.digest, item.job_id));
    let rows: Vec<(&str, i64)> = taken
        .chain(left_out)
        .map(|(digest, job)| (tenants.get(&digest).copied().unwrap_or_default(), job))
        .filter(|(tenant, _)| !tenant.is_empty())
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    query(NO_LONGER_PENDING)
        .bind(rows.iter().map(|row| row.0).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.1).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// Ends items, each for a reason by a rule.
async fn end_items(connection: &mut Transaction, rows: &[(i64, &str, &str)]) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    query_unprepared(END_ITEMS)
        .bind(rows.iter().map(|row| row.0).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.1).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.2).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// Opens empty digests after those whose type lets no item go at once soon after another.
async fn reopen(
    connection: &mut Transaction,
    closed: &[Closing<'_>],
    now: Timestamp,
) -> Result<(), Error> {
    let open: Vec<(&DueDigest, Timestamp)> = closed
        .iter()
        .filter(|(digest, _)| digest.items > 0)
        .filter_map(|(digest, kind)| Some((*digest, kind.after_close(now)?.closes_at)))
        .collect();
    if open.is_empty() {
        return Ok(());
    }
    let texts = |of: fn(&DueDigest) -> String| -> Vec<String> {
        open.iter().map(|(digest, _)| of(digest)).collect()
    };
    query(REOPEN)
        .bind(texts(|digest| digest.tenant.clone()))
        .bind(texts(|digest| digest.module.clone()))
        .bind(texts(|digest| digest.type_name.clone()))
        .bind(texts(|digest| digest.recipient.to_hex()))
        .bind(texts(|digest| digest.key.clone()))
        .bind(texts(|digest| digest.recipient_id.clone()))
        .bind(texts(|digest| digest.category.clone()))
        .bind(texts(|digest| digest.channel.clone()))
        .bind(
            open.iter()
                .map(|(digest, _)| digest.address.clone())
                .collect::<Vec<_>>(),
        )
        .bind(texts(|digest| digest.throttle.clone()))
        .bind(texts(|digest| digest.throttle_key.clone()))
        .bind(open.iter().map(|(_, at)| sql_time(*at)).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// Enqueues the messages of closed digests, in the names of their senders.
async fn enqueue(
    connection: &mut Transaction,
    messages: &[NewDigestMessage<'_>],
    now: Timestamp,
) -> Result<Vec<i64>, Error> {
    let mut by_sender: HashMap<(&str, &str), Vec<&NewDigestMessage<'_>>> = HashMap::new();
    for message in messages {
        let sender = (
            message.digest.tenant.as_str(),
            message.digest.module.as_str(),
        );
        by_sender.entry(sender).or_default().push(message);
    }
    let mut jobs = Vec::with_capacity(messages.len());
    for ((tenant, module), messages) in by_sender {
        let texts = |of: &dyn Fn(&NewDigestMessage<'_>) -> String| -> Vec<String> {
            messages.iter().map(|message| of(message)).collect()
        };
        let rows = query(ENQUEUE)
            .bind(tenant)
            .bind(
                messages
                    .iter()
                    .map(|one| Json(&one.args))
                    .collect::<Vec<_>>(),
            )
            .bind(texts(&|one| one.digest.throttle.clone()))
            .bind(texts(&|one| one.digest.throttle_key.clone()))
            .bind(NORMAL)
            .bind(module)
            .fetch_all(&mut *connection)
            .await?;
        let ids: Vec<i64> = rows
            .iter()
            .map(|row| row.try_get(0))
            .collect::<Result<_, _>>()?;
        let mut origins = CopiedRows::default();
        for (id, one) in ids.iter().zip(&messages) {
            origins
                .row()
                .bigint(*id)
                .key(one.digest.recipient)
                .text(one.origin)
                .bigint(one.digest.id)
                .text(&one.digest.type_name)
                .text(&one.digest.key)
                .time(now);
        }
        origins.write(&mut *connection, COPY_ORIGINS).await?;
        jobs.extend(ids);
    }
    Ok(jobs)
}
