//! The use of channels by each tenant: messages, limits reached, open connections.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff_sqlx::Timestamp as SqlTimestamp;
use sqlx::{Row, query};

use crate::gateway::channel_name::ChannelName;
use crate::jobs::Error;
use crate::postgres::Db;

/// Reads what collectors write in the transaction that notifies the gateways.
pub(super) const LIMITED: &str = "
select u.tenant from flyball.channel_usage u where u.tenant = any($1) and u.limited_at > now() - make_interval(secs => $2)";

/// Finds those of these inboxes that hold nothing, or of which the channel keeps nothing: a message
/// that waited for the erasure is in the inbox at once.
pub(super) const GONE_INBOXES: &str = "
select i.tenant, i.recipient
from unnest($1::text[], $2::text[]) as i(tenant, recipient)
where not exists (select from flyball.inbox_count c where c.tenant = i.tenant and c.recipient = i.recipient offset 0)
    or not exists (
        select from flyball.channel h
        where h.tenant = i.tenant and h.name = '$inbox/' || i.recipient and h.first_offset <= h.last_offset offset 0)";

pub(super) const REPORT: &str = "
insert into flyball.gateway_report as r (tenant, process, connections, warnings, reported_at)
select a.tenant, $1, a.connections, a.warnings, now()
from unnest($2::text[], $3::int[], $4::bigint[]) as a(tenant, connections, warnings)
order by a.tenant
on conflict (tenant, process) do update
set connections = excluded.connections, warnings = r.warnings + excluded.warnings, reported_at = excluded.reported_at";

/// The operators, who have no name, come last, so that a page can begin behind each name.
pub(super) const LIST: &str = "
select t.tenant,
    (select coalesce(sum(r.connections), 0) from flyball.gateway_report r where r.tenant = t.tenant and r.reported_at > now() - interval '15 seconds') as connections,
    (select coalesce(sum(r.warnings), 0)::bigint from flyball.gateway_report r where r.tenant = t.tenant) as warnings,
    coalesce(u.messages, 0) as messages, coalesce(u.limited, 0) as limited, u.limited_at,
    (select count(*) from (select from flyball.publication p where p.tenant = t.tenant limit 10000) as page) as waiting
from (select r.tenant from flyball.gateway_report r union select u.tenant from flyball.channel_usage u) t
left join flyball.channel_usage u on u.tenant = t.tenant
where ($1::text is null or t.tenant = $1) and (t.tenant > $2 or t.tenant = '')
order by t.tenant = '', t.tenant
limit $3";

/// The open connections of a tenant in one process, and the warnings since the last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionReport {
    pub tenant: String,
    pub connections: i32,
    pub warnings: i64,
}

/// The use of channels by one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelUsage {
    pub tenant: String,
    /// Open connections over all processes.
    pub connections: i64,
    /// Warnings to connections that messages wait, of the processes of the last hour.
    pub warnings: i64,
    /// Messages that went out.
    pub messages: i64,
    /// The times that the limit was reached.
    pub limited: i64,
    pub limited_at: Option<Timestamp>,
    /// Messages that wait, at most 10,000.
    pub waiting: i64,
}

/// Records the reports of a process.
pub async fn report_connections(
    db: &Db,
    process: &str,
    reports: &[ConnectionReport],
) -> Result<(), Error> {
    let tenants: Vec<&str> = reports.iter().map(|one| one.tenant.as_str()).collect();
    let connections: Vec<i32> = reports.iter().map(|one| one.connections).collect();
    let warnings: Vec<i64> = reports.iter().map(|one| one.warnings).collect();
    query(REPORT)
        .bind(process)
        .bind(&tenants)
        .bind(&connections)
        .bind(&warnings)
        .execute(db)
        .await?;
    Ok(())
}

/// Returns those of some tenants whose limit a collector has reached within a time.
pub async fn limited_tenants(
    db: &Db,
    tenants: &[&str],
    within: Duration,
) -> Result<Vec<String>, Error> {
    let rows = query(LIMITED)
        .bind(tenants)
        .bind(within.as_secs_f64())
        .fetch_all(db)
        .await?;
    rows.iter().map(|row| Ok(row.try_get("tenant")?)).collect()
}

/// Returns those of these channels of inboxes whose inbox was erased, as far as can be seen: tenant
/// and recipient.
pub async fn gone_inboxes(
    db: &Db,
    inboxes: &[(Arc<str>, ChannelName)],
) -> Result<Vec<(String, String)>, Error> {
    if inboxes.is_empty() {
        return Ok(Vec::new());
    }
    let tenants: Vec<&str> = inboxes.iter().map(|(tenant, _)| &**tenant).collect();
    let recipients = inboxes.iter().map(|(_, channel)| channel.recipient());
    let recipients: Vec<&str> = recipients.map(Option::unwrap_or_default).collect();
    let found = query(GONE_INBOXES).bind(tenants).bind(recipients);
    let rows = found.fetch_all(db).await?;
    let pairs = rows.iter();
    pairs
        .map(|row| Ok((row.try_get("tenant")?, row.try_get("recipient")?)))
        .collect()
}

/// Returns the use by tenants, by name: one, or up to `most` after a name. The operators come last.
pub async fn channel_usage(
    db: &Db,
    tenant: Option<&str>,
    after: &str,
    most: i64,
) -> Result<Vec<ChannelUsage>, Error> {
    let rows = query(LIST)
        .bind(tenant)
        .bind(after)
        .bind(most)
        .fetch_all(db)
        .await?;
    rows.iter()
        .map(|row| {
            let limited_at: Option<SqlTimestamp> = row.try_get("limited_at")?;
            Ok(ChannelUsage {
                tenant: row.try_get("tenant")?,
                connections: row.try_get("connections")?,
                warnings: row.try_get("warnings")?,
                messages: row.try_get("messages")?,
                limited: row.try_get("limited")?,
                limited_at: limited_at.map(|at| at.to_jiff()),
                waiting: row.try_get("waiting")?,
            })
        })
        .collect()
}
