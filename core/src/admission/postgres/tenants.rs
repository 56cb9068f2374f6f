//! Tenants in Postgres: those that have sent messages, with what waits and what is pending.

use jiff::Timestamp;
use jiff_sqlx::Timestamp as SqlTimestamp;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::jobs::{Error, Queue};

/// The most pending messages of a tenant that are counted.
pub const PENDING_COUNTED_MAX: i64 = 20_000;

// Tenants are found by their pending messages, at once; by the ends of earlier ones; and by limits
// of their own. Each source is a primary key, read from a position on.
const TENANTS: &str = "
with recursive sending as (
    (select p.tenant from flyball.pending p
     where p.tenant > $2 and ($1::text is null or p.tenant = $1) order by p.tenant limit 1)
    union all
    (select n.tenant
     from sending s
     cross join lateral (
        select p.tenant from flyball.pending p where $1::text is null and p.tenant > s.tenant order by p.tenant limit 1
     ) n)
),
page as materialized (
    select named.tenant
    from (
        (select s.tenant from sending s limit $3)
        union
        (select d.tenant from flyball.tenant_drain d
         where d.tenant > $2 and ($1::text is null or d.tenant = $1) order by d.tenant limit $3)
        union
        (select l.tenant from flyball.tenant_limit l
         where l.tenant > $2 and l.tenant <> '*' and ($1::text is null or l.tenant = $1) order by l.tenant limit $3)
        union
        (select $1::text where $4 and $1 > $2)
    ) named
    order by named.tenant limit $3
)
select t.tenant,
    (select count(*) from (select from flyball.pending p where p.tenant = t.tenant limit $5) counted) as pending,
    (select l.max_pending from flyball.tenant_limit l where l.tenant in (t.tenant, '*') order by l.tenant = '*' limit 1)
        as pending_max,
    coalesce(d.ready, 0) as waiting, coalesce(d.scheduled, 0) as scheduled, d.oldest_ready_at, s.at as counted_at
from page t
left join flyball.depth d on d.throttle = flyball.admission_throttle(t.tenant)
left join flyball.sweep s on s.one
order by t.tenant";

/// The statements of this file.
pub const TENANT_STATEMENTS: &[(&str, &str)] = &[("list tenants", TENANTS)];

/// The tenants that a list shows.
#[derive(Clone, Copy, Debug)]
pub struct TenantFilter<'a> {
    /// Only this tenant; `None` for all.
    pub only: Option<&'a str>,
    /// True if that tenant is shown although it has sent nothing yet.
    pub is_known: bool,
    /// The tenant after which the page begins; empty for the first page.
    pub after: &'a str,
    /// The most tenants of the page.
    pub limit: i64,
}

/// The messages of a tenant that have not been sent.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantQueue {
    /// The tenant.
    pub tenant: String,
    /// Messages that were accepted and may not have ended, up to [`PENDING_COUNTED_MAX`].
    pub pending: i64,
    /// The most that may be pending; `None` for no limit.
    pub pending_max: Option<i64>,
    /// Messages that wait for their admission, at the last count.
    pub waiting: i64,
    /// Messages that wait for a time, or were put aside with their batch, at the last count.
    pub scheduled: i64,
    /// The time from which the oldest of those that wait does so: that at which it was accepted, or
    /// for which; at the last count.
    pub oldest_waiting_at: Option<Timestamp>,
    /// The time of the last count; `None` before the first.
    pub counted_at: Option<Timestamp>,
}

/// Returns a page of tenants, by name.
pub(in crate::admission) async fn list_tenants(
    queue: &Queue,
    wanted: TenantFilter<'_>,
) -> Result<Vec<TenantQueue>, Error> {
    let rows = sqlx::query(TENANTS)
        .bind(wanted.only)
        .bind(wanted.after)
        .bind(wanted.limit)
        .bind(wanted.is_known)
        .bind(PENDING_COUNTED_MAX)
        .fetch_all(&queue.pool)
        .await?;
    let moment = |row: &PgRow, column: &str| -> Result<_, sqlx::Error> {
        let at: Option<SqlTimestamp> = row.try_get(column)?;
        Ok(at.map(|at| at.to_jiff()))
    };
    let tenants = rows.iter().map(|row| -> Result<TenantQueue, sqlx::Error> {
        Ok(TenantQueue {
            tenant: row.try_get("tenant")?,
            pending: row.try_get("pending")?,
            pending_max: row.try_get::<Option<i32>, _>("pending_max")?.map(i64::from),
            waiting: row.try_get("waiting")?,
            scheduled: row.try_get("scheduled")?,
            oldest_waiting_at: moment(row, "oldest_ready_at")?,
            counted_at: moment(row, "counted_at")?,
        })
    });
    tenants.collect::<Result<Vec<_>, _>>().map_err(Error::from)
}
