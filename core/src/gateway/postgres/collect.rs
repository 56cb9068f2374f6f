//! The collector: moves what was published into the history, in one transaction under one lock.

use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::postgres::PgRow;
use sqlx::{Row, query};

use super::lock::lock;
use crate::gateway::limits::ChannelHistory;
use crate::gateway::tenant_mark::TenantMark;
use crate::jobs::Error;
use crate::postgres::{Db, Transaction};

/// Takes the lock of [`super::lock::LOCK`], and lists the tenants with publications that are not in
/// `$2`: one row at least if the lock is held, and none if somebody else has it. A count may be older
/// than the lock by the time of this statement, so it may count publications that have just gone.
// One tenant at a time through the index, so that the backlog of one is not read for the others.
pub(super) const WAITING: &str = "
with recursive held as (
    select m.name from flyball.mutex m where m.name = 'publications' for update skip locked
),
t as (
    (select p.tenant from flyball.publication p order by p.tenant limit 1)
    union all
    select (select p.tenant from flyball.publication p where p.tenant > t.tenant order by p.tenant limit 1) from t where t.tenant is not null
)
select w.tenant, w.waiting
from held h
left join lateral (
    select t.tenant, (select count(*) from (select from flyball.publication p where p.tenant = t.tenant limit $1) as page) as waiting
    from t where t.tenant is not null and t.tenant <> all($2::text[])
) w on true";

/// Counts what waits of some tenants.
pub(super) const WAITING_OF: &str = "
select a.tenant, (select count(*) from (select from flyball.publication p where p.tenant = a.tenant limit $2) as page) as waiting
from unnest($1::text[]) as a(tenant)";

/// Moves up to `$2` publications of each tenant of `$1`, counts them and the tenants that reached
/// their limit (`$7`), and notifies the gateways of messages and of tenants that wait (`$6`). `$3`
/// to `$5` are the histories of channels by pattern, of which the first that fits holds. A channel
/// that had a history before counts what it does not keep, so that no reader takes the rest for
/// all.
// The statement is planned once, perhaps while there are no channels and publications, so a channel
// is found by a probe, and the publications of a tenant by the order of its index. A channel that
// counts what it does not keep is there already: a conflict finds its newest row, also while the
// erasure of its inbox holds it, and a join by `ctid` would not. Each message finds its channel by a
// sort. Postgres expects one row of a join here and would compare every message with every channel,
// which takes a minute for ten thousand of each.
pub(super) const MOVE: &str = r#"
with gone as (
    delete from flyball.publication p
    where p.ctid = any(array(
        select f.place
        from unnest($1::text[], $2::int[]) as a(tenant, most)
        cross join lateral (
            select h.ctid as place from flyball.publication h where h.tenant = a.tenant order by h.tenant, h.id limit a.most
        ) f
    ))
    returning p.id, p.tenant, p.channel, p.data, p.created_at
),
history as (
    select c.tenant, c.channel, k.kept_s, k.kept_max
    from (select distinct g.tenant, g.channel from gone g) c
    cross join lateral (
        select r.kept_s, r.kept_max
        from unnest($3::text[], $4::int[], $5::int[]) with ordinality as r(pattern, kept_s, kept_max, n)
        where case when r.pattern like '%*' then starts_with(c.channel, left(r.pattern, -1)) else r.pattern = c.channel end
        order by r.n
        limit 1
    ) k
),
placed as (
    select u.*, max(u.of_s) over w as kept_s, max(u.of_max) over w as kept_max,
        count(u.id) over w as messages, row_number() over (w order by u.id) as nth
    from (
        select g.tenant, g.channel, g.id, g.data, g.created_at, null::int as of_s, null::int as of_max from gone g
        union all
        select h.tenant, h.channel, null, null, null, h.kept_s, h.kept_max from history h
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
),
used as (
    insert into flyball.channel_usage as u (tenant, messages, limited, limited_at)
    select a.tenant, sum(a.messages), sum(a.limited), case when sum(a.limited) > 0 then now() end
    from (
        select g.tenant, 1 as messages, 0 as limited from gone g
        union all
        select l.tenant, 0, 1 from unnest($7::text[]) as l(tenant)
    ) a
    group by a.tenant
    order by a.tenant
    on conflict (tenant) do update
    set messages = u.messages + excluded.messages, limited = u.limited + excluded.limited, limited_at = coalesce(excluded.limited_at, u.limited_at)
),
everything as (
    select count(*) as moved from moved
),
notified as materialized (
    select pg_notify('flyball_channel', w.words)
    from (select '' from everything e where e.moved > 0 union all select u.word from unnest($6::text[]) as u(word)) as w(words)
)
select o.tenant, o.channel as name, o.kept_max, e.moved
from everything e
cross join (select count(*) from notified) r
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
    /// The time for which messages wait, if it must be reported to the gateways.
    pub reported: Option<Duration>,
}

/// The result of one poll of the publications.
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

/// Moves publications that `admit` lets go, at most `most` of each tenant, and none of the tenants
/// `passed_over`. `histories` are those of channels by pattern, of which the first that fits holds.
pub async fn collect(
    db: &Db,
    most: u32,
    passed_over: &[String],
    admit: &Admit<'_>,
    histories: &[(&str, ChannelHistory)],
) -> Result<CollectOutcome, Error> {
    let mut transaction = db.begin().await?;
    let Some(waiting) = waiting(&mut transaction, most, passed_over).await? else {
        transaction.rollback().await?;
        return Ok(CollectOutcome::Busy);
    };
    let grants = match waiting.is_empty() {
        true => Vec::new(),
        false => admit(waiting).await,
    };
    let (moved, full) = move_granted(transaction, &grants, histories).await?;
    trim(db, &full).await?;
    Ok(CollectOutcome::Collected { moved, grants })
}

/// Counts what waits of these tenants, up to `most` of each.
pub async fn waiting_of(
    db: &Db,
    tenants: &[String],
    most: u32,
) -> Result<Vec<WaitingPublications>, Error> {
    let rows = query(WAITING_OF)
        .bind(tenants)
        .bind(i64::from(most))
        .fetch_all(db)
        .await?;
    rows.iter().map(waiting_in).collect()
}

/// Moves publications that may go; returns their number, or `None` if another collector is at work.
pub async fn collect_granted(
    db: &Db,
    grants: &[TenantGrant],
    histories: &[(&str, ChannelHistory)],
) -> Result<Option<u64>, Error> {
    let mut transaction = db.begin().await?;
    if !lock(&mut transaction).await? {
        transaction.rollback().await?;
        return Ok(None);
    }
    let (moved, full) = move_granted(transaction, grants, histories).await?;
    trim(db, &full).await?;
    Ok(Some(moved))
}

/// Takes the lock and lists what waits; `None` if somebody else has the lock.
async fn waiting(
    transaction: &mut Transaction,
    most: u32,
    passed_over: &[String],
) -> Result<Option<Vec<WaitingPublications>>, Error> {
    let rows = query(WAITING)
        .bind(i64::from(most))
        .bind(passed_over)
        .fetch_all(transaction)
        .await?;
    let Some(first) = rows.first() else {
        return Ok(None);
    };
    // Without publications there is one row, of no tenant.
    let first: Option<&str> = first.try_get("tenant")?;
    let listed = if first.is_some() { &rows[..] } else { &[] };
    let waiting: Result<Vec<_>, Error> = listed.iter().map(waiting_in).collect();
    waiting.map(Some)
}

fn waiting_in(row: &PgRow) -> Result<WaitingPublications, Error> {
    Ok(WaitingPublications {
        tenant: row.try_get("tenant")?,
        messages: row.try_get::<i64, _>("waiting")? as u32,
    })
}

/// Moves what is granted, counts it, notifies, commits; returns the number of messages that were
/// moved, and the channels that have too many now.
async fn move_granted(
    mut transaction: Transaction,
    grants: &[TenantGrant],
    histories: &[(&str, ChannelHistory)],
) -> Result<(u64, Vec<FullChannel>), Error> {
    let granted = grants.iter().filter(|grant| grant.messages > 0);
    let (tenants, messages): (Vec<&str>, Vec<i32>) = granted
        .map(|grant| (grant.tenant.as_str(), grant.messages as i32))
        .unzip();
    let limited = grants
        .iter()
        .filter_map(|grant| Some((grant.tenant.as_str(), grant.reported?)));
    let (limited, reported): (Vec<&str>, Vec<String>) = limited
        .map(|(tenant, wait)| {
            let (wait_ms, mark) = (wait.as_millis().max(1), TenantMark::of(tenant));
            (tenant, format!("{wait_ms} {mark}"))
        })
        .unzip();
    if tenants.is_empty() && reported.is_empty() {
        transaction.commit().await?;
        return Ok((0, Vec::new()));
    }
    let patterns: Vec<&str> = histories.iter().map(|(pattern, _)| *pattern).collect();
    let (kept_s, kept_max): (Vec<i32>, Vec<i32>) = histories
        .iter()
        .map(|(_, history)| (history.kept_s, history.kept_max))
        .unzip();
    let rows = query(MOVE)
        .bind(&tenants)
        .bind(&messages)
        .bind(&patterns)
        .bind(&kept_s)
        .bind(&kept_max)
        .bind(&reported)
        .bind(&limited)
        .fetch_all(&mut transaction)
        .await?;
    transaction.commit().await?;
    let moved: i64 = rows.first().map_or(Ok(0), |row| row.try_get("moved"))?;
    let mut full = Vec::new();
    for row in &rows {
        if let Some(tenant) = row.try_get("tenant")? {
            full.push(FullChannel {
                tenant,
                name: row.try_get("name")?,
                kept_max: row.try_get("kept_max")?,
            });
        }
    }
    Ok((moved.unsigned_abs(), full))
}

/// A channel with more messages than are kept of it.
struct FullChannel {
    tenant: String,
    name: String,
    kept_max: i32,
}

/// Deletes the oldest messages of channels that have too many, in a transaction of its own, so that
/// those that were moved need not wait for it. While another collector is at work it is left: the
/// next message of such a channel finds it again.
async fn trim(db: &Db, full: &[FullChannel]) -> Result<(), Error> {
    if full.is_empty() {
        return Ok(());
    }
    let mut transaction = db.begin().await?;
    if !lock(&mut transaction).await? {
        transaction.rollback().await?;
        return Ok(());
    }
    let tenants: Vec<&str> = full.iter().map(|channel| channel.tenant.as_str()).collect();
    let names: Vec<&str> = full.iter().map(|channel| channel.name.as_str()).collect();
    let most: Vec<i32> = full.iter().map(|channel| channel.kept_max).collect();
    // It is rare, and planned for the channels that there are.
    query(TRIM)
        .persistent(false)
        .bind(&tenants)
        .bind(&names)
        .bind(&most)
        .execute(&mut transaction)
        .await?;
    transaction.commit().await?;
    Ok(())
}
