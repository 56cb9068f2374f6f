//! The collector: moves what was published into the history, in one transaction under one lock.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::{PgConnection, Row};

use super::lock::{OlderCollectors, lock};
use super::statement::query;
use super::usage;
use crate::gateway::limits::ChannelHistory;
use crate::jobs::Error;
use crate::postgres::Db;

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
    select p.id, p.tenant, p.channel from flyball.publication p where p.tenant = a.tenant order by p.id limit a.most
) p";

/// Moves publications; `$2` to `$5` are their channels with the history of each. A channel that had a
/// history before counts what it does not keep, so that no reader takes the rest for all.
pub(super) const MOVE: &str = r#"
with history as (
    select * from unnest($2::text[], $3::text[], $4::int[], $5::int[]) as h(tenant, name, kept_s, kept_max)
),
gone as (
    delete from flyball.publication p where p.id = any($1) returning p.id, p.tenant, p.channel, p.data, p.created_at
),
counted as (
    select h.tenant, h.name, h.kept_s, h.kept_max, count(*) as messages
    from history h join gone g on g.tenant = h.tenant and g.channel = h.name
    where h.kept_max > 0
    group by 1, 2, 3, 4
),
top as (
    insert into flyball.channel as c (tenant, name, epoch, last_offset, kept_s, used_at)
    select n.tenant, n.name, e.last_value, n.messages, n.kept_s, now()
    from counted n cross join flyball.channel_epoch e
    order by n.tenant, n.name
    on conflict (tenant, name) do update
    set last_offset = c.last_offset + excluded.last_offset, kept_s = excluded.kept_s, used_at = excluded.used_at
    returning c.tenant, c.name, c.epoch, c.last_offset, c.first_offset
),
passed as (
    update flyball.channel c set last_offset = c.last_offset + n.messages, first_offset = c.last_offset + n.messages + 1
    from (
        select h.tenant, h.name, count(*) as messages from history h join gone g on g.tenant = h.tenant and g.channel = h.name
        where h.kept_max = 0
        group by 1, 2
    ) n
    where c.tenant = n.tenant and c.name = n.name
),
moved as (
    insert into flyball.channel_message (tenant, channel, epoch, "offset", id, data, created_at, expires_at)
    select g.tenant, g.channel, coalesce(t.epoch, 0),
        coalesce(t.last_offset - n.messages + row_number() over (partition by g.tenant, g.channel order by g.id), 0),
        g.id, g.data, g.created_at, now() + make_interval(secs => case when t.epoch is null then 30 else h.kept_s end)
    from gone g
    join history h on h.tenant = g.tenant and h.name = g.channel
    left join counted n on n.tenant = g.tenant and n.name = g.channel
    left join top t on t.tenant = g.tenant and t.name = g.channel
    order by g.id
    returning 1
)
select t.tenant, t.name, h.kept_max, (select count(*) from moved) as moved
from history h
left join top t on t.tenant = h.tenant and t.name = h.name and t.last_offset - t.first_offset >= h.kept_max + h.kept_max / 4"#;

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
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    Ok(CollectOutcome::Collected { moved, grants })
}

/// Counts what went out, and the limits that were reached.
async fn count(connection: &mut PgConnection, grants: &[TenantGrant]) -> Result<(), Error> {
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
        .execute(connection)
        .await?;
    Ok(())
}

async fn waiting(
    connection: &mut PgConnection,
    most: u32,
) -> Result<Vec<WaitingPublications>, Error> {
    let rows = query(WAITING)
        .bind(i64::from(most))
        .fetch_all(connection)
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
    connection: &mut PgConnection,
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
        .fetch_all(&mut *connection)
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
        .fetch_all(&mut *connection)
        .await?;
    let moved: i64 = rows.first().map_or(Ok(0), |row| row.try_get("moved"))?;
    trim(connection, &rows).await?;
    Ok(moved.unsigned_abs())
}

/// Deletes the oldest messages of the channels that have too many.
async fn trim(connection: &mut PgConnection, rows: &[sqlx::postgres::PgRow]) -> Result<(), Error> {
    let (mut tenants, mut names, mut most) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        if let Some(tenant) = row.try_get::<Option<String>, _>("tenant")? {
            tenants.push(tenant);
            names.push(row.try_get::<String, _>("name")?);
            most.push(row.try_get::<i32, _>("kept_max")?);
        }
    }
    if !tenants.is_empty() {
        query(TRIM)
            .bind(&tenants)
            .bind(&names)
            .bind(&most)
            .execute(connection)
            .await?;
    }
    Ok(())
}
