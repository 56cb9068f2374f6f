//! Held messages as people see them: their numbers, and a new plan for those of one recipient.

use jiff::Timestamp;
use jiff_sqlx::Timestamp as SqlTimestamp;
use serde::Serialize;
use sqlx::postgres::PgRow;
use sqlx::{Row, query};

use super::statement::query_unprepared;
use crate::jobs::{Attribution, COUNT_MAX, Error};
use crate::postgres::Db;
use crate::providers::{Channel, Recipient};
use crate::recipient::address::RecipientKey;

// A plan that says held may be one of a message that has gone meanwhile. Postgres plans this for the
// messages that there are.
pub(super) const HELD: &str = "
select p.gate as name, count(*) as messages, null::bigint as digests, min(p.until) as next_at
from (
    select h.gate, h.until
    from flyball.message_plan h
    where h.state = 'held' and exists (select from flyball.scheduled s where s.job_id = h.job_id)
    limit $1
) p
group by p.gate
order by messages desc, name";

pub(super) const COLLECTED: &str = "
select d.type as name, sum(d.items)::bigint as messages, count(*) as digests, min(d.closes_at) as next_at
from (select h.type, h.items, h.closes_at from flyball.digest h order by h.closes_at, h.id limit $1) d
group by d.type
order by messages desc, name";

// The log shows an address as lists do, and what is longer than an id not at all.
pub(super) const REPLAN: &str = "
with replanned as materialized (
    select flyball.replan($1::text[]::uuid[]) as messages
)
select r.messages, flyball.write_audit(null, $2, 'recipient.replan',
    case when octet_length($3::text) > 128 then '***' else flyball.shown_recipient($3) end, null,
    jsonb_build_object('tenant', $5::text, 'messages', r.messages), $4)
from replanned r";

/// Held messages by gate, and items by type of digest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct HeldCounts {
    /// The messages that each gate holds, by the gate that decided.
    pub held: Vec<HeldCount>,
    /// The items of each type of digest.
    pub collected: Vec<HeldCount>,
    /// True if there are more than were counted.
    pub more: bool,
}

/// The messages that a gate holds, or that a type of digest has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct HeldCount {
    /// The gate, or the type of digest.
    pub name: String,
    pub messages: i64,
    /// The open digests of the type; absent for a gate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digests: Option<i64>,
    /// The time at which the next one goes, or the next digest closes.
    pub next_at: Option<Timestamp>,
}

/// Counts held messages and items; the count stops at 10,000 messages, and as many digests.
pub async fn held_counts(db: &Db) -> Result<HeldCounts, Error> {
    let mut transaction = db.begin().await?;
    let mut counts = [Vec::new(), Vec::new()];
    for (statement, counted) in [HELD, COLLECTED].into_iter().zip(&mut counts) {
        let rows = query_unprepared(statement)
            .bind(COUNT_MAX)
            .fetch_all(&mut transaction)
            .await?;
        *counted = rows.iter().map(count).collect::<Result<_, sqlx::Error>>()?;
    }
    transaction.commit().await?;
    let [held, collected] = counts;
    let messages: i64 = held.iter().map(|one| one.messages).sum();
    let digests: i64 = collected.iter().filter_map(|one| one.digests).sum();
    Ok(HeldCounts {
        more: messages.max(digests) >= COUNT_MAX,
        held,
        collected,
    })
}

fn count(row: &PgRow) -> Result<HeldCount, sqlx::Error> {
    Ok(HeldCount {
        name: row.try_get("name")?,
        messages: row.try_get("messages")?,
        digests: row.try_get("digests")?,
        next_at: row
            .try_get::<Option<SqlTimestamp>, _>("next_at")?
            .map(SqlTimestamp::to_jiff),
    })
}

/// Lets the held messages of a recipient be planned again, by the id or by an address, and returns
/// their number.
pub async fn replan(
    db: &Db,
    tenant: &str,
    recipient: &str,
    signed: &Attribution,
) -> Result<i64, Error> {
    let of_channel = |channel| {
        let person = RecipientKey::of_subscriber(tenant, channel, recipient);
        // Messages that name no recipient are those of their address.
        let address = Recipient::parse(channel, recipient).ok();
        let address = address.map(|to| RecipientKey::of_address(tenant, &to));
        std::iter::once(person).chain(address)
    };
    let keys = Channel::WORDS.iter();
    let keys: Vec<String> = keys
        .flat_map(|(_, channel)| of_channel(*channel))
        .map(RecipientKey::to_hex)
        .collect();
    let mut transaction = db.begin().await?;
    let row = query(REPLAN)
        .bind(keys)
        .bind(signed.line())
        .bind(recipient)
        .bind(&signed.why)
        .bind(tenant)
        .fetch_one(&mut transaction)
        .await?;
    transaction.commit().await?;
    Ok(row.try_get("messages")?)
}
