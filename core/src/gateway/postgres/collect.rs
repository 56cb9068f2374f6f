//! The collector: moves what was published into the history, in one transaction under one lock.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::{Row, query};

use super::lock::{OlderCollectors, lock};
use super::usage;
use crate::gateway::limits::ChannelHistory;
use crate::jobs::Error;
use crate::postgres::{Db, Transaction};

/// One tenant at a time through the index, so that the backlog of one is not read for the others.
pub(super) const WAITING: &str = "
with recursive t as (
    (select p.tenant from flyball.publication p order by p.tenant limit 1)
    union all
    select (select p.tenant from flyball.publication p where p.tenant > t.tenant order by p.tenant limit 1) from t where t.tenant is not null
)
select t.tenant, (select count(*) from (select from flyball.publication p where p.tenant = t.tenant limit $1) as page) as waiting
from t where t.tenant is not null";

pub(super) const TAKE: &str = "
select p.id, p.tenant, p.channel
from unnest($1::text[], $2::int[]) as a(tenant, most)
cross join lateral (
    select p.id, p.tenant, p.channel from flyball.publication p where p.tenant = a.tenant order by p.tenant, p.id limit a.most
) p";

/// Moves publications; `$2` to `$5` are their channels with the history of each. A channel that had a
/// history before counts what it does not keep, so that no reader takes the rest for all.
// The statement is planned once, perhaps while there are no channels and publications, so a channel
// is found by a probe, and a publication by the order of the index that begins with its number. A
// channel that counts what it does not keep is there already: a conflict finds its newest row,
// also while the erasure of its inbox holds it, and a join by `ctid` would not. Each message finds
// its channel by a sort. Postgres expects one row of a join here and would compare every message
// with every channel, which takes a minute for ten thousand of each.
pub(super) const MOVE: &str = r#"
with gone as (
    delete from flyball.publication p
    where p.ctid = any(array(
        select f.place
        from unnest($1::bigint[]) as a(id)
        cross join lateral (select h.id, h.ctid as place from flyball.publication h where h.id >= a.id order by h.id limit 1) f
        where f.id = a.id
    ))
    returning p.id, p.tenant, p.channel, p.data, p.created_at
),
placed as (
    select u.*, max(u.of_s) over w as kept_s, max(u.of_max) over w as kept_max,
        count(u.id) over w as messages, row_number() over (w order by u.id) as nth
    from (
        select g.tenant, g.channel, g.id, g.data, g.created_at, null::int as of_s, null::int as of_max from gone g
        union all
        select h.tenant, h.name, null, null, null, h.kept_s, h.kept_max
        from unnest($2::text[], $3::text[], $4::int[], $5::int[]) as h(tenant, name, kept_s, kept_max)
    ) u
    window w as (partition by u.tenant, u.channel)
),
top as (
    insert into flyball.channel as c (tenant, name, epoch, last_offset, kept_s, used_at)
    select n.tenant, n.channel, e.last_value, n.messages, n.kept_s, now()
    from placed n cross join flyball.channel_epoch e
    where n.id is null and n.messages > 0 and n.kept_max > 0
    order by n.tenant, n.channel
    on conflict (tenant, name) do update
    set last_offset = c.last_offset + excluded.last_offset, kept_s = excluded.kept_s, used_at = excluded.used_at
    returning c.tenant, c.name, c.epoch, c.last_offset, c.first_offset
),
passed as (
    insert into flyball.channel as c (tenant, name, epoch, last_offset, kept_s, used_at)
    select n.tenant, n.channel, h.epoch, n.messages, h.kept_s, h.used_at
    from placed n
    cross join lateral (
        select h.epoch, h.kept_s, h.used_at from flyball.channel h where h.tenant = n.tenant and h.name = n.channel limit 1
    ) h
    where n.id is null and n.messages > 0 and n.kept_max = 0
    order by n.tenant, n.channel
    on conflict (tenant, name) do update
    set last_offset = c.last_offset + excluded.last_offset, first_offset = c.last_offset + excluded.last_offset + 1
),
counted as (
    select u.*, max(u.of_epoch) over w as epoch, max(u.of_last) over w as last_offset, max(u.of_first) over w as first_offset
    from (
        select p.tenant, p.channel, p.id, p.data, p.created_at, p.kept_s, p.kept_max, p.messages, p.nth,
            null::bigint as of_epoch, null::bigint as of_last, null::bigint as of_first
        from placed p where p.id is not null
        union all
        select t.tenant, t.name, null, null, null, null, null, null, null, t.epoch, t.last_offset, t.first_offset from top t
    ) u
    window w as (partition by u.tenant, u.channel)
),
moved as (
    insert into flyball.channel_message (tenant, channel, epoch, "offset", id, data, created_at, expires_at)
    select m.tenant, m.channel, coalesce(m.epoch, 0), coalesce(m.last_offset - m.messages + m.nth, 0), m.id, m.data, m.created_at,
        now() + make_interval(secs => case when m.epoch is null then 30 else m.kept_s end)
    from counted m
    where m.id is not null
    order by m.id
    returning 1
)
select o.tenant, o.channel as name, o.kept_max, a.moved
from (select count(*) as moved from moved) a
left join counted o on o.id is not null and o.nth = o.messages and o.last_offset - o.first_offset >= o.kept_max + o.kept_max / 4"#;

/// The oldest messages count as gone at once. Their rows stay for half a minute, for readers that
/// were there when they came.
pub(super) const TRIM: &str = r#"
with over as (
    select c.tenant, c.name, c.epoch, c.last_offset - o.kept_max + 1 as first_offset, now() + make_interval(secs => c.kept_s - 30) as expires_before
    from unnest($1::text[], $2::text[], $3::int[]) as o(tenant, name, kept_max)
    join flyball.channel c on c.tenant = o.tenant and c.name = o.name
),
gone as (
    delete from flyball.channel_message m using over o
    where m.tenant = o.tenant and m.channel = o.name and m.epoch = o.epoch and m."offset" > 0 and m."offset" < o.first_offset
      and m.expires_at < o.expires_before
)
update flyball.channel c set first_offset = greatest(c.first_offset, o.first_offset)
from over o where c.tenant = o.tenant and c.name = o.name"#;

/// Rings the gateways, and tells them which tenants wait for how many milliseconds.
pub(super) const RING: &str = "
select pg_notify('flyball_channel', w.words)
from (select '' where $1 union all select u.word from unnest($2::text[]) as u(word)) as w(words)";

/// A tenant with publications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingPublications {
    pub tenant: String,
    /// Their number, as far as it was counted.
    pub messages: u32,
}

/// The messages that the limit of a tenant admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantGrant {
    pub tenant: String,
    /// The messages that may go now.
    pub messages: u32,
    /// The time until the next may go, if some must wait.
    pub wait: Option<Duration>,
    /// The time for which messages wait, if the gateways must be told.
    pub told: Option<Duration>,
}

/// The result of one look at the publications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectOutcome {
    /// Another collector is at work.
    Busy,
    /// It moved messages.
    Collected {
        /// Their number.
        moved: u64,
        /// The grants of the tenants.
        grants: Vec<TenantGrant>,
    },
}

/// The decision of what may go, made while the lock is held.
pub type Admit<'a> =
    dyn Fn(Vec<WaitingPublications>) -> BoxFuture<'a, Vec<TenantGrant>> + Send + Sync + 'a;

/// Moves publications that `admit` lets go, at most `most` of each tenant.
pub async fn collect(
    db: &Db,
    older: &OlderCollectors,
    most: u32,
    admit: &Admit<'_>,
    history: &(dyn Fn(&str) -> ChannelHistory + Send + Sync),
) -> Result<CollectOutcome, Error> {
    let mut transaction = db.begin().await?;
    if !lock(&mut transaction, older).await? {
        transaction.rollback().await?;
        return Ok(CollectOutcome::Busy);
    }
    let waiting = waiting(&mut transaction, most).await?;
    let grants = match waiting.is_empty() {
        true => Vec::new(),
        false => admit(waiting).await,
    };
    let moved = move_granted(&mut transaction, &grants, history).await?;
    let told: Vec<String> = grants
        .iter()
        .filter_map(|grant| {
            let wait_ms = grant.told?.as_millis().max(1);
            Some(format!("{wait_ms} {}", grant.tenant))
        })
        .collect();
    if moved > 0 || !told.is_empty() {
        count(&mut transaction, &grants).await?;
        query(RING)
            .bind(moved > 0)
            .bind(&told)
            .execute(&mut transaction)
            .await?;
    }
    transaction.commit().await?;
    Ok(CollectOutcome::Collected { moved, grants })
}

/// Counts what went out, and the limits that were reached.
async fn count(transaction: &mut Transaction, grants: &[TenantGrant]) -> Result<(), Error> {
    let tenants: Vec<&str> = grants.iter().map(|grant| grant.tenant.as_str()).collect();
    let messages: Vec<i64> = grants.iter().map(|grant| grant.messages.into()).collect();
    let limited: Vec<i64> = grants
        .iter()
        .map(|grant| grant.told.is_some().into())
        .collect();
    query(usage::COUNT)
        .bind(&tenants)
        .bind(&messages)
        .bind(&limited)
        .execute(transaction)
        .await?;
    Ok(())
}

async fn waiting(
    transaction: &mut Transaction,
    most: u32,
) -> Result<Vec<WaitingPublications>, Error> {
    let rows = query(WAITING)
        .bind(i64::from(most))
        .fetch_all(transaction)
        .await?;
    rows.iter()
        .map(|row| {
            Ok(WaitingPublications {
                tenant: row.try_get("tenant")?,
                messages: row.try_get::<i64, _>("waiting")? as u32,
            })
        })
        .collect()
}

async fn move_granted(
    transaction: &mut Transaction,
    grants: &[TenantGrant],
    history: &(dyn Fn(&str) -> ChannelHistory + Send + Sync),
) -> Result<u64, Error> {
    let granted = grants.iter().filter(|grant| grant.messages > 0);
    let (tenants, messages): (Vec<&str>, Vec<i32>) = granted
        .map(|grant| (grant.tenant.as_str(), grant.messages as i32))
        .unzip();
    if tenants.is_empty() {
        return Ok(0);
    }
    let rows = query(TAKE)
        .bind(&tenants)
        .bind(&messages)
        .fetch_all(&mut *transaction)
        .await?;
    let mut ids: Vec<i64> = Vec::with_capacity(rows.len());
    let mut channels: HashSet<(String, String)> = HashSet::new();
    for row in &rows {
        ids.push(row.try_get("id")?);
        channels.insert((row.try_get("tenant")?, row.try_get("channel")?));
    }
    let histories: BTreeMap<(String, String), ChannelHistory> = channels
        .into_iter()
        .map(|key| {
            let kept = history(&key.1);
            (key, kept)
        })
        .collect();
    let (of, names): (Vec<&str>, Vec<&str>) = histories
        .keys()
        .map(|(tenant, name)| (tenant.as_str(), name.as_str()))
        .unzip();
    let (kept_s, kept_max): (Vec<i32>, Vec<i32>) = histories
        .values()
        .map(|history| (history.kept_s, history.kept_max))
        .unzip();
    let rows = query(MOVE)
        .bind(&ids)
        .bind(&of)
        .bind(&names)
        .bind(&kept_s)
        .bind(&kept_max)
        .fetch_all(&mut *transaction)
        .await?;
    let moved: i64 = rows.first().map_or(Ok(0), |row| row.try_get("moved"))?;
    trim(transaction, &rows).await?;
    Ok(moved.unsigned_abs())
}

/// Deletes the oldest messages of the channels that have too many.
async fn trim(transaction: &mut Transaction, rows: &[sqlx::postgres::PgRow]) -> Result<(), Error> {
    let (mut tenants, mut names, mut most) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        if let Some(tenant) = row.try_get::<Option<String>, _>("tenant")? {
            tenants.push(tenant);
            names.push(row.try_get::<String, _>("name")?);
            most.push(row.try_get::<i32, _>("kept_max")?);
        }
    }
    if !tenants.is_empty() {
        // It is rare, and planned for the channels that there are.
        query(TRIM)
            .persistent(false)
            .bind(&tenants)
            .bind(&names)
            .bind(&most)
            .execute(transaction)
            .await?;
    }
    Ok(())
}
