//! The closer: ends digests that are due, in two statements of one transaction.
//!
//! The first takes the digests, the second their items: it sees what every planner wrote that had
//! the digest's row before. In one statement items would be lost, because its snapshot is older than
//! its locks. A digest with other items than were counted is not closed.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use jiff_sqlx::Timestamp as SqlTimestamp;
use serde_json::{Map, Value, json};
use sqlx::types::Json;
use sqlx::{PgConnection, Row};

use super::copy::CopiedRows;
use super::messages::GatedMessage;
use super::plans::{Capacity, PlanBatch, give_way_soon};
use super::queued_digests::{DigestPlace, QUEUED_RULE, looks_again, queued};
use super::rows::{inputs, sql_time};
use super::statement::query;
use crate::jobs::Error;
use crate::postgres::{Db, json_or_text};
use crate::providers::Channel;
use crate::recipient::address::RecipientKey;
use crate::recipient::candidate::{NORMAL, Origin};
use crate::recipient::digest::{DigestMessage, DigestType, later};
use crate::recipient::fields::{GateFields, GatedArgs};
use crate::recipient::gate::MessageGate;
use crate::recipient::gates::MessagePlan;
use crate::recipient::rules::RecipientRules;

/// The time after which a digest whose type is gone is looked at again.
const UNKNOWN_TYPE: SignedDuration = SignedDuration::from_secs(60);

pub(super) const DUE: &str = "
select d.*, uuid_send(d.recipient) as recipient_key, clock_timestamp() as now
from flyball.digest d
where d.closes_at <= now()
order by d.closes_at
limit $1
for update skip locked";

pub(super) const PUT_OFF: &str = "
update flyball.digest d
set closes_at = a.until, gate = a.gate, rule = a.rule
from unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::text[]) as a(id, until, gate, rule)
where d.id = a.id";

pub(super) const CLOSE: &str = "
delete from flyball.digest where id = any($1)";

pub(super) const TAKE_ITEMS: &str = "
delete from flyball.digest_item where digest_id = any($1) returning digest_id, job_id, item";

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
    select p.recipient, p.job_id
    from ended e
    cross join lateral (select h.recipient, h.job_id from flyball.message_plan h where h.job_id = e.job_id limit 1) p
) c
where d.recipient = c.recipient and d.job_id = c.job_id";

pub(super) const REOPEN: &str = "
insert into flyball.digest
    (tenant, module, type, recipient, key, recipient_id, category, channel, address, throttle, throttle_key, closes_at, items)
select * from unnest($1::text[], $2::text[], $3::text[], $4::text[]::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
    $10::text[], $11::text[], $12::timestamptz[], array_fill(0, array[cardinality($1::text[])]))
on conflict do nothing";

pub(super) const PUT_FIRST_OFF: &str = "
update flyball.digest set closes_at = clock_timestamp() + interval '1 minute', rule = $1
where id = (select id from flyball.digest where closes_at <= now() order by closes_at limit 1 for update skip locked)";

/// The result of one look for digests that are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClosedDigests {
    /// The number of digests that were looked at.
    pub seen: usize,
    /// The number of digests that were closed.
    pub closed: usize,
    /// The jobs of their messages.
    pub jobs: Vec<i64>,
}

/// A digest that is due.
struct DueDigest {
    id: i64,
    tenant: String,
    module: String,
    type_name: String,
    recipient: RecipientKey,
    key: String,
    recipient_id: String,
    category: String,
    channel: String,
    address: Option<String>,
    throttle: String,
    throttle_key: String,
    items: i32,
}

impl DueDigest {
    fn place(&self) -> DigestPlace<'_> {
        DigestPlace {
            id: self.id,
            type_name: &self.type_name,
            recipient: &self.recipient,
            key: &self.key,
        }
    }
}

/// An item of a digest.
struct DigestItem {
    job_id: i64,
    args: Value,
}

/// A message of a closed digest.
struct NewDigestMessage<'a> {
    digest: &'a DueDigest,
    args: Value,
    origin: &'static str,
}

/// Closes digests that are due, at most `most`. One that may not go out now stays open and collects.
///
/// A digest that is closed alone does not wait for long for what somebody else has locked.
pub async fn close_due(
    db: &Db,
    rules: &RecipientRules,
    capacity: Capacity<'_>,
    most: i64,
) -> Result<ClosedDigests, Error> {
    let mut transaction = db.begin().await?;
    if most == 1 {
        give_way_soon(&mut transaction).await?;
    }
    let (due, now) = due(&mut transaction, most).await?;
    if due.is_empty() {
        transaction.rollback().await?;
        return Ok(ClosedDigests::default());
    }
    let plans = plans(&mut transaction, &due, rules, capacity, now).await?;
    let places: Vec<DigestPlace<'_>> = due.iter().map(DueDigest::place).collect();
    let queued = queued(&mut transaction, &places).await?;
    let (mut closing, mut ending, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    for digest in &due {
        let kind = rules.digest(&digest.type_name);
        match (kind, plans.get(&digest.id)) {
            (None, _) => waiting.push((digest, later(now, UNKNOWN_TYPE), "", "")),
            (Some(kind), _) if digest.items == 0 => closing.push((digest, kind)),
            (Some(_), Some(MessagePlan::Held { holds, .. })) => {
                if let Some(last) = holds.last() {
                    waiting.push((digest, last.until, last.gate.as_str(), last.rule.as_str()));
                }
            }
            (Some(_), Some(MessagePlan::Ended { reason, rule, .. })) => {
                ending.push((digest, reason.as_str(), rule.as_str()));
            }
            (Some(kind), _) if queued.contains(&digest.id) => {
                let until = later(now, looks_again(kind));
                waiting.push((digest, until, MessageGate::Pool.as_str(), QUEUED_RULE));
            }
            (Some(kind), _) => closing.push((digest, kind)),
        }
    }
    put_off(&mut transaction, &waiting).await?;
    let ids: Vec<i64> = closing.iter().map(|one| one.0.id).collect();
    let ended: Vec<i64> = ending.iter().map(|one| one.0.id).collect();
    let all: Vec<i64> = ids.iter().chain(&ended).copied().collect();
    query(CLOSE).bind(&all).execute(&mut *transaction).await?;
    let mut items = take_items(&mut transaction, &all).await?;
    no_longer_pending(&mut transaction, &due, &items).await?;
    for digest in &due {
        let found = items.get(&digest.id).map_or(0, Vec::len);
        if all.contains(&digest.id) && found != digest.items.unsigned_abs() as usize {
            let problem = format!(
                "digest {} has {found} items where {} were counted",
                digest.id, digest.items
            );
            return Err(Error::Store(sqlx::Error::Decode(problem.into())));
        }
    }
    end_items(&mut transaction, &ending, &items).await?;
    let mut messages = Vec::new();
    for (digest, kind) in &closing {
        let items = items.remove(&digest.id).unwrap_or_default();
        messages.extend(messages_of(digest, kind, items));
    }
    reopen(&mut transaction, &closing, now).await?;
    let jobs = enqueue(&mut transaction, &messages, now).await?;
    transaction.commit().await?;
    Ok(ClosedDigests {
        seen: due.len(),
        closed: all.len(),
        jobs,
    })
}

/// Puts off the digest that is due first, because its close failed; it stays open.
pub async fn put_first_off(db: &Db, why: &str) -> Result<(), Error> {
    let mut transaction = db.begin().await?;
    query(PUT_FIRST_OFF)
        .bind(why)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(())
}

async fn due(
    connection: &mut PgConnection,
    most: i64,
) -> Result<(Vec<DueDigest>, Timestamp), Error> {
    let rows = query(DUE).bind(most).fetch_all(connection).await?;
    let mut now = Timestamp::UNIX_EPOCH;
    let mut due = Vec::with_capacity(rows.len());
    for row in &rows {
        now = row.try_get::<SqlTimestamp, _>("now")?.to_jiff();
        let key: Vec<u8> = row.try_get("recipient_key")?;
        let key = key.try_into().unwrap_or_default();
        due.push(DueDigest {
            id: row.try_get("id")?,
            tenant: row.try_get("tenant")?,
            module: row.try_get("module")?,
            type_name: row.try_get("type")?,
            recipient: RecipientKey::from_bytes(key),
            key: row.try_get("key")?,
            recipient_id: row.try_get("recipient_id")?,
            category: row.try_get("category")?,
            channel: row.try_get("channel")?,
            address: row.try_get("address")?,
            throttle: row.try_get("throttle")?,
            throttle_key: row.try_get("throttle_key")?,
            items: row.try_get("items")?,
        });
    }
    Ok((due, now))
}

/// Takes digests through the gates, each as one message.
async fn plans(
    connection: &mut PgConnection,
    due: &[DueDigest],
    rules: &RecipientRules,
    capacity: Capacity<'_>,
    now: Timestamp,
) -> Result<HashMap<i64, MessagePlan>, Error> {
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
    let mut batch = PlanBatch::read(connection, inputs, rules, now).await?;
    batch.plan_all(connection, capacity).await?;
    let planned = batch.planned.into_iter();
    Ok(planned.map(|one| (one.job_id, one.plan)).collect())
}

async fn put_off(
    connection: &mut PgConnection,
    waiting: &[(&DueDigest, Timestamp, &'static str, &str)],
) -> Result<(), Error> {
    if waiting.is_empty() {
        return Ok(());
    }
    query(PUT_OFF)
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

/// Takes the items of digests, each with its items in the order in which they came.
async fn take_items(
    connection: &mut PgConnection,
    digests: &[i64],
) -> Result<HashMap<i64, Vec<DigestItem>>, Error> {
    let rows = query(TAKE_ITEMS)
        .bind(digests)
        .fetch_all(connection)
        .await?;
    let mut items: HashMap<i64, Vec<DigestItem>> = HashMap::new();
    for row in &rows {
        items
            .entry(row.try_get("digest_id")?)
            .or_default()
            .push(DigestItem {
                job_id: row.try_get("job_id")?,
                args: json_or_text(row, "item"),
            });
    }
    for items in items.values_mut() {
        items.sort_by_key(|item| item.job_id);
    }
    Ok(items)
}

async fn no_longer_pending(
    connection: &mut PgConnection,
    due: &[DueDigest],
    items: &HashMap<i64, Vec<DigestItem>>,
) -> Result<(), Error> {
    let tenants: HashMap<i64, &str> = due
        .iter()
        .map(|digest| (digest.id, digest.tenant.as_str()))
        .collect();
    let rows: Vec<(&str, i64)> = items
        .iter()
        .flat_map(|(digest, items)| {
            let tenant = tenants.get(digest).copied().unwrap_or_default();
            items.iter().map(move |item| (tenant, item.job_id))
        })
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

async fn end_items(
    connection: &mut PgConnection,
    ending: &[(&DueDigest, &'static str, &str)],
    items: &HashMap<i64, Vec<DigestItem>>,
) -> Result<(), Error> {
    let rows: Vec<(i64, &str, &str)> = ending
        .iter()
        .flat_map(|(digest, reason, rule)| {
            let items = items.get(&digest.id).map_or(&[][..], Vec::as_slice);
            items.iter().map(|item| (item.job_id, *reason, *rule))
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    query(END_ITEMS)
        .bind(rows.iter().map(|row| row.0).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.1).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.2).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// Returns the messages of a closed digest.
fn messages_of<'a>(
    digest: &'a DueDigest,
    kind: &DigestType,
    items: Vec<DigestItem>,
) -> Vec<NewDigestMessage<'a>> {
    if items.is_empty() {
        return Vec::new();
    }
    // The newest item says who sends it, and through which provider.
    let newest = items
        .last()
        .map(|item| item.args.clone())
        .unwrap_or_default();
    let messages = kind.close(items).into_iter();
    messages
        .map(|message| match message {
            DigestMessage::Single(item) => NewDigestMessage {
                digest,
                args: alone(item.args),
                origin: "item",
            },
            DigestMessage::Digest {
                items,
                total_count,
                has_more,
            } => NewDigestMessage {
                digest,
                args: digest_args(digest, kind, &newest, &items, total_count, has_more),
                origin: "digest",
            },
        })
        .collect()
}

/// Returns the arguments of an item that goes alone.
fn alone(mut args: Value) -> Value {
    if let Value::Object(fields) = &mut args {
        fields.remove("digest");
        // It keeps a field that gates look at.
        let usual = crate::recipient::fields::USUAL_CATEGORY;
        fields.entry("category").or_insert_with(|| usual.into());
    }
    args
}

fn digest_args(
    digest: &DueDigest,
    kind: &DigestType,
    newest: &Value,
    items: &[DigestItem],
    total_count: usize,
    has_more: bool,
) -> Value {
    let data = |item: &DigestItem| match item.args.get("data") {
        Some(data) => data.clone(),
        None => json!({"text": item.args.get("body")}),
    };
    let each: Vec<Value> = items.iter().map(data).collect();
    let mut args = json!({
        "channel": digest.channel,
        "category": digest.category,
        "template_id": kind.template,
        "template": kind.texts.template(&digest.channel),
        "data": {"items": each, "totalCount": total_count, "hasMore": has_more},
    });
    for field in ["from", "provider"] {
        if let Some(value) = newest.get(field) {
            args[field] = value.clone();
        }
    }
    if let Some(to) = &digest.address {
        args["to"] = to.clone().into();
    }
    if !digest.recipient_id.is_empty() {
        args["recipient"] = digest.recipient_id.clone().into();
    }
    if kind.per_actor && !digest.key.is_empty() {
        args["actor"] = digest.key.clone().into();
    }
    args
}

/// Opens empty digests after those whose type lets no item go at once soon after another.
async fn reopen(
    connection: &mut PgConnection,
    closed: &[(&DueDigest, &DigestType)],
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
    connection: &mut PgConnection,
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
