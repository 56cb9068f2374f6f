//! Open digests as people see them, and the withdrawal of an item.

use jiff::Timestamp;
use jiff_sqlx::Timestamp as SqlTimestamp;
use sqlx::postgres::PgRow;
use sqlx::{Row, query};

use super::rows::sql_time;
use super::statement::query_unprepared;
use crate::jobs::{Attribution, Error};
use crate::postgres::{Db, Transaction};
use crate::recipient::address::RecipientKey;
use crate::recipient::digest::COALESCED;
use crate::recipient::explain::DigestView;
use crate::recipient::rules::RecipientRules;

/// The most digests of one recipient that an answer shows.
const SHOWN: i64 = 100;

macro_rules! digests {
    ($($rest:literal),*) => {
        concat!(
            "
select d.id, d.tenant, d.type, d.channel, d.recipient_id,
    case when d.address is null then '' else flyball.mask_recipient(d.channel, d.address) end as address,
    d.key, d.opened_at, d.closes_at, d.items, d.gate, d.rule
from flyball.digest d
where ", $($rest),*
        )
    };
}

pub(super) const LIST: &str =
    digests!("(d.closes_at, d.id) > ($1, $2) order by d.closes_at, d.id limit $3");

pub(super) const LIST_OF_TENANT: &str = digests!(
    "d.tenant = $4 and (d.closes_at, d.id) > ($1, $2) order by d.closes_at, d.id limit $3"
);

pub(super) const OF_RECIPIENT: &str = digests!(
    "d.type = any($1) and d.recipient = $2::text::uuid order by d.closes_at, d.id limit $3"
);

pub(super) const ONE: &str = digests!("d.id = $1");

// The digest cannot close, and gets no item, until the withdrawal is through. The claim is locked before
// it, as everywhere; the count makes Postgres do so.
pub(super) const KEEP_OPEN: &str = "
with claimed as materialized (
    select d.job_id
    from (select h.recipient, h.job_id from flyball.message_plan h where h.job_id = $1 limit 1) p
    cross join lateral flyball.claims_of(p.recipient, array[p.job_id]) as k(claim)
    cross join lateral (
        select h.job_id from flyball.dedup h where h.claim = k.claim and h.job_id = p.job_id for update
    ) d
)
select k.id, k.type, k.items
from (select count(*) as claims from claimed) c
cross join lateral (
    select d.id, d.type, d.items, d.tenant
    from flyball.digest_item i
    cross join lateral (
        select * from flyball.digest h where h.id = i.digest_id and c.claims >= 0 limit 1 for no key update
    ) d
    where i.job_id = $1
) k
where $2::text is null or k.tenant = $2";

// An equal message that comes later is no duplicate of one that nobody sees.
pub(super) const WITHDRAW: &str = "
with removed as (
    delete from flyball.digest_item where digest_id = $1 and job_id = $2 returning digest_id
),
fewer as (
    update flyball.digest d set items = d.items - 1 from removed r where d.id = r.digest_id and not $3
),
closed as (
    delete from flyball.digest d using removed r where d.id = r.digest_id and $3
),
planned as (
    update flyball.message_plan p
    set state = 'ended', gate = 'digest', rule = $4, reason = 'cancelled', until = null, digest_id = null, since = clock_timestamp()
    from removed
    where p.job_id = $2
    returning p.recipient, p.job_id
),
claims as (
    delete from flyball.dedup d
    using planned p cross join lateral flyball.claims_of(p.recipient, array[p.job_id]) as k(claim)
    where d.claim = k.claim and d.job_id = p.job_id
),
delivered as (
    update flyball.delivery d
    set state = 'failed', last_outcome = 'cancelled', reason = 'withdrawn from its digest', updated_at = clock_timestamp()
    from removed
    where d.job_id = $2
)
select flyball.write_audit(null, $5, 'digest.withdraw', $2::bigint::text, jsonb_build_object('digest', r.digest_id, 'type', $4), null, $6)
from removed r";

/// A filter for open digests.
#[derive(Clone, Debug, PartialEq)]
pub struct DigestFilter {
    /// Only those of this tenant; of all if absent.
    pub tenant: Option<String>,
    /// Only those that close after this one: its time and its id.
    pub after: Option<(Timestamp, i64)>,
    pub limit: i64,
}

/// Returns open digests, next to close first.
pub async fn open_digests(db: &Db, filter: &DigestFilter) -> Result<Vec<DigestView>, Error> {
    let (closes_at, id) = filter.after.unwrap_or((Timestamp::UNIX_EPOCH, 0));
    let mut transaction = db.begin().await?;
    let mut list = query(match filter.tenant {
        Some(_) => LIST_OF_TENANT,
        None => LIST,
    })
    .bind(sql_time(closes_at))
    .bind(id)
    .bind(filter.limit);
    if let Some(tenant) = &filter.tenant {
        list = list.bind(tenant);
    }
    let rows = list.fetch_all(&mut transaction).await?;
    transaction.commit().await?;
    Ok(rows.iter().map(view).collect::<Result<_, sqlx::Error>>()?)
}

/// Returns the open digests of a recipient, next to close first.
pub(super) async fn of_recipient(
    connection: &mut Transaction,
    recipient: RecipientKey,
    rules: &RecipientRules,
) -> Result<Vec<DigestView>, Error> {
    let types: Vec<&str> = rules.digests().map(|kind| kind.name.as_str()).collect();
    let rows = query_unprepared(OF_RECIPIENT)
        .bind(types)
        .bind(recipient.to_hex())
        .bind(SHOWN)
        .fetch_all(connection)
        .await?;
    Ok(rows.iter().map(view).collect::<Result<_, sqlx::Error>>()?)
}

/// Returns an open digest.
pub(super) async fn one(
    connection: &mut Transaction,
    id: i64,
) -> Result<Option<DigestView>, Error> {
    let row = query(ONE).bind(id).fetch_optional(connection).await?;
    Ok(row.as_ref().map(view).transpose()?)
}

fn view(row: &PgRow) -> Result<DigestView, sqlx::Error> {
    let time = |column| {
        row.try_get::<SqlTimestamp, _>(column)
            .map(SqlTimestamp::to_jiff)
    };
    let (kind, key): (String, String) = (row.try_get("type")?, row.try_get("key")?);
    // Messages that slept have a digest for each category.
    let actor = Some(key).filter(|_| kind != COALESCED).unwrap_or_default();
    Ok(DigestView {
        id: row.try_get("id")?,
        tenant: row.try_get("tenant")?,
        kind,
        channel: row.try_get("channel")?,
        recipient: row.try_get("recipient_id")?,
        to: row.try_get("address")?,
        actor,
        opened_at: time("opened_at")?,
        closes_at: time("closes_at")?,
        items: usize::try_from(row.try_get::<i32, _>("items")?).unwrap_or(0),
        gate: row.try_get("gate")?,
        rule: row.try_get("rule")?,
    })
}

/// Withdraws an item from its digest, and closes a digest that it leaves empty. Returns the type of
/// the digest; `None` if there is no such item, or its digest has closed.
pub async fn withdraw(
    db: &Db,
    job_id: i64,
    rules: &RecipientRules,
    signed: &Attribution,
) -> Result<Option<String>, Error> {
    let mut transaction = db.begin().await?;
    let kept = query_unprepared(KEEP_OPEN)
        .bind(job_id)
        .bind(&signed.identity.tenant)
        .fetch_optional(&mut transaction)
        .await?;
    let Some(kept) = kept else {
        transaction.commit().await?;
        return Ok(None);
    };
    let (digest, name): (i64, String) = (kept.try_get("id")?, kept.try_get("type")?);
    // An empty digest of a type whose first item goes at once says when that may happen again.
    let leads = rules.digest(&name).is_some_and(|kind| kind.leading);
    let closes = kept.try_get::<i32, _>("items")? <= 1 && !leads;
    let withdrawn = query_unprepared(WITHDRAW)
        .bind(digest)
        .bind(job_id)
        .bind(closes)
        .bind(&name)
        .bind(signed.line())
        .bind(&signed.why)
        .fetch_optional(&mut transaction)
        .await?;
    transaction.commit().await?;
    Ok(withdrawn.map(|_| name))
}
