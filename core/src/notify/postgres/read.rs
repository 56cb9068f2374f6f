//! Searches for messages.

use std::time::{Duration, Instant};

use jiff_sqlx::Timestamp;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;

use super::Deliveries;
use crate::jobs::Error;
use crate::notify::{DeliveryState, Notification, NotificationFilter, NotificationPage};

/// Rows that one step of a search examines.
const ROWS: i64 = 2_000;

/// Time after which a search takes no further step, even if its page is not full.
const SEARCH_TIME_LIMIT: Duration = Duration::from_millis(25);

pub(super) const FIND: &str = "
select job_id, tenant, channel, pool, provider, account, state, provider_id, recipient, category, attempts, attempt_count, reason, complained, requeued_at,
    created_at, updated_at, (select j.priority::int from flyball.job j where j.id = n.job_id) as priority
from flyball.notification n
where job_id = $1 and ($2::text is null or tenant = $2)";

// Messages are searched among the jobs and among the deliveries, whose jobs may be gone, from the
// newest to the oldest. The number of rows that a step examines does not depend on the filter.
macro_rules! search {
    ($owned:literal) => {
        concat!(
            "
with walk as materialized (
    select u.id, bool_or(u.is_message) as is_message
    from (
        (select j.id, j.kind = 'notification' as is_message from flyball.job j where ", $owned, " j.id < $1 order by j.id desc limit $2)
        union all
        (select d.job_id, true from flyball.delivery d where ", $owned, " d.job_id < $1 order by d.job_id desc limit $2)
    ) u
    group by u.id
    order by u.id desc
    limit $2
),
page as (
    select n.*
    from (select id from walk where is_message order by id desc) w
    cross join lateral (select * from flyball.notification v where v.job_id = w.id limit 1) n
    where ($3::text is null or n.state = $3) and ($4::text is null or n.channel = $4) and ($5::text is null or n.pool = $5)
        and ($6::text is null or n.account = $6) and ($8::text is null or n.tenant = $8)
    limit $7
)
select b.walked, b.walked_to, p.*
from (select count(*) as walked, min(id) as walked_to from walk) b
left join page p on true
order by p.job_id desc"
        )
    };
}

pub(super) const LIST: &str = search!("");

// The positions of this walk are messages of the tenant, so they reveal nothing about those of
// others.
pub(super) const LIST_OF_TENANT: &str = search!("tenant = $8 and tenant <> '' and");

impl Deliveries {
    /// Returns one message with its record; with a tenant, only if the message belongs to it.
    pub async fn find(&self, id: i64, tenant: Option<&str>) -> Result<Option<Notification>, Error> {
        let found = self.find_with_priority(id, tenant).await?;
        Ok(found.map(|(notification, _)| notification))
    }

    /// Returns what [`Deliveries::find`] does, and the priority of its job; `None` for a job that is
    /// gone.
    pub async fn find_with_priority(
        &self,
        id: i64,
        tenant: Option<&str>,
    ) -> Result<Option<(Notification, Option<i32>)>, Error> {
        let statement = sqlx::query(FIND).bind(id).bind(tenant);
        match statement.fetch_optional(&self.db).await? {
            Some(row) => Ok(Some((notification(&row)?, row.try_get("priority")?))),
            None => Ok(None),
        }
    }

    /// Returns a page of messages, newest first.
    ///
    /// With any filter it takes a few tens of milliseconds, so a page may be short, or empty,
    /// though more follow: continue from [`NotificationPage::next`] until it is `None`.
    pub async fn page(&self, filter: &NotificationFilter) -> Result<NotificationPage, Error> {
        let begun = Instant::now();
        let limit = filter.limit.clamp(1, 1000);
        let mut page = NotificationPage::default();
        let mut before = filter.before.unwrap_or(i64::MAX);
        let statement = match filter.tenant {
            Some(_) => LIST_OF_TENANT,
            None => LIST,
        };
        loop {
            let rows = sqlx::query(statement)
                .bind(before)
                .bind(ROWS)
                .bind(filter.state.map(DeliveryState::as_str))
                .bind(filter.channel.map(crate::providers::Channel::as_str))
                .bind(&filter.pool)
                .bind(&filter.account)
                .bind(limit - page.notifications.len() as i64)
                .bind(&filter.tenant)
                .fetch_all(&self.db)
                .await?;
            let (mut walked, mut walked_to) = (0, None);
            for row in &rows {
                (walked, walked_to) = (
                    row.try_get("walked")?,
                    row.try_get::<Option<i64>, _>("walked_to")?,
                );
                if row.try_get::<Option<i64>, _>("job_id")?.is_some() {
                    page.notifications.push(notification(row)?);
                }
            }
            page.next = walked_to.filter(|_| walked == ROWS);
            if page.notifications.len() as i64 >= limit {
                page.next = page.notifications.last().map(|last| last.id);
                return Ok(page);
            }
            match page.next {
                Some(next) if begun.elapsed() < SEARCH_TIME_LIMIT => before = next,
                _ => return Ok(page),
            }
        }
    }
}

fn notification(row: &PgRow) -> Result<Notification, sqlx::Error> {
    let moment = |column| {
        row.try_get::<Option<Timestamp>, _>(column)
            .ok()
            .flatten()
            .map(Timestamp::to_jiff)
    };
    Ok(Notification {
        id: row.try_get("job_id")?,
        tenant: row.try_get("tenant")?,
        state: DeliveryState::of(row.try_get("state")?).unwrap_or(DeliveryState::Queued),
        channel: row
            .try_get::<Option<String>, _>("channel")?
            .unwrap_or_default(),
        pool: row.try_get("pool")?,
        provider: row.try_get("provider")?,
        account: row.try_get("account")?,
        provider_id: row.try_get("provider_id")?,
        to: row.try_get("recipient")?,
        category: row.try_get("category")?,
        reason: row.try_get("reason")?,
        complained: row.try_get("complained")?,
        attempt_count: row.try_get("attempt_count")?,
        attempts: row.try_get::<Json<_>, _>("attempts")?.0,
        requeued_at: moment("requeued_at"),
        created_at: moment("created_at").unwrap_or_default(),
        updated_at: moment("updated_at").unwrap_or_default(),
    })
}
