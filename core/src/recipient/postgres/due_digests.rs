//! Digests that are due.

use jiff::Timestamp;
use jiff_sqlx::Timestamp as SqlTimestamp;
use sqlx::{Row, query};

use super::digest_messages::DueDigest;
use crate::jobs::Error;
use crate::postgres::{Db, Transaction};
use crate::recipient::address::RecipientKey;

// The columns by which a digest that is due is read.
macro_rules! read_due {
    () => {
        "
select d.id, d.tenant, d.module, d.type, d.key, d.recipient_id, d.category, d.channel, d.address, d.throttle, d.throttle_key,
    d.items, d.gate, uuid_send(d.recipient) as recipient_key, clock_timestamp() as now
from flyball.digest d
"
    };
}

pub(super) const DUE: &str = concat!(
    read_due!(),
    "where d.closes_at <= now()
order by d.closes_at
limit $1
for update skip locked"
);

pub(super) const DUE_ONE: &str = concat!(
    read_due!(),
    "where d.id = $1 and d.closes_at <= now()
for update skip locked"
);

/// Names the digests that are due, and locks none.
pub(super) const DUE_IDS: &str = "
select d.id from flyball.digest d where d.closes_at <= now() order by d.closes_at limit $1";

pub(super) const PUT_OFF_FAILED: &str = "
update flyball.digest set closes_at = clock_timestamp() + interval '1 minute', rule = $2
where id = (select id from flyball.digest where id = $1 and closes_at <= now() for update skip locked)";

/// Returns the digests that are due, at most `most`.
pub async fn due_digests(db: &Db, most: i64) -> Result<Vec<i64>, Error> {
    let due = sqlx::query_scalar(DUE_IDS).bind(most);
    Ok(due.fetch_all(db).await?)
}

/// Puts off a digest that is due, because its close failed; it stays open.
pub async fn put_off_failed(db: &Db, digest: i64, why: &str) -> Result<(), Error> {
    let put_off = query(PUT_OFF_FAILED).bind(digest).bind(why);
    put_off.execute(db).await?;
    Ok(())
}

/// Locks the digests that a statement finds, and returns them with the time by the clock of
/// Postgres.
pub(super) async fn due(
    connection: &mut Transaction,
    (statement, bound): (&'static str, i64),
) -> Result<(Vec<DueDigest>, Timestamp), Error> {
    let rows = query(statement).bind(bound).fetch_all(connection).await?;
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
            gate: row.try_get("gate")?,
        });
    }
    Ok((due, now))
}
