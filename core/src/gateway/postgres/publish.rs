//! Publications of clients and of the HTTP API, many in one statement.

use std::collections::HashMap;

use serde_json::Value;
use sqlx::{Row, query};

use crate::gateway::limits::MESSAGE_BYTES;
use crate::jobs::Error;
use crate::postgres::Db;

/// Adds the publications of tenants whose queue has room, except those with more than `$5` bytes; the
/// row of each tenant says how many waited before, whether there was room, and the bytes of each.
///
/// Postgres measures, as in `flyball.publish`: it writes 1e308 with 309 digits.
pub(super) const PUBLISH: &str = "
with item as (
    select i.*, octet_length(i.data::text) as bytes
    from unnest($1::text[], $2::text[], $3::jsonb[], $4::bigint[]) with ordinality as i(tenant, channel, data, waiting_max, n)
),
room as (
    select t.tenant, l.max_pending,
        (select count(*) from (select from flyball.publication p where p.tenant = t.tenant limit l.max_pending) as page) as waiting
    from (select distinct i.tenant from item i) t
    cross join lateral (
        select coalesce((select l.max_pending from flyball.tenant_limit l where l.tenant in (t.tenant, '*') order by l.tenant = '*' limit 1), 10000)::bigint as max_pending
    ) l
),
added as (
    insert into flyball.publication (tenant, channel, data)
    select i.tenant, i.channel, i.data from item i join room r on r.tenant = i.tenant
    where r.waiting < least(r.max_pending, i.waiting_max) and i.bytes <= $5
    order by i.n
    returning id, tenant
)
select r.tenant, r.max_pending, r.waiting, (select array_agg(a.id order by a.id) from added a where a.tenant = r.tenant) as ids,
    (select array_agg(i.bytes order by i.n) from item i where i.tenant = r.tenant) as bytes,
    pg_notify('flyball_publish', flyball.tenant_mark(r.tenant))
from room r";

/// A message to publish.
#[derive(Clone, PartialEq)]
pub struct NewPublication {
    pub tenant: String,
    pub channel: String,
    pub data: Value,
    /// The messages of the tenant that may wait before it is refused; the limit of the tenant's
    /// queue holds besides.
    pub waiting_max: i64,
}

/// The fate of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// It goes out within the limit of its tenant.
    Accepted {
        id: i64,
        /// The messages of the tenant that wait before it.
        waiting: i64,
    },
    /// The queue of its tenant is full; nothing was published.
    Full,
    /// Its data has so many bytes as Postgres writes it, more than [`MESSAGE_BYTES`]; nothing was
    /// published.
    TooLarge { bytes: usize },
}

/// Publishes messages; those of a tenant keep their order. Returns the fate of each.
pub async fn publish(db: &Db, messages: &[NewPublication]) -> Result<Vec<Published>, Error> {
    let tenants: Vec<&str> = messages.iter().map(|one| one.tenant.as_str()).collect();
    let channels: Vec<&str> = messages.iter().map(|one| one.channel.as_str()).collect();
    let data: Vec<&Value> = messages.iter().map(|one| &one.data).collect();
    let most: Vec<i64> = messages.iter().map(|one| one.waiting_max).collect();
    let rows = query(PUBLISH)
        .bind(&tenants)
        .bind(&channels)
        .bind(&data)
        .bind(&most)
        .bind(MESSAGE_BYTES as i32)
        .fetch_all(db)
        .await?;
    let mut added = HashMap::new();
    for row in &rows {
        let tenant: String = row.try_get("tenant")?;
        let ids: Option<Vec<i64>> = row.try_get("ids")?;
        let waiting: i64 = row.try_get("waiting")?;
        let queue_max: i64 = row.try_get("max_pending")?;
        let ids = ids.unwrap_or_default().into_iter();
        let bytes: Vec<i32> = row.try_get("bytes")?;
        added.insert(tenant, (waiting, queue_max, 0, ids, bytes.into_iter()));
    }
    let mut fate = |one: &NewPublication| {
        let (waiting, queue_max, before, ids, bytes) = added.get_mut(&one.tenant)?;
        let bytes = bytes.next()? as usize;
        if bytes > MESSAGE_BYTES {
            return Some(Published::TooLarge { bytes });
        }
        if *waiting >= one.waiting_max.min(*queue_max) {
            return None;
        }
        let id = ids.next()?;
        *before += 1;
        Some(Published::Accepted {
            id,
            waiting: *waiting + *before - 1,
        })
    };
    let fates = messages
        .iter()
        .map(|one| fate(one).unwrap_or(Published::Full));
    Ok(fates.collect())
}
