//! Records the results of attempts.

use serde_json::json;
use sqlx::types::Json;

use super::events;
use super::text::line;
use crate::jobs::Error;
use crate::notify::record::NO_ACCOUNT;
use crate::notify::{Attempt, DeliveryUpdate, RecipientResult};
use crate::postgres::Db;
use crate::providers::Recipient;
use crate::recipient::address::suppression_digest;

/// Most attempts of one record that are stored, the same as in a whole row.
const MAX_ATTEMPTS_KEPT: usize = 50;

// A message that failed or was suppressed may be tried again; any other state only advances.
// Attempts that are already stored are not written or counted again, because the reply to the first
// statement may have been lost.
//
// Each part reads from the one before and so waits for it; every transaction therefore locks
// messages, then recipients, then tallies of accounts, then tallies of tenants. The result names
// the messages for which events arrived before their record.
pub(super) const RECORD: &str = "
with reported as materialized (
    select s.job_id, s.channel, s.pool, s.provider, s.account, s.state, s.provider_id, s.digest, s.recipient,
        s.category, s.attempts, s.attempt_count, s.outcome, s.reason, s.suppress, s.unsent,
        coalesce((select j.tenant from flyball.job j where j.id = s.job_id limit 1), '') as tenant
    from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], flyball.keyed_digests($8::bytea[]), $9::text[], $10::text[],
            $11::jsonb[], $12::int[], $13::text[], $14::text[], $15::text[], $16::boolean[])
        as s(job_id, channel, pool, provider, account, state, provider_id, digest, recipient, category, attempts, attempt_count, outcome, reason,
            suppress, unsent)
),
written as (
    insert into flyball.delivery as d
        (job_id, channel, pool, tenant, provider, account, state, provider_id, recipient_digest, recipient, category, attempts, attempt_count,
         last_outcome, reason, unsent)
    select job_id, channel, pool, tenant, provider, account, state, provider_id, digest, recipient, category, attempts, attempt_count, outcome,
        reason, unsent
    from reported
    order by job_id
    on conflict (job_id) do update
    set channel = excluded.channel, pool = excluded.pool, provider = excluded.provider,
        account = coalesce(excluded.account, d.account),
        state = case when d.state in ('failed', 'suppressed') or flyball.delivery_rank(excluded.state) > flyball.delivery_rank(d.state)
            then excluded.state else d.state end,
        provider_id = coalesce(excluded.provider_id, d.provider_id),
        recipient_digest = excluded.recipient_digest, recipient = excluded.recipient, category = excluded.category,
        attempts = flyball.append_attempts(d.attempts, excluded.attempts), attempt_count = d.attempt_count + excluded.attempt_count,
        last_outcome = coalesce(excluded.last_outcome, d.last_outcome),
        reason = case when excluded.reason <> '' or excluded.state <> 'queued' then excluded.reason else d.reason end,
        unsent = excluded.unsent and flyball.delivery_rank(d.state) <= 2, updated_at = clock_timestamp()
    where excluded.attempts = '[]' or not d.attempts @> excluded.attempts
    returning d.job_id
),
new as materialized (
    select s.* from reported s where s.job_id in (select job_id from written)
),
suppressed as (
    insert into flyball.suppression (channel, recipient_digest, reason, pool, account)
    select distinct on (channel, digest) channel, digest, suppress, pool, account
    from new
    where suppress is not null
    order by channel, digest
    on conflict do nothing
    returning 1
),
counted as (
    insert into flyball.account_tally as t (pool, account, hour, accepted, delivered, bounced)
    select pool, account, date_trunc('hour', now(), 'UTC'), count(*) filter (where state in ('sent', 'delivered')),
        count(*) filter (where state = 'delivered'), count(*) filter (where state = 'bounced')
    from new
    where account is not null and state in ('sent', 'delivered', 'bounced') and (select count(*) from suppressed) >= 0
    group by pool, account
    order by pool, account
    on conflict (pool, account, hour) do update
    set accepted = t.accepted + excluded.accepted, delivered = t.delivered + excluded.delivered, bounced = t.bounced + excluded.bounced
    returning 1
),
by_tenant as (
    insert into flyball.tenant_tally as t (tenant, hour, accepted, bounced)
    select tenant, date_trunc('hour', now(), 'UTC'), count(*) filter (where state in ('sent', 'delivered')),
        count(*) filter (where state = 'bounced')
    from new
    where tenant <> '' and account is not null and state in ('sent', 'delivered', 'bounced') and (select count(*) from counted) >= 0
    group by tenant
    order by tenant
    on conflict (tenant, hour) do update set accepted = t.accepted + excluded.accepted, bounced = t.bounced + excluded.bounced
)
select s.pool, s.provider_id
from reported s
where s.provider_id is not null and exists (
    select from flyball.delivery_event e where e.pool = s.pool and e.provider_id = s.provider_id and e.job_id is null
)";

// Rests of a recipient with several messages in flight become one: the longest.
pub(super) const UPSERT_RECIPIENT_REST: &str = "
insert into flyball.recipient_backoff as r (channel, recipient_digest, failures, backoff_until)
select s.channel, s.digest, max(s.failures), clock_timestamp() + make_interval(secs => max(s.rest_s))
from (
    select k.channel, flyball.keyed_digest(k.known) as digest, k.failures, k.rest_s
    from unnest($1::text[], $2::bytea[], $3::int[], $4::float8[]) as k(channel, known, failures, rest_s)
) s
group by s.channel, s.digest
order by s.channel, s.digest
on conflict (channel, recipient_digest) do update
set failures = greatest(r.failures, excluded.failures), backoff_until = greatest(r.backoff_until, excluded.backoff_until),
    first_backoff_until = '-infinity'";

// Rows are locked in the order of their keys, as in all other statements.
pub(super) const REST_NO_MORE: &str = "
delete from flyball.recipient_backoff
where ctid = any(array(
    select r.ctid
    from (
        select k.channel, flyball.keyed_digest(k.known) as digest from unnest($1::text[], $2::bytea[]) as k(channel, known) offset 0
    ) s
    join flyball.recipient_backoff r on r.channel = s.channel and r.recipient_digest = s.digest
    order by r.channel, r.recipient_digest
    for update of r
))";

/// Records all items or none, and returns one `()` for each.
pub(super) async fn record(db: &Db, written: &[DeliveryUpdate]) -> Result<Vec<()>, Error> {
    let reported: Vec<(String, String)> = sqlx::query_as(RECORD)
        .bind(column(written, |one| one.job_id))
        .bind(column(written, |one| one.channel.as_str()))
        .bind(column(written, |one| one.pool.as_str()))
        .bind(column(written, |one| one.provider))
        .bind(column(written, |one| one.account.as_deref()))
        .bind(column(written, |one| one.state.as_str()))
        .bind(column(written, |one| {
            one.provider_id
                .as_deref()
                .filter(|id| !id.is_empty())
                .map(line)
        }))
        .bind(column(written, known))
        .bind(column(written, |one| {
            one.recipient
                .as_ref()
                .map_or_else(String::new, Recipient::masked)
        }))
        .bind(column(written, |one| one.category.as_str()))
        .bind(column(written, |one| Json(attempts(&one.attempts))))
        .bind(column(written, |one| one.attempts.len() as i32))
        .bind(column(written, |one| {
            one.attempts.last().map(|last| last.outcome)
        }))
        .bind(column(written, |one| {
            one.attempts
                .last()
                .map(|last| line(&last.reason))
                .unwrap_or_default()
        }))
        .bind(column(written, |one| one.suppress.as_deref().map(line)))
        .bind(column(written, died_unsent))
        .fetch_all(db)
        .await?;
    if !reported.is_empty() {
        events::apply(db, &reported).await?;
    }
    rest(db, written).await?;
    Ok(vec![(); written.len()])
}

/// Records the availability of recipients.
async fn rest(db: &Db, written: &[DeliveryUpdate]) -> Result<(), Error> {
    let unable = |one: &DeliveryUpdate| match one.met {
        Some(RecipientResult::Unable { failures, rest }) => {
            let failures = i32::try_from(failures).unwrap_or(i32::MAX);
            Some((
                one.channel.as_str(),
                known(one)?,
                failures,
                rest.as_secs_f64(),
            ))
        }
        _ => None,
    };
    let unable: Vec<_> = written.iter().filter_map(unable).collect();
    if !unable.is_empty() {
        sqlx::query(UPSERT_RECIPIENT_REST)
            .bind(column(&unable, |one| one.0))
            .bind(column(&unable, |one| one.1.clone()))
            .bind(column(&unable, |one| one.2))
            .bind(column(&unable, |one| one.3))
            .execute(db)
            .await?;
    }
    let able: Vec<&DeliveryUpdate> = written
        .iter()
        .filter(|one| one.met == Some(RecipientResult::Able))
        .collect();
    if !able.is_empty() {
        sqlx::query(REST_NO_MORE)
            .bind(column(&able, |one| one.channel.as_str()))
            .bind(column(&able, |one| known(one)))
            .execute(db)
            .await?;
    }
    Ok(())
}

/// Returns the digest of the address; `None` if there is none.
fn known(one: &DeliveryUpdate) -> Option<Vec<u8>> {
    let to = one.recipient.as_ref()?;
    Some(suppression_digest(one.channel, to.identity()))
}

/// Returns true if the message died for lack of an account, so that it is requeued when one is
/// available.
fn died_unsent(one: &DeliveryUpdate) -> bool {
    one.state == crate::notify::DeliveryState::Failed
        && one
            .attempts
            .last()
            .is_some_and(|last| last.outcome == NO_ACCOUNT)
}

fn attempts(all: &[Attempt]) -> serde_json::Value {
    let kept = &all[all.len().saturating_sub(MAX_ATTEMPTS_KEPT)..];
    let one = |attempt: &Attempt| {
        json!({
            "at": attempt.at.to_string(),
            "account": (!attempt.account.is_empty()).then_some(&attempt.account),
            "outcome": attempt.outcome,
            "status": line(&attempt.status),
            "reason": line(&attempt.reason),
            "ms": attempt.took.as_millis() as u64,
        })
    };
    kept.iter().map(one).collect()
}

fn column<'a, T, V>(rows: &'a [T], field: impl Fn(&'a T) -> V) -> Vec<V> {
    rows.iter().map(field).collect()
}
