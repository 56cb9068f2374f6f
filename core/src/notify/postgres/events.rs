//! Events that providers report after a send.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use super::text::line;
use crate::jobs::Error;
use crate::notify::EventReport;
use crate::notify::record::Fresh;
use crate::postgres::Db;
use crate::providers::{ProviderEvent, Recipient};
use crate::recipient::address::suppression_digest;

/// Most events of one statement.
const MAX_STATEMENT_EVENTS: usize = 2_000;

// A known event changes nothing. A new event that names its recipient takes effect for the
// recipient at once; for the message it takes effect when it is applied.
pub(super) const RECORD_EVENTS: &str = "
with reported as materialized (
    select s.pool, s.account, s.channel, s.event_id, s.provider_id, s.event_type, flyball.keyed_digest(s.known) as digest, s.reason, s.at_s
    from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::text[], $9::float8[])
        as s(pool, account, channel, event_id, provider_id, event_type, known, reason, at_s)
),
new as (
    insert into flyball.delivery_event (pool, account, channel, event_id, provider_id, event_type, recipient_digest, reason, at)
    select pool, account, channel, event_id, provider_id, event_type, digest, reason, to_timestamp(at_s)
    from reported
    order by pool, event_id
    on conflict do nothing
    returning pool, account, channel, event_id, event_type, recipient_digest
),
suppressed as (
    insert into flyball.suppression (channel, recipient_digest, reason, pool, account)
    select distinct on (channel, recipient_digest) channel, recipient_digest, event_type, pool, account
    from new
    where event_type in ('bounced', 'complained', 'unsubscribed') and recipient_digest is not null
    order by channel, recipient_digest
    on conflict do nothing
    returning 1
),
counted as (
    insert into flyball.account_tally as t (pool, account, hour, delivered, bounced, complained, unsubscribed)
    select pool, account, date_trunc('hour', now(), 'UTC'), count(*) filter (where event_type = 'delivered'),
        count(*) filter (where event_type = 'bounced'), count(*) filter (where event_type = 'complained'),
        count(*) filter (where event_type = 'unsubscribed')
    from new
    where event_type in ('delivered', 'bounced', 'complained', 'unsubscribed') and (select count(*) from suppressed) >= 0
    group by pool, account
    order by pool, account
    on conflict (pool, account, hour) do update
    set delivered = t.delivered + excluded.delivered, bounced = t.bounced + excluded.bounced,
        complained = t.complained + excluded.complained, unsubscribed = t.unsubscribed + excluded.unsubscribed
)
select pool, event_id from new";

// Only unmatched events are applied, and those locked by a concurrent statement are skipped. A
// complaint implies that the message was delivered; an unsubscription says nothing about this
// message.
pub(super) const APPLY: &str = "
with keys as materialized (
    select distinct k.pool, k.provider_id from unnest($1::text[], $2::text[]) as k(pool, provider_id)
),
found as materialized (
    select e.*, d.job_id, d.tenant, d.channel as to_channel, d.recipient_digest as to_digest
    from keys k
    cross join lateral (
        select q.ctid as tid, q.pool, q.account, q.event_type, q.recipient_digest, q.reason, q.at,
            case q.event_type when 'complained' then 'delivered' when 'unsubscribed' then 'queued' else q.event_type end as state
        from flyball.delivery_event q
        where q.pool = k.pool and q.provider_id = k.provider_id and q.job_id is null
        limit 100
        for update skip locked
    ) e
    cross join lateral (
        select h.job_id, h.tenant, h.channel, h.recipient_digest
        from flyball.delivery h
        where h.pool = k.pool and h.provider_id = k.provider_id
        order by h.pool, h.provider_id
        limit 1
    ) d
),
changes as materialized (
    select job_id, (array_agg(state order by flyball.delivery_rank(state) desc, at desc))[1] as state,
        (array_agg(reason order by flyball.delivery_rank(state) desc, at desc))[1] as reason,
        bool_or(event_type = 'complained') as complained
    from found
    group by job_id
    order by job_id
),
moved as (
    update flyball.delivery d
    set state = case when flyball.delivery_rank(n.state) > flyball.delivery_rank(d.state) then n.state else d.state end,
        reason = case when flyball.delivery_rank(n.state) > flyball.delivery_rank(d.state) then n.reason else d.reason end,
        complained = d.complained or n.complained,
        unsent = d.unsent and flyball.delivery_rank(n.state) <= flyball.delivery_rank(d.state),
        updated_at = clock_timestamp()
    from changes n
    where d.job_id = n.job_id
    returning 1
),
suppressed as (
    insert into flyball.suppression (channel, recipient_digest, reason, pool, account)
    select distinct on (to_channel, to_digest) to_channel, to_digest, event_type, pool, account
    from found
    where event_type in ('bounced', 'complained', 'unsubscribed') and recipient_digest is null and to_digest is not null
        and (select count(*) from moved) >= 0
    order by to_channel, to_digest
    on conflict do nothing
    returning 1
),
by_tenant as (
    insert into flyball.tenant_tally as t (tenant, hour, bounced, complained, unsubscribed)
    select tenant, date_trunc('hour', now(), 'UTC'), count(*) filter (where event_type = 'bounced'),
        count(*) filter (where event_type = 'complained'), count(*) filter (where event_type = 'unsubscribed')
    from found
    where tenant <> '' and event_type in ('bounced', 'complained', 'unsubscribed') and (select count(*) from suppressed) >= 0
    group by tenant
    order by tenant
    on conflict (tenant, hour) do update
    set bounced = t.bounced + excluded.bounced, complained = t.complained + excluded.complained,
        unsubscribed = t.unsubscribed + excluded.unsubscribed
),
matched as (
    update flyball.delivery_event e set job_id = f.job_id from found f where e.ctid = f.tid
)
select count(*) from found";

/// The longest wait of the events of one message for a lock.
const ALONE_WITHIN: Duration = Duration::from_millis(100);

/// Writes events and applies those whose messages are known. Returns one result for each notice, in
/// order.
pub(super) async fn record_events(db: &Db, notices: &[EventReport]) -> Result<Vec<Fresh>, Error> {
    let all: Vec<(&EventReport, &ProviderEvent)> = notices
        .iter()
        .flat_map(|notice| notice.events.iter().map(move |event| (notice, event)))
        .collect();
    let mut new: HashSet<(String, String)> = HashSet::new();
    for part in all.chunks(MAX_STATEMENT_EVENTS) {
        new.extend(write(db, part).await?);
        let keys: BTreeSet<(String, String)> = part
            .iter()
            .filter(|(_, event)| !event.provider_id.is_empty())
            .map(|(notice, event)| (notice.pool.clone(), line(&event.provider_id)))
            .collect();
        apply(db, &keys.into_iter().collect::<Vec<_>>()).await?;
    }
    let fresh = |notice: &EventReport| {
        let mut fresh = Fresh::new();
        for event in &notice.events {
            // Removed, so that an event in two posts counts once.
            if !new.remove(&(notice.pool.clone(), line(&event.event_id))) {
                continue;
            }
            match fresh
                .iter_mut()
                .find(|(event_type, _)| *event_type == event.event_type)
            {
                Some((_, count)) => *count += 1,
                None => fresh.push((event.event_type, 1)),
            }
        }
        fresh
    };
    Ok(notices.iter().map(fresh).collect())
}

async fn write(
    db: &Db,
    events: &[(&EventReport, &ProviderEvent)],
) -> Result<Vec<(String, String)>, Error> {
    let digest = |notice: &EventReport, event: &ProviderEvent| {
        let recipient = event
            .recipient
            .as_deref()
            .and_then(|to| Recipient::reported(notice.channel, to));
        recipient.map(|to| suppression_digest(notice.channel, to.identity()))
    };
    let statement = sqlx::query_as(RECORD_EVENTS)
        .bind(column(events, |(notice, _)| notice.pool.as_str()))
        .bind(column(events, |(notice, _)| notice.account.as_str()))
        .bind(column(events, |(notice, _)| notice.channel.as_str()))
        .bind(column(events, |(_, event)| line(&event.event_id)))
        .bind(column(events, |(_, event)| line(&event.provider_id)))
        .bind(column(events, |(_, event)| event.event_type.as_str()))
        .bind(column(events, |(notice, event)| digest(notice, event)))
        .bind(column(events, |(_, event)| line(&event.reason)))
        // Postgres has no times before its epoch, nor any far in the future.
        .bind(column(events, |(_, event)| {
            event.at_s.clamp(0, 253_402_300_799) as f64
        }));
    Ok(statement.fetch_all(db).await?)
}

/// Applies unmatched events of these messages, given by pool and provider id. Returns the number of
/// events.
pub(super) async fn apply(db: &Db, keys: &[(String, String)]) -> Result<i64, Error> {
    if keys.is_empty() {
        return Ok(0);
    }
    let statement = sqlx::query_scalar(APPLY)
        .bind(column(keys, |(pool, _)| pool.as_str()))
        .bind(column(keys, |(_, id)| id.as_str()));
    Ok(statement.fetch_one(db).await?)
}

/// Applies events like [`apply`]. If an open transaction holds what one message needs, each is
/// applied alone, and that one is left. Returns the number of events, and false if any was left.
pub(super) async fn apply_apart(db: &Db, keys: &[(String, String)]) -> Result<(i64, bool), Error> {
    match apply(db, keys).await {
        Err(error) if error.was_locked_out() => {}
        applied => return Ok((applied?, true)),
    }
    let (mut applied, mut are_all) = (0, true);
    for (pool, id) in keys {
        let mut transaction = db.begin_with_timeout(ALONE_WITHIN).await?;
        let statement = sqlx::query_scalar(APPLY)
            .persistent(false)
            .bind(vec![pool.as_str()])
            .bind(vec![id.as_str()]);
        let done: Result<i64, sqlx::Error> = statement.fetch_one(&mut *transaction).await;
        match transaction.end(done).await.map_err(Error::from) {
            Ok(events) => applied += events,
            Err(error) if error.was_locked_out() => are_all = false,
            Err(error) => return Err(error),
        }
    }
    Ok((applied, are_all))
}

fn column<'a, T, V>(rows: &'a [T], field: impl Fn(&'a T) -> V) -> Vec<V> {
    rows.iter().map(field).collect()
}
